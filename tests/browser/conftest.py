"""The browser of all tests in this folder."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright
from real_browser import launch


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()
