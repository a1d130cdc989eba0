"""Search in the console in Chromium: completion of the filter line by keyboard and by hand and recent lines."""

import hashlib
import json
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from quadriga.engine.config.settings import Settings
from quadriga.engine.console.filter_line import comparison_text, filter_words
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import create_key
from quadriga.store.query.request import QueryRequest
from tests.e2e.test_console_pages_in_browser import (
    ATTRIBUTE,
    AXE,
    AXE_SHA256,
    HOSTILE,
    ask,
    open_page,
    send_images,
)
from tests.server_process import SAMPLE_MODELS, ServerProcess

pytestmark = pytest.mark.browser

GRID = "/console/inferences"
RIGHT_TO_LEFT = "מצלמה צפון"
KEYS = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38}
FACETS = {"exact": True, "facets": [
    {"field": "model", "type": "string", "values": [{"value": "shapes-detector", "count": 5}], "histogram": []},
    {"field": "label", "type": "string", "values": [{"value": v, "count": 1} for v in ("ship", "a: b", "in", "")], "histogram": []},
    {"field": "meta.camera", "type": "string", "histogram": [], "values": [
        {"value": v, "count": 2} for v in ("north", "two words", 'say "x" & y', RIGHT_TO_LEFT, "true", HOSTILE, "x" * 256)]},
    {"field": "meta.altitude", "type": "number", "values": [], "histogram": [
        {"from": 0, "to": 50, "count": 1}, {"from": 50, "to": 100, "count": 1}]},
    {"field": "meta.night", "type": "boolean", "values": [{"value": True, "count": 3}], "histogram": []},
    {"field": "meta.odd & key", "type": "number", "values": [{"value": 1.5, "count": 3}], "histogram": []},
]}  # fmt: skip
"""What a server could answer about its facets."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield a server with images of several cameras."""
    every_image = ("--signals-per-s", "1000000")
    data = tmp_path_factory.mktemp("search") / "data"
    with ServerProcess(data, SAMPLE_MODELS, *every_image) as server:
        send_images(server, "detection", "shapes-detector")
        ask(server, "POST", "/api/inferences/query", {"consistency": "journal", "limit": 1})
        yield server


@pytest.fixture
def page(browser, server):
    """Return a function that opens a page in a browser that remembers nothing."""
    open_page(browser, server, GRID)
    browser.run("localStorage.clear(); sessionStorage.clear(); 0")
    return lambda path=GRID, **options: open_page(browser, server, path, **options)


def press(browser, key, modifiers=0):
    code = KEYS.get(key) or ord(key.upper())
    text = {"text": "\r"} if key == "Enter" else {} if key in KEYS else {"text": key}
    browser.send("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers, **text)  # fmt: skip
    browser.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers)  # fmt: skip


def write(browser, text):
    browser.send("Input.insertText", text=text)


def focus(browser):
    """Go to the field as a person does, and wait for what is stored."""
    press(browser, "/")
    browser.wait_for(
        "performance.getEntriesByType('resource').some((e) => e.name.includes('/facets?') && e.responseEnd > 0)"
    )


def listed(browser):
    """Return what the open list offers; empty where it is closed."""
    return browser.run(
        "[...document.querySelectorAll('.suggestions:not([hidden]) [role=option]')].map((o) => o.firstChild.textContent)"
    )


def line(browser):
    return browser.run("document.querySelector('[data-filter]').value")


def wait_for_item(browser, text):
    return browser.wait_for(
        f"[...document.querySelectorAll('.suggestions:not([hidden]) [role=option]')].some((o) => o.firstChild.textContent === {json.dumps(text)})"
    )


def module(browser, expression):
    """Return what an expression gives with the module of suggestions as `m`."""
    script = (
        "document.querySelector('script[src*=console]').src.replace('console.js', 'suggestions.js')"
    )
    return browser.run(f"import({script}).then((m) => {expression})")


def suggested(browser, text):
    """Return the lines that the items for a text with its caret at `^`, or at its end, would make."""
    caret = text.index("^") if "^" in text else len(text)
    text = text.replace("^", "")
    call = f"m.suggest({json.dumps(text)}, {caret}, {json.dumps(filter_words())}, {json.dumps(FACETS)})"
    answer = module(browser, call)
    return [text[: answer["start"]] + i["text"] + text[answer["end"] :] for i in answer["items"]]


