"""The book as one PDF: python book/pdf.py. Prints its path last. Needs a Chromium, on the PATH or named by ATTNID_CHROMIUM."""

import os
import shutil
import subprocess
import sys
import tempfile

from build import BUILDER, ROOT, build

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WAIT = (
    300_000  # milliseconds that the page may take to set its formulas, on the browser's own clock
)
# what a sheet of paper needs: no bars of the theme, answers unfolded, nothing cut off at the right
PRINT = """
<style>
@page { size: A4; margin: 18mm 16mm; }
.bd-sidebar-primary, .bd-sidebar-secondary, .bd-header, .bd-header-article, .prev-next-footer, .bd-footer-content, .headerlink,
.copybtn, .sbt-scroll-pixel-helper, .pst-async-banner-revealer, #pst-back-to-top { display: none !important; }
body, .bd-container, .bd-page-width, .bd-main, .bd-content, .bd-article-container {
  display: block !important; max-width: none !important; width: auto !important; margin: 0 !important; }
.bd-article { padding: 0 4mm 0 0 !important; font-size: 10.5pt; }
.bd-article section > h1 { break-before: page; }
pre { font-size: 8pt !important; }
pre, .output { white-space: pre-wrap !important; overflow-wrap: anywhere; overflow: visible !important; }
figure, .proof.admonition > .admonition-title, h2, h3 { break-inside: avoid; break-after: avoid; }
figure { break-after: auto; }
img { max-width: 100% !important; height: auto !important; }
table { overflow-wrap: anywhere; }
div.math { overflow: visible !important; }
</style>
<script>addEventListener("DOMContentLoaded", () => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  for (const folded of document.querySelectorAll(".toggle-hidden")) folded.classList.remove("toggle-hidden");
});
addEventListener("load", () => MathJax.startup.promise.then(() => {   // a formula wider than the sheet shrinks to it
  for (const formula of document.querySelectorAll('mjx-container[display="true"]')) {
    const share = formula.parentElement.clientWidth / formula.firstElementChild.getBoundingClientRect().width;
    if (share < 1) formula.style.fontSize = `${parseFloat(formula.style.fontSize || 100) * share}%`;
  }
}));</script>
"""


def chromium():
    """The browser's path; None without one."""
    return os.environ.get("ATTNID_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def one_page(root):
    """The whole book as one page of HTML, made from the notebooks that the build has executed."""
    build(root)
    folder = root / "_build" / "singlehtml"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([*BUILDER, "--builder", "singlehtml"], cwd=root, check=True)
    return (folder / "book" / "intro.html").rename(
        folder / "book.html"
    )  # where its addresses are right


def printed(page, path, browser):
    """Print a page to a PDF, without a network; the PDF stands beside the page until it is whole."""
    page.write_text(
        page.read_text(encoding="utf-8").replace("</head>", PRINT + "</head>", 1), encoding="utf-8"
    )
    draft = page.with_suffix(".pdf")
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={profile}",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--no-pdf-header-footer",
            "--window-size=673,1000",
            f"--virtual-time-budget={WAIT}",
            f"--print-to-pdf={draft}",
            page.as_uri(),
        ]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    os.replace(draft, path)
    return path


def main(root=ROOT):
    browser = chromium()
    if browser is None:
        sys.exit(
            f"no PDF: none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)"
        )
    print(printed(one_page(root), root / "_build" / "identified-attention.pdf", browser))


if __name__ == "__main__":
    main()
