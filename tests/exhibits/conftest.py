"""What several files of this room need."""

import pytest

from tests.support.browsing import launch, missing


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if reason := missing():
        pytest.skip(reason)
    driver = launch(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()
