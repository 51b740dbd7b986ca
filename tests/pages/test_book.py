"""The book builds without a warning, and its pages hold together and need no network."""

import os
import subprocess
import sys
import time

import build as book
import built as pages
import ledger
import pytest
import yaml


def found(check, files):
    """What a check finds, by file."""
    return {path.name: problems for path in files if (problems := check(path))}


def test_every_chapter_has_a_page(site):
    contents = yaml.safe_load((book.ROOT / "book" / "_toc.yml").read_text())
    files = [
        contents["root"],
        *(chapter["file"] for part in contents["parts"] for chapter in part["chapters"]),
    ]
    assert [file for file in files if not (site / f"{file}.html").exists()] == []


def test_internal_links_and_anchors_lead_somewhere(site):
    assert found(pages.broken, pages.pages(site)) == {}


def test_nothing_is_fetched_from_another_host(site):
    assert found(pages.fetched_from_elsewhere, pages.pages(site)) == {}
    assert found(pages.fonts_from_elsewhere, [*pages.pages(site), *site.rglob("*.css")]) == {}


def test_mathematics_is_set_by_a_local_mathjax(site):
    with_math = [page for page in pages.pages(site) if pages.soup(page).select(".math")]
    assert with_math
    for page in with_math:
        assert any("_static/mathjax/" in address for address in pages.loads(page)), page.name
    assert list((site / "_static" / "mathjax").rglob("*.woff"))


def test_every_image_has_alternative_text(site):
    assert found(pages.without_alternative_text, pages.pages(site)) == {}


@pytest.fixture
def page(tmp_path):
    """Write a page with this body."""

    def write(body):
        path = tmp_path / "page.html"
        path.write_text(f"<body id='top'>{body}</body>")
        return path

    return write


@pytest.mark.parametrize(
    "address", ["missing.html", "#nowhere", "page.html#nowhere", "_static/missing.js"]
)
def test_a_broken_link_is_found(page, address):
    assert pages.broken(page(f"<a href='{address}'>x</a>")) == [address]


@pytest.mark.parametrize(
    "address",
    ["#top", "page.html#top", "page.html?q=1", "https://example.org/x", "mailto:a@example.org"],
)
def test_a_sound_link_passes(page, address):
    assert pages.broken(page(f"<a href='{address}'>x</a>")) == []


@pytest.mark.parametrize(
    "body",
    [
        "<script src='https://cdn.example/x.js'></script>",
        "<img src='//cdn.example/x.png' alt='x'>",
        "<link rel='stylesheet' href='http://cdn.example/x.css'>",
    ],
)
def test_a_foreign_file_is_found(page, body):
    assert pages.fetched_from_elsewhere(page(body))


@pytest.mark.parametrize(
    "style", ["@import 'https://fonts.example/css';", "a {src: url(//fonts.example/f.woff)}"]
)
def test_a_foreign_font_is_found(page, style):
    assert pages.fonts_from_elsewhere(page(f"<style>{style}</style>"))


@pytest.mark.parametrize(
    "image, passes",
    [
        ("<img src='a/b.png'>", False),
        ("<img src='a/b.png' alt=' '>", False),
        ("<img src='../a/b.png' alt='_images/b.png'>", False),
        ("<img src='a/b.png' alt='Two curves that cross at zero'>", True),
    ],
)
def test_a_silent_image_is_found(page, image, passes):
    assert (pages.without_alternative_text(page(image)) == []) == passes


def test_what_is_shown_of_a_build_is_its_progress_and_every_complaint(tmp_path, capfd):
    (tmp_path / "builder").write_text("""import sys
print("Running Sphinx")
print("preparing documents... done")
print("page.md:3: WARNING: undefined label", file=sys.stderr)
sys.exit(3)""")
    with pytest.raises(subprocess.CalledProcessError) as failure:
        book.run_quietly([sys.executable, "builder"], tmp_path)
    out, err = capfd.readouterr()
    assert failure.value.returncode == 3 and out == ""
    assert sorted(err.splitlines()) == ["page.md:3: WARNING: undefined label", "writing the pages"]


@pytest.fixture
def tree(tmp_path):
    """A folder with something of all that pages are made from."""
    for name in book.BUILT_FROM:
        path = tmp_path / name / "a.py" if "." not in name else tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("a = 1\n")
    return tmp_path


def test_the_fingerprint_stays_while_nothing_changes(tree):
    key = book.fingerprint(tree)
    (tree / "src" / "__pycache__").mkdir()
    (tree / "src" / "__pycache__" / "a.pyc").touch()
    (tree / "src" / ".b.py.swp").touch()
    assert book.fingerprint(tree) == key


@pytest.mark.parametrize(
    "change", ["src/a.py", "notebooks/new.ipynb", "proofs/a.py", "_config.yml"]
)
def test_the_fingerprint_changes_with_anything_that_pages_are_made_from(tree, change):
    key = book.fingerprint(tree)
    (tree / change).write_text("changed\n")
    assert book.fingerprint(tree) != key


def test_nothing_is_built_while_nothing_has_changed(site, monkeypatch):
    monkeypatch.setattr(book, "run_quietly", None)
    assert book.build() == site / "index.html"


def test_ledger_and_errata_are_those_of_the_rows():
    for name, text in (("ledger.md", ledger.ledger_page()), ("errata.md", ledger.errata_page())):
        assert (book.ROOT / "book" / name).read_text() == text.rstrip() + "\n"


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_build_that_fails_leaves_the_last_good_pages(tmp_path, failure):
    html = tmp_path / "html"
    html.mkdir()
    (html / "index.html").write_text("good")
    with pytest.raises(failure), book.last_good_kept(html):
        html.mkdir()
        (html / "index.html").write_text("half")
        raise failure
    assert (html / "index.html").read_text() == "good"
    with book.last_good_kept(html):
        html.mkdir()
        (html / "index.html").write_text("new")
    assert (html / "index.html").read_text() == "new" and os.listdir(tmp_path) == ["html"]


def test_a_build_after_a_killed_one_keeps_the_last_good_pages(tmp_path):
    for name, text in (("html", "half"), ("html-before", "good")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text(text)
    with pytest.raises(RuntimeError), book.last_good_kept(tmp_path / "html"):
        raise RuntimeError
    assert (tmp_path / "html" / "index.html").read_text() == "good"


def test_an_interrupted_build_leaves_no_process(tmp_path, monkeypatch):
    (tmp_path / "builder").write_text(
        "import time\nprint('preparing documents', flush=True)\ntime.sleep(60)"
    )

    def interrupted(line):
        raise KeyboardInterrupt

    monkeypatch.setattr(book, "progress", interrupted)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        book.run_quietly([sys.executable, "builder"], tmp_path)
    assert time.monotonic() - started < 30