def violations(browser):
    """Return what axe finds on the page as it is."""
    if not AXE.exists():
        pytest.skip("axe-core is not there: `make browser` gets it with npm")
    script = AXE.read_text("utf-8")
    assert hashlib.sha256(script.encode()).hexdigest() == AXE_SHA256
    browser.run(script + "; 0")
    return browser.run(
        "axe.run().then((r) => r.violations.map((v) => [v.id, v.nodes.slice(0, 3).map((n) => n.html.slice(0, 300))]))"
    )


VALUES = ["north", "two words", "", "1", "1e5", "-3", "true", "in", "ne", "gt:5", "in:a,b", "a, b", 'say "x"', "a&b", "(x)", "a|b", "!a",
          "a:b", "ends ", " begins", "é", "naïve café", RIGHT_TO_LEFT, "\u202eabc", "\\", "line\nbreak", HOSTILE, ATTRIBUTE, "a=b", "日本",
          "a\u0301", "x/y.z@w+v-u", True, False, 0, 1.5, -2e-7, 123456, 0.1 + 0.2, 120.5]  # fmt: skip


def test_values_are_written_as_the_server_writes_them(browser, page):
    page()
    written = module(browser, f"{json.dumps(VALUES)}.map(m.valueText)")
    assert [f"meta.key={text}" for text in written[:-4]] == [
        comparison_text("meta.key", value) for value in VALUES[:-4]
    ]
    for value, text in zip(VALUES, written, strict=True):
        tree = QueryRequest(where=f"meta.key={text} & meta.z=9").parse_filter()
        assert tree == QueryRequest(where={"and": [{"meta.key": value}, {"meta.z": 9}]}).parse_filter()  # fmt: skip
        if isinstance(value, str) and value:
            alone = QueryRequest(where=f"label={text}").parse_filter()
            assert alone == QueryRequest(where={"label": value}).parse_filter()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("cam", ["meta.camera="]),
        ("lab", ["label="]),
        ("camera=no", ["meta.camera=no", "meta.camera=north"]),
        ("CAMERA=no", ["meta.camera=no", "meta.camera=north"]),
        ("meta.camera==north", ["meta.camera=north"]),
        ("meta.camera != north", ["meta.camera=ne:north"]),
        ("altitude>=100", ["meta.altitude=ge:100"]),
        ("meta.altitude<5", ["meta.altitude=lt:5", "meta.altitude=lt:50"]),
        ("meta.camera=two", ["meta.camera=two words"]),
        ("meta.camera=say", ['meta.camera="say \\"x\\" & y"']),
        ('meta.camera="say \\"x', ['meta.camera="say \\"x\\" & y"']),
        ("meta.camera=צפון", [f'meta.camera="{RIGHT_TO_LEFT}"']),
        ("meta.camera=tr", ['meta.camera="true"']),
        ("meta.camera=<scr", [f'meta.camera="{HOSTILE}"']),
        ("meta.camera=in:north,tw", ["meta.camera=in:north,two words"]),
        ("meta.camera=in:no^,two words", ["meta.camera=in:north,two words"]),
        ("label=ship & (meta.camera=no^ | label=in)", ["label=ship & (meta.camera=north | label=in)"]),
        ("!meta.camera=nor", ["!meta.camera=north"]),
        ("label=a", ['label="a: b"']),
        ("label=ship", ["label=ship:ge:"]),
        ('label="a: b":sc', ['label="a: b":score:']),
        ("label=ship:ge:", ["label=ship:ge:0.5", "label=ship:ge:0.8", "label=ship:ge:0.9"]),
        ("odd", ['"meta.odd & key"=']),
        ('"meta.odd & key"=1', ['"meta.odd & key"=1.5']),
        ("ts>2026-11-25", ["ts=ge:2026-11-26T00:00:00Z"]),
        ("ts<=2026-12-31", ["ts=lt:2027-01-01T00:00:00Z"]),
        ("ts>=2026-11-25", ["ts=ge:2026-11-25T00:00:00Z"]),
        ("ts=lt:2026-11-25", ["ts=lt:2026-11-25T00:00:00Z"]),
        ("ts>2026-11-25 10:30", ["ts=gt:2026-11-25T10:30:00Z"]),
        ("2026-11-25", ["ts=ge:2026-11-25T00:00:00Z", "ts=lt:2026-11-25T00:00:00Z",
                        "ts=ge:2026-11-25T00:00:00Z & ts=lt:2026-11-26T00:00:00Z"]),
        ("label=ship & !2026-11-25", ["label=ship & !ts=ge:2026-11-25T00:00:00Z", "label=ship & !ts=lt:2026-11-25T00:00:00Z",
                                      "label=ship & !(ts=ge:2026-11-25T00:00:00Z & ts=lt:2026-11-26T00:00:00Z)"]),
        ("!meta.camera=say", ['!meta.camera="say \\"x\\" & y"']),
        ("ground_truth=", ["ground_truth=exists:true", "ground_truth=exists:false"]),
        ("nort", ["meta.camera=north"]),
        ("score<0.5", ["box=score:lt:0.5"]),
        ("confidence >= 0.8", ["box=score:ge:0.8"]),
        ("score=", ["box=score:ge:0.5", "box=score:ge:0.8"]),
        ("low sc", ["box=score:lt:0.5"]),
        ("confid", ["box=score:lt:0.5", "box=score:ge:0.9"]),
        ("objec", ["predictions=ge:5", "predictions=0"]),
        ("count>3", ["predictions=gt:3"]),
        ("last w", ["ts=ge:-7d"]),
        ("unlab", ["ground_truth=exists:false"]),
        ("blur<-2", ["sig.image.blur=lt:-2"]),
        ("score<x", []),
        ("2026-02-30", []),
        ("constructor=", []),
        ("__proto__=x", []),
    ],
)  # fmt: skip
def test_what_is_typed_leads_to_the_right_form(browser, page, text, lines):
    page()
    offered = suggested(browser, text)
    assert offered[: len(lines)] == lines
    assert lines or not offered
    for complete in lines:
        if not complete.endswith(("=", ":")) and "in)" not in complete:
            QueryRequest(where=complete).parse_filter()


