"""The frame of the pages, as an extension of Sphinx: each page says where it is and lays itself out at once; one lists what ran."""

import platform
import re
import struct
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
NUMERALS = ("I", "II", "III", "IV", "V", "VI")
PACKAGES = ("torch", "numpy", "scipy", "matplotlib", "jupyter-book", "myst-nb", "Sphinx")


def contents():
    """Part -> its pages, in the order of the contents; the front page is in none."""
    toc = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text(encoding="utf-8"))
    return {
        part["caption"]: [chapter["file"] for chapter in part["chapters"]] for part in toc["parts"]
    }


def place(page):
    """Where a page is, in words; None for the front page and what Sphinx adds."""
    chapters = [
        file for files in contents().values() for file in files if file.startswith("notebooks/")
    ]
    for numeral, (part, files) in zip(NUMERALS, contents().items()):
        if page in files and page in chapters:
            return f"Part {numeral}: {part} · chapter {chapters.index(page) + 1} of {len(chapters)}"
        if page in files:
            return part
    return None


def say_where(app, pagename, templatename, context, doctree):
    """Put the place above the title, with a link to the contents."""
    words = place(pagename)
    if words and "body" in context:
        link = f'<a href="{context["pathto"]("book/contents")}">Contents</a>'
        context["body"] = (
            f'<nav class="place" aria-label="Place in the book"><p>{link} · {words}</p></nav>\n'
            + context["body"]
        )


def size_images(app, pagename, templatename, context, doctree):
    """Give each PNG its width and height, so that the text below does not move when it comes, and a link to itself alone, at its full size."""
    sources = {
        name: app.srcdir / path
        for path, name in app.builder.images.items()
        if name.endswith(".png")
    }

    def sized(tag):
        if tag["name"] not in sources:
            return tag[0]
        width, height = struct.unpack(">II", sources[tag["name"]].read_bytes()[16:24])
        image = f'<img width="{width}" height="{height}"{tag["rest"]}'
        return (
            f'<a class="picture" href="{tag["source"]}">{image}</a>'
            if app.builder.name == "html"
            else image
        )

    picture = r'<img(?P<rest>[^>]*? src="(?P<source>[^"]*_images/(?P<name>[^"]+))"[^>]*>)'
    context["body"] = re.sub(picture, sized, context.get("body", ""))


def keep_punctuation(app, pagename, templatename, context, doctree):
    """Let no line begin with the comma that follows a short formula: a browser may break lines there."""
    formula = r'(<span class="math notranslate nohighlight">[^<]{1,60}</span>[,.;:)’”]+)'
    context["body"] = re.sub(formula, r'<span class="unbroken">\1</span>', context.get("body", ""))


def name_list_items(app, pagename, templatename, context, doctree):
    """Works cited stand in a list, as its items: docutils gives them a role that has been withdrawn."""
    context["body"] = context.get("body", "").replace('role="doc-biblioentry"', 'role="listitem"')


def name_states(app, pagename, templatename, context, doctree):
    """Say in words what myst-nb says by a mark that few fonts have."""
    context["body"] = context.get("body", "").replace("✅", "ran to its end")


def leave_out_thebe(app, pagename, templatename, context, doctree):
    """Drop the scripts that would run cells on a server elsewhere: no page has a button for it, and Sphinx adds them twice."""
    context["script_files"] = [
        script
        for script in context["script_files"]
        if "thebe" not in f"{script.filename} {script.attributes}"
    ]


def table(heads, rows):
    return "\n".join(
        f"| {' | '.join(map(str, row))} |" for row in (heads, ["---"] * len(heads), *rows)
    )


def versions():
    """The versions that this build runs with, as a Markdown table."""
    return table(
        ("Software", "Version"),
        [("Python", platform.python_version()), *((name, version(name)) for name in PACKAGES)],
    )


def records(folder=ROOT / "notebooks" / "results"):
    """The records of training runs, as a Markdown table: one row for all seeds with the same preset, case and provenance."""
    from attnid.training.records import read_record

    rows = Counter()
    for path in sorted(folder.rglob("seed-*.json.xz")):
        record = read_record(path)
        commit, *where = (
            str(record.provenance[name]) for name in ("commit", "data", "torch", "device")
        )
        rows[
            record.preset, path.parent.name, f"`{commit[:10]}{'+' * commit.endswith('+')}`", *where
        ] += 1
    if not rows:
        return "No records yet."
    written = [(preset, case, seeds, *rest) for (preset, case, *rest), seeds in rows.items()]
    return table(("Preset", "Case", "Seeds", "Commit", "Data", "PyTorch", "Device"), written)


def substitute(app, config):
    config.myst_substitutions = {
        **config.myst_substitutions,
        "versions": versions(),
        "records": records(),
    }


def setup(app):
    app.connect("config-inited", substitute)
    for change in (
        say_where,
        size_images,
        keep_punctuation,
        name_list_items,
        name_states,
        leave_out_thebe,
    ):
        app.connect("html-page-context", change, priority=900)
    app.add_js_file("equations.js", priority=900)  # after MathJax is configured, before it starts
    return {"parallel_read_safe": True, "parallel_write_safe": True}
