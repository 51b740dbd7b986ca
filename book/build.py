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
from threading import Thread

from made import keep

ROOT = Path(__file__).resolve().parent.parent
EXECUTED_WITH = (
    "src",
    "requirements.txt",
    *(f"notebooks/results/{preset}" for preset in ("laptop", "comparison")),
)  # what outputs depend on
BUILDER = (
    Path(sys.executable).with_name("jupyter-book"),
    *("build", ".", "--toc", "book/_toc.yml"),
)
PAGES = ("html", "html-before")


def files(path):
    """Every file at or below a path, without what Python and pip leave there."""
    found = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [p for p in found if p.is_file() and p.suffix != ".pyc" and ".egg-info" not in str(p)]


def fingerprint(root):
    """One hash of the names and the contents of everything the notebooks are executed with."""
    digest = hashlib.sha256()
    for path in (p for name in EXECUTED_WITH for p in files(root / name) if p.exists()):
        digest.update(
            f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
        )
    return digest.hexdigest()


def forget_stale_executions(root):
    """Empty the cache of executed notebooks where it belongs to another package or environment: it compares cells only.

    The pages of the last build stay until new ones are there.
    """
    build, key = root / "_build", fingerprint(root)
    stamp = build / "executed-with"
    if not stamp.exists() or stamp.read_text() != key:
        for path in build.iterdir() if build.exists() else ():
            if path.name not in PAGES:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        build.mkdir(exist_ok=True)
        stamp.write_text(key)


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
    """What is shown of a line that the builder prints: which chapter was executed, and when the pages are written."""
    if found := re.search(r"notebooks/(\w+)\.ipynb: Executed notebook in ([\d.]+) s", line):
        return f"{found[1]}: executed in {found[2]} s\n"
    return "writing the pages\n" if "preparing documents" in line else ""


def complaint(line):
    """Any line of the builder's stderr, but for a kernel's that it talks without encryption, to this machine itself."""
    return (
        ""
        if line.startswith("[IPKernelApp] WARNING | Kernel is running over TCP without encryption")
        else line
    )


def relay(stream, shown):
    for line in stream:
        sys.stderr.write(shown(line))
        sys.stderr.flush()


@contextmanager
def ended_with(process):
    """End the process, and what it has started, where the block is left by an error or an interrupt."""
    try:
        yield
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        raise


def run_quietly(command, root):
    """Run the builder; show its progress and all its complaints. CalledProcessError when it fails."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}  # a chapter is told of when it is done
    with (
        subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches this process alone, which ends the builder
        ) as process,
        ended_with(process),
    ):
        complaints = Thread(target=relay, args=(process.stderr, complaint))
        complaints.start()
        relay(process.stdout, progress)
        complaints.join()
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
    """Build every page anew, warnings being errors: Sphinx warns about a page only when it reads it."""
    forget_stale_executions(root)
    for pages in ("ledger.py", "formal.py"):
        subprocess.run([sys.executable, root / "book" / pages], check=True)
    take_picture(root)
    print(
        "building the book: each chapter that has changed is executed first, all of them in about two minutes",
        file=sys.stderr,
    )
    with last_good_kept(root / "_build" / "html"):
        run_quietly([*BUILDER, "--all", "-W", "-n", "--keep-going"], root)
        leave_out_unused_mathjax(root / "_build" / "html")
    return root / "_build" / "html" / "index.html"


if __name__ == "__main__":
    try:
        print(build())
    except subprocess.CalledProcessError as failure:
        sys.exit(failure.returncode)
    except KeyboardInterrupt:
        sys.exit("interrupted; the pages are those of the last build")
