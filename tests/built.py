"""What can be wrong with a page of the built book."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

LOADED = {
    "script": "src",
    "link": "href",
    "img": "src",
    "source": "src",
    "iframe": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}


def pages(site):
    """Every page of the book; what the theme keeps in _static is no page."""
    return sorted(
        path for path in site.rglob("*.html") if "_static" not in path.relative_to(site).parts
    )


@cache
def soup(page):
    return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


@cache
def anchors(page):
    return {tag.get("id") or tag.get("name") for tag in soup(page).find_all(True)}


def loads(page):
    """The addresses of what a browser fetches to show the page."""
    for name, field in LOADED.items():
        yield from (tag[field] for tag in soup(page).find_all(name, attrs={field: True}))


def links(page):
    """The addresses that the page links to or moves on to."""
    yield from (tag["href"] for tag in soup(page).find_all("a", href=True))
    for tag in soup(page).find_all("meta", attrs={"http-equiv": re.compile("refresh", re.I)}):
        yield tag["content"].split("url=")[1]


def is_elsewhere(address):
    return bool(urlsplit(address).netloc)


def is_broken(page, address):
    """Whether an address inside the book leads to no file, or to no such place in it."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return False
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_file():
        return True
    return (
        bool(parts.fragment)
        and target.suffix == ".html"
        and unquote(parts.fragment) not in anchors(target)
    )


def broken(page):
    return sorted({address for address in (*links(page), *loads(page)) if is_broken(page, address)})


def fetched_from_elsewhere(page):
    return sorted({address for address in loads(page) if is_elsewhere(address)})


def fonts_from_elsewhere(stylesheet):
    """What a style sheet, or the style of a page, fetches from another host."""
    return re.findall(
        r"(?:url\(|@import\s+)\s*[\"']?((?:https?:)?//[^\"')\s]+)",
        stylesheet.read_text(encoding="utf-8"),
    )


def without_alternative_text(page):
    """Images that say nothing to somebody who does not see them; Sphinx falls back on the file's name."""

    def says_nothing(image):
        text = image.get("alt", "").strip()
        return not text or Path(text).name == Path(urlsplit(image["src"]).path).name

    return [image["src"] for image in soup(page).find_all("img") if says_nothing(image)]


def numbers(page):
    """The number of each labelled statement, figure and equation of a page, as references to it say it."""
    statements = {
        tag["id"]: tag.select_one(".caption-number") for tag in soup(page).select("div.proof[id]")
    }
    figures = {
        tag["id"]: tag.select_one("figcaption .caption-number")
        for tag in soup(page).select("figure[id]")
    }
    equations = {
        tag["id"].removeprefix("equation-"): tag.select_one(".eqno")
        for tag in soup(page).select("div.math[id]")
    }
    return {
        label: tag.get_text().strip(" \n#")
        for label, tag in {**statements, **figures, **equations}.items()
        if tag
    }


def citations(page):
    """How a page cites each work, in its order."""
    return [tag.get_text() for tag in soup(page).select(".bibtex-citation")]
