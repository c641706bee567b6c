"""What `db.capabilities` says, held against what the classes of the drivers define."""

import inspect
from typing import Any

import pytest

import cenote
from cenote.sql.driver import OPTIONAL, TRAITS, DriverConnection, capabilities_of
from cenote.sql.loading import BUILT_IN

pytestmark = pytest.mark.once

URLS = {
    "sqlite": "sqlite:///:memory:",
    "asyncpg": "postgresql+asyncpg://app@localhost/app",
    "psycopg": "postgresql+psycopg://app@localhost/app",
    "mysql": "mysql://app@localhost/app",
}
# As the guide to drivers has them.
CAPABILITIES = {
    "sqlite": {"ping", "prepare", "looks_dead", "cancel", "statement_cache", "interleave"},
    "asyncpg": {"ping", "reset", "prepare", "looks_dead", "cancel", "statement_cache", "sqlstate",
                "interleave", "listen"},
    "psycopg": {"ping", "reset", "looks_dead", "cancel", "statement_cache", "sqlstate",
                "interleave", "listen"},
    "mysql": {"ping", "reset", "prepare", "looks_dead", "cancel", "statement_cache", "sqlstate"},
}  # fmt: skip
every_driver = pytest.mark.parametrize("name", URLS)


def connection_class(db: cenote.Database) -> type[DriverConnection]:
    return db._driver.connection_class


def definer(kind: type, name: str) -> type:
    """The class, of those that `kind` inherits from, whose body has the name."""
    return next(base for base in kind.__mro__ if name in vars(base))


def test_every_built_in_driver_is_held_against_its_class() -> None:
    modules = {type(cenote.Database(url)._driver).__module__ for url in URLS.values()}
    assert modules == set(BUILT_IN.values())


@every_driver
def test_capabilities_of_a_driver_are_the_documented_ones(name: str) -> None:
    assert cenote.Database(URLS[name]).capabilities == CAPABILITIES[name]


@every_driver
def test_optional_capabilities_are_methods_of_the_driver_itself(name: str) -> None:
    db = cenote.Database(URLS[name])
    kind = connection_class(db)
    defined = {method for method in OPTIONAL if definer(kind, method) is not DriverConnection}
    assert db.capabilities & OPTIONAL.keys() == defined
    for method in defined:
        assert inspect.isfunction(vars(definer(kind, method))[method])


@every_driver
def test_other_capabilities_are_traits_of_the_class(name: str) -> None:
    db = cenote.Database(URLS[name])
    kind = connection_class(db)
    traits = {word for trait, word in TRAITS.items() if getattr(kind, trait)}
    assert db.capabilities - OPTIONAL.keys() == traits


@pytest.mark.parametrize(
    ("body", "gained"),
    [
        ({"caches_statements": True}, {"statement_cache"}),  # and not prepare
        ({"prepare": DriverConnection.prepare}, set()),  # the same method, named again
        ({"prepare": lambda *arguments: None}, {"prepare"}),
        ({"reset": lambda self: None}, {"reset"}),
    ],
)
def test_class_gains_only_the_capabilities_it_defines(
    body: dict[str, Any], gained: set[str]
) -> None:
    kind: type[DriverConnection] = type("Made", (DriverConnection,), {"__slots__": (), **body})
    assert capabilities_of(kind) - capabilities_of(DriverConnection) == gained
