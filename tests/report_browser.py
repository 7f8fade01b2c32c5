"""A headless Chromium for the report's tests, where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def browser(*, script: bool = True) -> Iterator[Any]:
    """Yield a WebDriver without access to any network; skip where there is no browser."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no chromium with chromedriver on this machine, so the report was not opened in a browser")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    if not script:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    window = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    try:
        yield window
    finally:
        window.quit()


def resize(window: Any, width: int, height: int = 900) -> None:
    """Give the page a width, also below what a window can have."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(window: Any, theme: str) -> None:
    """Let the system prefer a theme."""
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


# True once the report, not the empty page before it, is there and its scripts have run.
COMPLETE = "return location.protocol === 'file:' && document.readyState === 'complete'"


def open_report(window: Any, report: Path, fragment: str = "", *, folded: bool = False) -> None:
    """Open a report afresh, with its sections unfolded: going from fragment to fragment would not load it again.

    On a busy machine `get` can return while the empty page is still there, so this waits for the report's scripts.
    """
    from selenium.webdriver.support.wait import WebDriverWait

    window.get("about:blank")
    window.get(report.as_uri() + fragment)
    WebDriverWait(window, 60, poll_frequency=0.05).until(lambda page: page.execute_script(COMPLETE))
    if not folded:
        window.execute_script("document.querySelectorAll('details:not(.example)').forEach((part) => part.open = true)")


def find(window: Any, selector: str) -> list[Any]:
    """The elements of a page."""
    return list(window.find_elements("css selector", selector))


def click(window: Any, selector: str) -> None:
    """Click on an element, wherever it is."""
    window.execute_script("document.querySelector(arguments[0]).click()", selector)
