"""Build the book: python book/build.py. Prints the path of its front page last, and on stderr what is on its way."""

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from made import keep

ROOT = Path(__file__).resolve().parent.parent
BUILT_FROM = ("src", "book", "notebooks", "proofs", "requirements.txt", "_config.yml", "README.md")
BUILDER = (
    Path(sys.executable).with_name("jupyter-book"),
    *("build", ".", "--toc", "book/_toc.yml"),
)


def sources(root):
    """Every file that the pages are made from, but for what Python, pip and editors leave there."""
    for name in BUILT_FROM:
        for path in sorted((root / name).rglob("*")) or [root / name]:
            hidden = re.search(r"__pycache__|\.egg-info|/\.", str(path.relative_to(root)))
            if path.is_file() and not hidden:
                yield path


def fingerprint(root):
    """One hash of the names and the contents of all that."""
    digest = hashlib.sha256()
    for path in sources(root):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(root)} {content}\n".encode())
    return digest.hexdigest()


def take_picture(root):
    """Put the picture of the front page, a stored output of chapter 01, where pages and README find it."""
    cells = json.loads((root / "notebooks" / "01_what_is_identified.ipynb").read_text())["cells"]
    outputs = next(
        cell["outputs"]
        for cell in cells
        if "figures.hyperbolas_and_counts(" in "".join(cell["source"])
    )
    picture = base64.b64decode(outputs[0]["data"]["image/png"])
    path = root / "book" / "_static" / "hyperbolas.png"
    keep(path, picture)


def leave_out_unused_mathjax(html):
    """Delete the builds of MathJax that no page loads, 15 MB of 24: SVG output, MathML input, all extensions at once."""
    for path in (html / "_static" / "mathjax").glob("*-*.js"):
        if path.name != "tex-chtml.js":
            path.unlink()


def progress(line):
    """What is shown of a line that the builder prints: when the pages are written."""
    return "writing the pages\n" if "preparing documents" in line else ""


@contextmanager
def ended_with(process):
    """End the process, and what it has started, where the block is left by an error or an interrupt."""
    try:
        yield
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        raise


def run_quietly(command, root):
    """Run the builder; show its progress and, from its stderr, all its complaints. CalledProcessError when it fails."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}  # progress is told of as it is made
    with (
        subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches this process alone, which ends the builder
        ) as process,
        ended_with(process),
    ):
        for line in process.stdout:
            print(progress(line), end="", file=sys.stderr, flush=True)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


@contextmanager
def last_good_kept(html):
    """Put the pages aside while new ones are made, and back where these fail or are interrupted."""
    aside = html.with_name("html-before")
    if aside.exists():  # a build was killed: what stands in its place is half a book
        shutil.rmtree(html, ignore_errors=True)
    elif html.exists():
        html.rename(aside)
    try:
        yield
    except BaseException:
        shutil.rmtree(html, ignore_errors=True)
        if aside.exists():
            aside.rename(html)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def build(root=ROOT):
    """Build every page anew where anything has changed, warnings being errors: Sphinx warns about a page only when it reads it."""
    for pages in ("ledger.py", "formal.py"):
        subprocess.run([sys.executable, root / "book" / pages], check=True)
    take_picture(root)
    html, stamp, key = root / "_build" / "html", root / "_build" / "built-from", fingerprint(root)
    if html.exists() and stamp.exists() and stamp.read_text() == key:
        return html / "index.html"
    with last_good_kept(html):
        run_quietly([*BUILDER, "--all", "-W", "-n", "--keep-going"], root)
        leave_out_unused_mathjax(html)
    stamp.write_text(key)
    return html / "index.html"


if __name__ == "__main__":
    try:
        print(build())
    except subprocess.CalledProcessError as failure:
        sys.exit(failure.returncode)
    except KeyboardInterrupt:
        sys.exit("interrupted; the pages are those of the last build")