def test_no_offer_is_a_value_that_was_cut_or_what_is_there_already(browser, page):
    page()
    assert not [text for text in suggested(browser, "meta.camera=x") if "xxxx" in text]
    assert suggested(browser, "meta.camera=north") == []
    assert "meta.camera=" in suggested(browser, "")


def test_keys_alone_take_a_key_an_operator_and_a_value(browser, page):
    page()
    focus(browser)
    write(browser, "alt")
    wait_for_item(browser, "meta.altitude")
    assert browser.run("document.querySelector('[role=combobox]').ariaExpanded") == "true"
    press(browser, "ArrowDown")
    active = "document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))"
    assert browser.run(f"{active}.firstChild.textContent") == "meta.altitude"
    assert browser.run(f"{active}.ariaSelected") == "true"
    assert line(browser) == "alt"
    press(browser, "Enter")
    assert line(browser) == "meta.altitude="
    press(browser, "ArrowUp")
    press(browser, "ArrowDown")
    assert listed(browser)[0] == "gt:"
    press(browser, "ArrowDown")
    press(browser, "Tab")
    assert line(browser) == "meta.altitude=ge:"
    assert browser.run("document.activeElement.name") == "q"
    press(browser, "ArrowDown")
    press(browser, "Enter")
    assert line(browser).removeprefix("meta.altitude=ge:").isdigit()
    assert listed(browser) == []
    taken = line(browser)
    press(browser, "Enter")
    browser.wait_for("document.querySelectorAll('.chip').length === 1")
    assert parse_qs(urlsplit(browser.run("location.href")).query)["q"] == [taken]
    assert browser.run("document.querySelectorAll('.shot').length") > 0


def test_escape_closes_the_list_and_what_was_typed_stays(browser, page):
    page()
    focus(browser)
    write(browser, "camera==north")
    wait_for_item(browser, "meta.camera=north")
    press(browser, "ArrowDown")
    press(browser, "Escape")
    assert listed(browser) == []
    assert line(browser) == "camera==north"
    assert browser.run("document.activeElement.name") == "q"
    press(browser, "Escape")
    assert browser.run("document.activeElement.name") is None
    # Enter without a chosen item searches for what was typed.
    press(browser, "/")
    press(browser, "Enter")
    browser.wait_for("new URLSearchParams(location.search).get('q') === 'camera==north'")


