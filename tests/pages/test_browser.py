"""The built book in a headless Chromium without a network: every page of the contents, wide and narrow, light and dark."""

import json
import re
from functools import cache
from importlib.resources import files

import browser
import built as pages
import frame
import pytest

PAGES = ["book/intro", *(page for part in frame.contents().values() for page in part)]
SCROLLING_CODE = """[...document.querySelectorAll("div.highlight pre, div.output pre")]
    .filter((box) => box.scrollWidth > box.clientWidth + 1).map((box) => box.textContent.slice(0, 60))"""
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 400, "height": 800}
PAGE_BYTES, BOOK_BYTES = 1_000_000, 40_000_000
VISIBLE_JUMP = 0.02  # cumulative layout shift, 0 to 1; browsers call 0.1 good

SETTLED = """async () => {
    if (window.MathJax) await MathJax.startup.promise;
    await document.fonts.ready;
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""
SHIFT = """() => new Promise((done) => {
    let sum = 0;
    const add = (list) => list.getEntries().forEach((entry) => { sum += entry.value; });
    new PerformanceObserver(add).observe({type: "layout-shift", buffered: true});
    setTimeout(() => done(sum), 100);
})"""
EQUATIONS = """() => ({
    written: document.querySelectorAll("article .math").length,
    unset: [...document.querySelectorAll("article .math")].filter((m) => !m.querySelector("mjx-container")).map((m) => m.textContent.slice(0, 80)),
    wrong: [...document.querySelectorAll("mjx-merror, merror")].map((m) => m.title || m.textContent),
})"""
# what is wider than the window and not inside something that scrolls on its own
TOO_WIDE = """() => {
    const scrolls = (e) => e && e !== document.body && (/auto|scroll|hidden/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
    const wide = [...document.querySelectorAll("article *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !scrolls(e));
    return {excess: document.documentElement.scrollWidth - innerWidth, wide: wide.slice(0, 5).map((e) => e.outerHTML.slice(0, 120))};
}"""
MISSHAPEN = """() => [...document.querySelectorAll("article img")]
    .filter((i) => Math.abs(i.clientWidth * i.naturalHeight / (i.clientHeight * i.naturalWidth) - 1) > 0.02).map((i) => i.alt.slice(0, 60))"""
AXE = """(only) => axe.run({exclude: [["mjx-container"]]}, {preload: false, resultTypes: ["violations"], ...only})
    .then(({violations}) => violations.filter((v) => ["serious", "critical"].includes(v.impact))
        .flatMap((v) => v.nodes.map((n) => `${v.id}: ${n.target} ${n.any.concat(n.all).map((c) => c.message).join(" ").slice(0, 200)}`)))"""


@pytest.fixture(scope="module")
def chromium():
    yield from browser.launched()


def opened(chromium, site, page, **options):
    """A page in a window of its own, settled; what it asks for, and what it complains of, is kept with it."""
    window = chromium.new_context(viewport=WIDE, color_scheme="light", **options).new_page()
    window.set_default_timeout(180_000)  # busy machines
    window.asked, window.complaints = [], []
    window.on("request", lambda request: window.asked.append(request.url))
    window.on("requestfailed", lambda request: window.complaints.append(f"failed: {request.url}"))
    window.on(
        "console",
        lambda message: window.complaints.append(message.text) if message.type == "error" else None,
    )
    window.on("pageerror", lambda error: window.complaints.append(str(error)))
    window.goto(f"{(site / page).as_uri()}.html")
    window.evaluate(SETTLED)
    return window


def set_theme(window, theme):
    window.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)


def look(chromium, site, page):
    """Everything that one visit to a page shows, name -> finding."""
    window = opened(chromium, site, page)
    seen = {
        "asked": window.asked,
        "shift": window.evaluate(SHIFT),
        "equations": window.evaluate(EQUATIONS),
        "scrolling code": window.evaluate(SCROLLING_CODE),
    }
    window.set_viewport_size(NARROW)
    window.evaluate(SETTLED)
    seen["too wide"], seen["misshapen"] = window.evaluate(TOO_WIDE), window.evaluate(MISSHAPEN)
    window.set_viewport_size(WIDE)
    window.evaluate(
        "document.querySelectorAll('mjx-container').forEach((equation) => equation.replaceChildren())"
    )  # most of a page's nodes
    window.add_script_tag(path=files("axe_playwright_python") / "axe.min.js")
    seen["faults in light"] = window.evaluate(AXE, {})
    set_theme(window, "dark")
    seen["faults in dark"] = window.evaluate(
        AXE, {"runOnly": ["color-contrast", "link-in-text-block"]}
    )  # a theme changes colours only
    seen["complaints"] = window.complaints
    window.context.close()
    return seen


@pytest.fixture(scope="module")
def looks(chromium, site):
    return cache(lambda page: look(chromium, site, page))


@pytest.fixture(params=PAGES)
def seen(request, looks):
    return looks(request.param)


def test_no_request_leaves_the_built_folder(seen, site):
    assert seen["asked"]
    assert [
        url for url in seen["asked"] if not url.startswith((site.as_uri() + "/", "data:"))
    ] == []


def test_the_console_is_silent(seen):
    assert seen["complaints"] == []


def test_every_equation_is_set(seen):
    assert seen["equations"]["unset"] == [] and seen["equations"]["wrong"] == []


def test_no_box_of_code_or_output_scrolls_sideways(seen):
    assert seen["scrolling code"] == []


def test_nothing_jumps(seen):
    assert seen["shift"] < VISIBLE_JUMP


def test_axe_finds_no_serious_fault_in_light(seen):
    assert seen["faults in light"] == []


def test_axe_finds_no_serious_fault_in_dark(seen):
    assert seen["faults in dark"] == []


def test_a_narrow_page_does_not_scroll_sideways(seen):
    assert seen["too wide"]["wide"] == [] and seen["too wide"]["excess"] <= 0


def test_images_keep_their_shape(seen):
    assert seen["misshapen"] == []


def test_the_equations_are_there(looks):
    assert sum(looks(page)["equations"]["written"] for page in PAGES) > 500


FAULTS = """<main><h1>Faults</h1><img src="data:image/gif;base64,R0lGODlhAQABAAAAACw="><p style="color: #ccc; background: #fff">pale words</p>
    <article><div style="width: 900px">wide</div><span class="math">\\(x\\)</span></article></main>"""


def test_faults_are_found(chromium):
    window = chromium.new_page(viewport=NARROW)
    window.set_content(FAULTS)
    window.add_script_tag(path=files("axe_playwright_python") / "axe.min.js")
    found = {fault.split(":")[0] for fault in window.evaluate(AXE, {})}
    assert {"image-alt", "color-contrast"} <= found
    assert window.evaluate(TOO_WIDE)["wide"] and window.evaluate(EQUATIONS)["unset"]
    window.evaluate(
        "document.querySelector('h1').insertAdjacentHTML('beforebegin', '<div style=\"height: 300px\"></div>')"
    )
    assert window.evaluate(SHIFT) > VISIBLE_JUMP
    window.close()


# what needs no browser


@pytest.mark.parametrize("page", PAGES)
def test_headings_nest(site, page):
    levels = [
        int(heading.name[1])
        for heading in pages.soup(site / f"{page}.html").select(
            "article :is(h1, h2, h3, h4, h5, h6)"
        )
    ]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:])), levels


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_where_it_is_and_what_comes_next(site, page):
    soup = pages.soup(site / f"{page}.html")
    assert soup.select(".prev-next-footer a"), "no previous or next page"
    if page not in ("book/intro", "book/contents"):
        assert soup.select_one("article nav.place a[href$='contents.html']")


def test_the_place_of_a_chapter_has_the_number_in_its_name():
    chapters = [page for page in PAGES if page.startswith("notebooks/")]
    for chapter in chapters:
        assert frame.place(chapter).endswith(f"chapter {int(chapter[10:12])} of {len(chapters)}")
    assert frame.place("book/intro") is None and frame.place("book/ledger") == "Reference"


def test_every_training_record_is_on_the_page_of_execution_status():
    rows = [line.split(" | ") for line in frame.records().splitlines()[2:]]
    written = list((frame.ROOT / "notebooks" / "results").rglob("seed-*.json.xz"))
    assert sum(int(row[2]) for row in rows) == len(written) > 0


@pytest.mark.parametrize("page", PAGES)
def test_outside_links_of_the_frame_are_launch_buttons(site, page):
    soup = pages.soup(site / f"{page}.html")
    outside = [
        a
        for a in soup.find_all("a", href=True)
        if pages.is_elsewhere(a["href"]) and not a.find_parent("article")
    ]
    assert [a["href"] for a in outside if not a.find_parent(class_="dropdown-launch-buttons")] == []


def test_pages_and_book_are_small(site):
    own = {
        page: (site / f"{page}.html").stat().st_size
        + sum(
            (site / page).parent.joinpath(image["src"]).resolve().stat().st_size
            for image in pages.soup(site / f"{page}.html").select("article img")
        )
        for page in PAGES
    }
    assert {page: size for page, size in own.items() if size > PAGE_BYTES} == {}
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < BOOK_BYTES


def test_the_contents_have_a_line_for_every_page():
    lines = re.findall(
        r"\{doc\}`(?:\.\./)?([\w/]+)` \| (\S.*) \|",
        (browser.ROOT / "book" / "contents.md").read_text(),
    )
    listed = [path if path.startswith("notebooks/") else f"book/{path}" for path, _ in lines]
    assert sorted(listed) == sorted(set(PAGES) - {"book/intro", "book/contents"})
    assert [path for path in listed if path.startswith("notebooks/")] == [
        page for page in PAGES if page.startswith("notebooks/")
    ]


@cache
def prose(chapter):
    """The words of a chapter, without its code."""
    cells = json.loads((browser.ROOT / f"{chapter}.ipynb").read_text())["cells"]
    return " ".join(
        " ".join("".join(cell["source"]).split())
        for cell in cells
        if cell["cell_type"] == "markdown"
    ).lower()


@cache
def glossary():
    """Term -> what the glossary says of it."""
    return dict(
        re.findall(
            r"^(\w[\w -]*)\n((?:  .*\n)+)",
            (browser.ROOT / "book" / "glossary.md").read_text(),
            re.M,
        )
    )


def linked_terms(chapter):
    """The terms that a chapter links to the glossary, in its order."""
    return [
        (found[2] or found[1]).lower()
        for found in re.finditer(r"\{term\}`([^`<]+?)(?: <([^`>]+)>)?`", prose(chapter))
    ]


def test_the_glossary_leads_to_the_first_use_of_each_term():
    terms = [term.lower() for term in glossary()]
    assert len(terms) > 30 and terms == sorted(terms)
    chapters = [page for page in PAGES if page.startswith("notebooks/")]
    for term, text in glossary().items():
        stem = re.sub("x$", "", term.lower())  # matrix, matrices
        uses = re.compile(
            rf"(?<![\\\w]){stem}" + r"\b" * (len(stem) < 5)
        )  # no letter of a formula, no part of a word
        first = next(chapter for chapter in chapters if uses.search(prose(chapter)))
        assert re.search(r"First in \{doc\}`chapter \d+ <\.\./(\S+)>`", text)[1] == first, term
        assert term.lower() in linked_terms(first), (
            f"{first} introduces {term} without a link to it"
        )


@pytest.mark.parametrize("chapter", [page for page in PAGES if page.startswith("notebooks/")])
def test_a_chapter_links_a_term_of_the_glossary_once(chapter):
    terms = linked_terms(chapter)
    assert len(terms) == len(set(terms)) and set(terms) <= {term.lower() for term in glossary()}


@pytest.mark.parametrize("page", PAGES)
def test_no_heading_stands_on_another(site, page):
    headings = pages.soup(site / f"{page}.html").select("article :is(h1, h2, h3, h4, h5, h6)")
    bare = [
        h.get_text()
        for h in headings
        if (after := h.find_next_sibling()) is None
        or after.name == "section"
        or after.name in ("h2", "h3")
    ]
    assert bare == []


def test_the_citation_is_that_of_the_readme():
    block = re.compile(r"```bibtex\n(.*?)```", re.S)
    cited = [
        block.search((browser.ROOT / name).read_text())[1]
        for name in ("README.md", "book/intro.md")
    ]
    assert cited[0] == cited[1]


# what a reader does


def test_search_works_offline(chromium, site):
    window = opened(chromium, site, "search")
    window.goto(f"{(site / 'search.html').as_uri()}?q=commutant")
    window.wait_for_selector("ul.search li a")
    assert window.locator("ul.search li a[href*='08_rotary_positions']").count() > 0
    assert window.complaints == []
    window.context.close()


def test_the_theme_switch_changes_the_page_and_is_remembered(chromium, site):
    window = opened(chromium, site, "book/intro")
    ground = lambda: window.evaluate("getComputedStyle(document.body).backgroundColor")
    themes, grounds = [window.evaluate("document.documentElement.dataset.theme")], [ground()]
    for _ in range(3):
        window.locator(".theme-switch-button:visible").first.click()
        themes.append(window.evaluate("document.documentElement.dataset.theme"))
        grounds.append(ground())
    assert set(themes) == {"light", "dark"} and len(set(grounds)) == 2
    while window.evaluate("document.documentElement.dataset.theme") != "dark":
        window.locator(".theme-switch-button:visible").first.click()
    window.goto(f"{(site / 'book/notation').as_uri()}.html")
    assert window.evaluate("document.documentElement.dataset.theme") == "dark"
    window.context.close()


def test_a_copy_button_copies_the_code(chromium, site):
    window = opened(
        chromium,
        site,
        "notebooks/01_what_is_identified",
        permissions=["clipboard-read", "clipboard-write"],
    )
    cell = window.locator("div.cell_input div.highlight").first
    cell.hover()
    cell.locator("button.copybtn").click()
    window.wait_for_selector("button.copybtn.success")
    assert (
        window.evaluate("navigator.clipboard.readText()").strip()
        == cell.locator("pre").inner_text().strip()
    )
    window.context.close()


# the calculator's form


@pytest.fixture
def calculator(chromium, site):
    window = opened(chromium, site, "book/calculator")
    yield window
    assert window.complaints == []
    window.context.close()


def answer(window):
    return window.locator("#calculator-answer").inner_text()


def test_the_calculator_counts_what_is_typed(calculator):
    assert (
        answer(calculator)
        == "Of 2,359,296 parameters 98,304 are unidentified and 2,260,992 identified: a share of 95.83%."
    )
    calculator.get_by_label("E, width of a token").fill("8")
    calculator.get_by_label("H, query heads").fill("2")
    assert answer(calculator).startswith("Of 256 parameters 64 are unidentified")
    calculator.get_by_label("What turns").select_option("all")
    assert answer(calculator).startswith("Of 256 parameters 40 are unidentified")
    assert calculator.get_by_role("row", name="query-key maps").inner_text().split("\t")[:4] == [
        "query-key maps",
        "query-key",
        "8",
        "2 × 2 × 2 × 1²",
    ]


def test_the_calculator_names_what_is_impossible(calculator):
    heads = calculator.get_by_label("H, query heads")
    heads.fill("5")
    assert (
        calculator.get_by_role("alert").inner_text()
        == "embed_dim=768: is not divisible by heads=5; give head_dim"
    )
    assert (
        calculator.get_by_label("E, width of a token").get_attribute("aria-invalid") == "true"
        and answer(calculator) == ""
    )
    heads.fill("many")
    assert (
        calculator.get_by_role("alert").inner_text()
        == "heads='many': must be an integer of at least 1"
    )
    heads.fill("12")
    assert (
        answer(calculator)
        and not calculator.locator("[aria-invalid]").count()
        and not calculator.locator("#calculator-error").inner_text()
    )


def test_the_calculator_works_by_keyboard(calculator):
    calculator.locator("#known").focus()
    for _ in range(8):
        calculator.keyboard.press("ArrowDown")
    assert calculator.locator("#known").input_value() == "Llama 2 70B"
    assert answer(calculator).startswith("Of 150,994,944 parameters 132,096 are unidentified")
    calculator.keyboard.press("Tab")
    assert calculator.evaluate("document.activeElement.id") == "embed_dim"
    calculator.keyboard.press("Enter")
    assert answer(calculator).startswith("Of 150,994,944")


def test_known_layers_are_counted_as_the_python_beside_them_says(calculator):
    import math

    from attnid import Attention, count

    names = calculator.locator("#known option").all_inner_texts()[1:]
    assert len(names) > 10
    for name in names:
        calculator.locator("#known").select_option(name)
        code = calculator.locator("#calculator-python").inner_text()
        found = eval(code, {"math": math, "Attention": Attention, "count": count})
        assert answer(calculator).startswith(
            f"Of {found.parameters:,} parameters {found.unidentified:,} are unidentified"
        ), name


def test_the_calculator_s_links_lead_to_chapters(calculator, site):
    source = (browser.ROOT / "book" / "_static" / "calculator.js").read_text()
    chapters = set(re.findall(r'"(\d\d_\w+)"', source))
    assert len(chapters) >= 3
    assert [
        chapter for chapter in chapters if not (site / "notebooks" / f"{chapter}.html").exists()
    ] == []
