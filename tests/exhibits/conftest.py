"""What several files of this room need."""

import pytest

from tests.support.browsing import Browser, Program, launch, missing


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if reason := missing():
        pytest.skip(reason)
    driver = launch(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium):
    browser = Browser(chromium)
    chromium.get("about:blank")
    chromium.execute_cdp_cmd("Network.clearBrowserCookies", {})  # nobody has signed in
    chromium.get_log("browser")
    chromium.get_log("performance")
    yield browser
    chromium.get("about:blank")


@pytest.fixture
def program():
    with Program() as program:
        yield program