def test_a_hostile_value_is_taken_by_hand_and_finds_its_images(browser, page):
    page()
    focus(browser)
    for value in (HOSTILE, ATTRIBUTE):
        browser.run("document.querySelector('[data-filter]').value = ''; 0")
        write(browser, "meta.camera=")
        wait_for_item(browser, value)
        box = browser.run(
            "((o) => { const r = o.getBoundingClientRect(); return [r.x + 20, r.y + r.height / 2]; })"
            f"([...document.querySelectorAll('[role=option]')].find((o) => o.firstChild.textContent === {json.dumps(value)}))"
        )
        click(browser, *box)
        assert line(browser) == comparison_text("meta.camera", value)
        assert browser.run("document.activeElement.name") == "q"
        assert browser.run("document.title") != "taken"
    # The browser's own undo takes it back.
    browser.run("document.execCommand('undo')")
    assert line(browser) == "meta.camera="
    browser.run("document.execCommand('redo')")
    assert line(browser) == comparison_text("meta.camera", ATTRIBUTE)
    press(browser, "Enter")
    browser.wait_for("document.querySelectorAll('.chip').length === 1")
    assert browser.run("document.querySelectorAll('.shot').length") > 1
    assert browser.run("document.title") != "taken"


def click(browser, x, y, modifiers=0):
    for kind in ("mousePressed", "mouseReleased"):
        browser.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1, modifiers=modifiers)  # fmt: skip


def test_one_request_for_each_page_and_none_for_keys(browser, page):
    page()
    focus(browser)
    write(browser, "2026")
    page(f"{GRID}?q=label%3Dstar")
    requests = "performance.getEntriesByType('resource').filter((e) => e.name.includes('/api/inferences/facets')).length"
    assert browser.run(requests) == 0
    focus(browser)
    for letter in "meta.ca":
        write(browser, letter)
    press(browser, "Escape")
    press(browser, "Escape")
    press(browser, "/")
    assert browser.run(requests) == 1


@pytest.mark.parametrize("query", ["meta.altitude=gt:", "label=ship &", "model=none", "label=none"])
def test_a_filter_that_finds_nothing_has_completion_too(browser, page, query):
    page(f"{GRID}?q={quote(query)}")
    focus(browser)
    write(browser, "camera=nort")
    wait_for_item(browser, "north")


MEANT = [
    ("score<0.9", "box=score:lt:0.9"),
    ("confidence", "box=score:lt:0.5"),
    ("objects", "predictions=ge:5"),
    ("cameras=north", "meta.camera=north"),
    ("labell=star", "label=star"),
    ("model=shape-detector", "model=shapes-detector"),
    ("label=Star", "label=star"),
    ("meta.camera=nort", "meta.camera=north"),
]
"""Lines, and what is offered instead; the last three are filters, for whose inferences the live page waits."""


@pytest.mark.parametrize(
    ("path", "typed", "meant"),
    [(GRID, *case) for case in MEANT] + [("/console/live", *case) for case in MEANT[:-3]],
)
def test_what_was_meant_is_one_click_away(browser, page, path, typed, meant):
    page(f"{path}?q={quote(typed)}")
    link = "document.querySelector('main a[data-meant]')"
    assert browser.run(f"{link}.innerText") == meant
    assert violations(browser) == []
    browser.run(f"{link}.click()")
    browser.wait_for(f"new URLSearchParams(location.search).get('q') === {json.dumps(meant)}")
    assert browser.run("document.querySelector('.field-error')") is None
    assert browser.run("location.pathname") == path


@pytest.mark.parametrize("path", [GRID, "/console/live"])
@pytest.mark.parametrize(
    ("typed", "meant"),
    [("unsure star", "box=score:lt:0.5 & label=star"), ("Tagged", "meta.tag=exists:true")],
)
def test_an_everyday_word_is_sent_and_opens_its_only_meaning(browser, page, path, typed, meant):
    page(path)
    focus(browser)
    write(browser, typed)
    press(browser, "Enter")
    browser.wait_for(f"new URLSearchParams(location.search).get('q') === {json.dumps(meant)}")
    assert browser.run("location.pathname") == path
    assert browser.run("document.querySelector('.field-error')") is None
    assert browser.run("document.querySelectorAll('.chip').length") == meant.count("&") + 1


