"""A headless Chromium that reaches no host, and why a test has none."""

from pathlib import Path

import pdf
import pytest

ROOT = Path(__file__).resolve().parent.parent
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND",
]


def launched():
    """Yield a browser, or skip with the reason."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="BROWSER TESTS NOT RUN: playwright is not installed"
    )
    path = pdf.chromium()
    if path is None:
        pytest.skip(
            f"BROWSER TESTS NOT RUN: none of {', '.join(pdf.NAMES)} is installed (Debian: apt-get install chromium)"
        )
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()
