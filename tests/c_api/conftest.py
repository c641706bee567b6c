"""The probe, compiled once for all files of this room, and pools that are made in C."""

import pytest

from tests.conftest import POOLS
from tests.support.extensions import compile_extension, load
from tests.support.probe import ALL, PROBE


@pytest.fixture(scope="session")
def probe_path(tmp_path_factory):
    return compile_extension(PROBE, tmp_path_factory.mktemp("probe"))


@pytest.fixture(scope="session")
def probe(probe_path):
    return load(probe_path)


@pytest.fixture
def keep(request):
    """The ledger of a pool that was made in C is checked, too."""
    pools = request.node.stash.setdefault(POOLS, [])

    def keep(pool):
        pools.append(pool)
        return pool

    return keep


@pytest.fixture
def make_c(keep, probe):
    """A pool with the C handlers that are named, and its plan."""

    def make(handlers=ALL, **options):
        plan = probe.Plan()
        return keep(probe.pool_new_c(plan, handlers, options)), plan

    return make