def test_a_saved_view_is_offered_by_its_name_and_shows_what_it_finds(browser, page, server):
    named = "Near ground"
    ask(server, "PUT", f"/api/views/{quote(named)}", {"query": "meta.altitude=lt:105"})
    hostile = HOSTILE.replace("/", "")
    ask(server, "PUT", f"/api/views/{quote(hostile)}", {"query": "label=ring"})
    page(f"{GRID}?q=label%3Dstar")
    focus(browser)
    wait_for_item(browser, named)
    wait_for_item(browser, hostile)
    write(browser, "near g")
    browser.wait_for("document.querySelectorAll('.suggestions [role=option]').length === 1")
    press(browser, "ArrowDown")
    press(browser, "Enter")
    browser.wait_for("new URLSearchParams(location.search).get('q') === 'meta.altitude=lt:105'")
    assert browser.run("document.querySelectorAll('.chip').length") == 1
    assert browser.run("document.title") != "taken"


def test_the_name_of_a_new_view_is_written_at_once(browser, page):
    page(f"{GRID}?q=label%3Dstar")
    browser.run("[...document.querySelectorAll('summary')].find((s) => s.innerText === 'Save as a view').click()")  # fmt: skip
    browser.wait_for("document.activeElement.name === 'name'")


def test_yesterday_is_offered_by_its_word(browser, page):
    page()
    focus(browser)
    write(browser, "yester")
    browser.wait_for("document.querySelector('.suggestions:not([hidden]) [role=option]')?.innerText.includes('yesterday')")  # fmt: skip
    press(browser, "ArrowDown")
    press(browser, "Enter")
    QueryRequest(where=line(browser)).parse_filter()
    assert line(browser).count("ts=") == 2


def test_the_example_in_the_field_finds_something(browser, page):
    page()
    hint = browser.run("document.querySelector('[data-filter]').placeholder")
    page(f"{GRID}?q={quote(hint.split('such as ')[1])}")
    assert browser.run("document.querySelectorAll('.shot').length") > 0


def test_recent_lines_are_offered_and_forgotten(browser, page):
    page()
    for text in ("label=star", "camera==north", "meta.camera=north", "label=star", "nothing="):
        browser.run("document.querySelector('[data-filter]').focus()")
        write(browser, text)
        press(browser, "Enter")
        browser.wait_for(f"new URLSearchParams(location.search).get('q') === {json.dumps(text)}")
        page()
    browser.run("document.querySelector('[data-filter]').focus()")
    assert listed(browser)[:3] == ["label=star", "meta.camera=north", "Forget these"]
    assert browser.run("Object.keys(localStorage)") == ["quadriga.recent:/console/inferences"]
    # What is typed by others of this page, as links, is no line that was searched.
    press(browser, "ArrowDown")
    press(browser, "ArrowDown")
    press(browser, "Enter")
    browser.wait_for("new URLSearchParams(location.search).get('q') === 'meta.camera=north'")
    browser.run("document.querySelector('[data-filter]').focus()")
    assert listed(browser)[:2] == ["label=star", "Forget these"]
    press(browser, "ArrowDown")
    press(browser, "ArrowDown")
    press(browser, "Enter")
    assert "Forget these" not in listed(browser)
    assert browser.run("localStorage.length") == 0


def test_at_most_ten_recent_lines_and_no_trust_in_what_is_kept(browser, page):
    page()
    key = "quadriga.recent:/console/inferences"
    for kept in ("{", "7", '{"a": 1}', json.dumps([1, None, HOSTILE, *map(str, range(30))])):
        browser.run(f"localStorage.setItem({json.dumps(key)}, {json.dumps(kept)}); 0")
        page()
        browser.run("document.querySelector('[data-filter]').focus()")
        assert "model" in listed(browser)
    assert listed(browser).index("Forget these") == 10
    assert listed(browser)[0] == HOSTILE
    assert browser.run("document.title") != "taken"


@pytest.mark.parametrize("width", [1200, 360])
def test_recent_lines_can_be_told_apart_by_their_ends_and_the_list_moves_nothing(
    browser, page, width
):
    page(width=width)
    begin = "model=shapes-detector & meta.camera=in:north,east,south,west & meta.altitude=ge:100 & ts=ge:-24h & label="
    lines = json.dumps([f"{begin}{label}" for label in ("star", "circle")])
    key = "quadriga.recent:/console/inferences"
    browser.run(f"localStorage.setItem({json.dumps(key)}, {json.dumps(lines)}); 0")
    grid = "JSON.stringify(document.querySelector('.grid').getBoundingClientRect())"
    before = browser.run(grid)
    browser.run("document.querySelector('[data-filter]').focus()")
    names = "[...document.querySelectorAll('.suggestions:not([hidden]) [role=option]')].slice(0, 2).map((o) => o.firstChild)"
    assert browser.run(f"{names}.map((n) => n.textContent.split('=').pop())") == ["star", "circle"]
    assert browser.run(f"{names}.every((n) => n.scrollWidth <= n.clientWidth && n.scrollHeight <= n.clientHeight)")  # fmt: skip
    assert browser.run(grid) == before


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_axe_finds_nothing_while_the_list_is_open(browser, page, scheme, width):
    page(f"{GRID}?q=label%3Dstar", scheme=scheme, width=width)
    browser.run(
        'localStorage.setItem("quadriga.recent:/console/inferences", \'["label=ring"]\'); 0'
    )
    browser.run("document.querySelector('[data-filter]').focus()")
    press(browser, "ArrowDown")
    press(browser, "ArrowDown")
    assert len(listed(browser)) > 8
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("(({left, right}) => left >= 0 && right <= innerWidth)(document.querySelector('.suggestions').getBoundingClientRect())")  # fmt: skip
    assert violations(browser) == []


