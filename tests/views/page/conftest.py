"""A browser for all tests of a file, and a window of it for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.views.page.browser import Browser, chromium


@pytest.fixture(scope="module")
def running_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def browser(running_browser: webdriver.Chrome) -> Iterator[Browser]:
    """A window; what was said of earlier ones is forgotten."""
    first = running_browser.current_window_handle
    running_browser.switch_to.new_window("tab")
    window = Browser(running_browser)
    window.console()
    window.requests()
    yield window
    running_browser.close()
    running_browser.switch_to.window(first)
