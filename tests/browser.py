"""A headless Chromium that reaches no host, and why a test has none."""

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--host-resolver-rules=MAP * ~NOTFOUND"]


def executable():
    """The browser that ATTNID_CHROMIUM names, or the first that is installed; None without one."""
    return os.environ.get("ATTNID_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def launched():
    """Yield a browser, or skip with the reason."""
    playwright = pytest.importorskip("playwright.sync_api", reason="BROWSER TESTS NOT RUN: playwright is not installed")
    path = executable()
    if path is None:
        pytest.skip(f"BROWSER TESTS NOT RUN: none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()