def test_more_like_this_is_one_link_away(browser, page, server):
    def is_embedded():
        return server.request("GET", f"/api/inferences/{newest}/similar")[0] == 200

    newest = ask(server, "POST", "/api/inferences/query", {"limit": 1})["inferences"][0]["id"]
    server.wait_until(is_embedded)  # embeddings are made a moment after the answer
    page(f"{GRID}/{newest}?q=meta.altitude%3Dge:103")
    browser.run("document.querySelector('a[href*=\"/similar\"]').click()")
    browser.wait_for("location.pathname.endsWith('/similar')")
    texts = browser.run("[...document.querySelectorAll('.grid:not(.origin) .shot')].map((shot) => shot.innerText)")  # fmt: skip
    assert len(texts) > 5
    assert all("similarity" in text for text in texts)
    for scheme in ("light", "dark"):
        for width in (1200, 360):
            page(f"{GRID}/{newest}/similar", scheme=scheme, width=width)
            assert browser.run("document.documentElement.scrollWidth <= innerWidth")
            assert violations(browser) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_the_strip_has_the_neighbours_within_the_filter(browser, page, server, scheme, width):
    where = {"where": "meta.altitude=ge:105", "order": "ts", "limit": 9}
    ids = [stored["id"] for stored in ask(server, "POST", "/api/inferences/query", where)["inferences"]]  # fmt: skip
    page(f"{GRID}/{ids[4]}?q=meta.altitude%3Dge%3A105&order=ts", scheme=scheme, width=width)
    strip = "[...document.querySelectorAll('.strip .shot')]"
    assert browser.run(f"{strip}.map((a) => a.href?.split('/').at(-1).split('?')[0] ?? null)") == [
        *ids[1:4],
        None,
        *ids[5:8],
    ]
    assert browser.run(f"{strip}.every((a) => a.querySelector('img').naturalWidth > 0)")
    assert browser.run(f"{strip}.every((a) => {{ const r = a.getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth && r.width > 15; }})")  # fmt: skip
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert violations(browser) == []
    browser.run(f"{strip}[5].click()")
    browser.wait_for(f"location.pathname.endsWith('{ids[6]}')")
    assert "order=ts" in browser.run("location.search")


def test_log_out_forgets_the_recent_lines(browser, tmp_path):
    settings = Settings(models=str(SAMPLE_MODELS / "shapes-detector"), data=str(tmp_path / "data"))
    migrate(settings.database_url)
    with writer_engine(settings.database_url) as engine:
        key = create_key(engine, name="mara", roles=["read"])[1]
    with ServerProcess(tmp_path / "data", SAMPLE_MODELS / "shapes-detector") as server:
        browser.open(f"http://{server.host}/console/inferences")
        browser.run(f"document.querySelector('[name=key]').value = '{key}'; 0")
        browser.run("document.querySelector('form').requestSubmit()")
        browser.wait_for("!!document.querySelector('[data-filter]')")
        browser.run("document.querySelector('[data-filter]').focus()")
        write(browser, "model=shapes-detector")
        press(browser, "Enter")
        browser.wait_for("document.querySelectorAll('.chip').length === 1")
        assert browser.run("localStorage.length") == 1
        browser.open(f"http://{server.host}/console/you")
        browser.run("document.querySelector('form[action$=\"/console/logout\"]').requestSubmit()")
        browser.wait_for("!!document.querySelector('[name=key]') || document.body.innerText.includes('Log in')")  # fmt: skip
        assert browser.run("localStorage.length") == 0
