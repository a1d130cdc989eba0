"""Several images chosen in Chromium: by keys and by mouse, tagged, found again, and what goes wrong on the way."""

import hashlib

import pytest

from tests.e2e.test_console_pages_in_browser import AXE, AXE_SHA256, open_page, press
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess

pytestmark = pytest.mark.browser

MODEL = "shapes-detector"
HOSTILE = "<img src=x onerror=document.title='taken'> & \"quoted\""
GRID = "/console/inferences?view=grid"
NOTE = "document.querySelector('[data-selection-note]').textContent"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("select") / "data", SAMPLE_MODELS / MODEL) as server:
        for path in sorted((IMAGES / "detection").glob("*.jpg"))[:8]:
            server.store(MODEL, path.read_bytes(), metadata='{"camera": "north"}')
        server.query({}, consistency="journal")
        yield server


@pytest.fixture(autouse=True)
def _nothing_is_tagged(server):
    """Take away the tags of the tests before."""
    for tagged in server.query({"meta.tag": {"exists": True}}):
        change(server, tagged["id"], {"remove": ["tag"]})


def shot(browser, number):
    """Give the focus to an image of the grid; return its id."""
    return browser.run(
        f"((shot) => {{ shot.focus(); return shot.pathname.split('/').pop(); }})(document.querySelectorAll('.grid .shot')[{number}])"
    )


def space(browser):
    for kind in ("keyDown", "keyUp"):
        browser.send("Input.dispatchKeyEvent", type=kind, key=" ", windowsVirtualKeyCode=32)


def said(browser):
    return browser.run(NOTE)


def tag_chosen(browser, tag):
    """Type a tag for what is chosen."""
    browser.run(
        "(document.querySelector('[data-tag] input').value = '', document.querySelector('[data-tag] input').focus())"
    )
    browser.send("Input.insertText", text=tag)
    press(browser, "Enter")


def change(server, inference, body):
    assert server.call("POST", f"/api/inferences/{inference}/metadata", body)[0] == 200


def test_keys_choose_images_that_are_tagged_and_found_by_the_tag(browser, server):
    open_page(browser, server, GRID)
    assert browser.run("document.querySelector('[data-selection]').hidden")
    ids = set()
    for number in (0, 2, 3):
        ids.add(shot(browser, number))
        space(browser)
    shot(browser, 3)
    space(browser)  # not this one
    ids.remove(shot(browser, 3))
    assert browser.run("document.querySelector('[data-selected]').textContent") == "2 selected"
    browser.run("document.querySelector('[data-tag] input').focus()")
    browser.send("Input.insertText", text=HOSTILE)
    press(browser, "Enter")
    browser.wait_for("document.querySelector('[data-selection-note]').textContent === '2 tagged.'")
    found = server.query({"meta.tag": HOSTILE})
    assert {one["id"] for one in found} == ids
    assert all(one["metadata"] == {"camera": "north", "tag": HOSTILE} for one in found)
    browser.run("document.querySelector('[data-find]').click()")
    browser.wait_for("location.search.includes('in%3A')")
    shown = "[...document.querySelectorAll('.grid .shot')].map((shot) => shot.pathname.split('/').pop())"
    assert set(browser.run(shown)) == ids
    assert browser.run("document.title") != "taken"
    for number in range(2):
        shot(browser, number)
        space(browser)
    browser.run("document.querySelector('[data-untag]').click()")
    browser.wait_for("document.querySelector('[data-selection-note]').textContent.includes('removed')")  # fmt: skip
    assert server.query({"meta.tag": {"exists": True}}) == []


def test_the_mouse_chooses_a_range_and_links_work_again_afterwards(browser, server):
    open_page(browser, server, GRID)
    browser.run("document.querySelector('[data-select]').click()")
    clicks = "((n, shift) => document.querySelectorAll('.grid .shot')[n].dispatchEvent(new MouseEvent('click', { bubbles: true, cancelable: true, shiftKey: shift })))"
    browser.run(f"{clicks}(1, false); {clicks}(4, true)")
    assert browser.run("document.querySelectorAll('[data-chosen]').length") == 4
    assert browser.run("location.pathname") == "/console/inferences"
    browser.send("Input.dispatchKeyEvent", type="keyDown", key="Escape", windowsVirtualKeyCode=27)
    assert browser.run("document.querySelectorAll('[data-chosen]').length") == 0
    assert browser.run("document.querySelector('[data-selection]').hidden")
    browser.run("document.querySelectorAll('.grid .shot')[1].click()")
    browser.wait_for("location.pathname.split('/').length === 4")


def test_what_could_not_be_tagged_is_said(browser, server):
    open_page(browser, server, GRID)
    for number in (0, 1):
        shot(browser, number)
        space(browser)
    browser.run("""window.fetch = ((real) => (url, options) => real(String(url).replace(/inferences\\/\\d+\\/metadata$/,
        (match, at, all) => (window.once ? match : (window.once = 1, 'inferences/1/metadata'))), options))(window.fetch); 0""")
    browser.run("document.querySelector('[data-tag] input').value = 'ask again'")
    browser.run("document.querySelector('[data-tag] button').click()")
    browser.wait_for(f"{NOTE}.startsWith('1 tagged. 1 not: ')")
    assert len(said(browser)) > len("1 tagged. 1 not: .")
    assert len(server.query({"meta.tag": "ask again"})) == 1
    browser.run(
        "window.fetch = ((real) => (url, options) => (String(url).endsWith('/metadata') ? Promise.reject(new TypeError()) : real(url, options)))(window.fetch); 0"
    )
    tag_chosen(browser, "nothing")
    browser.wait_for(f"{NOTE} === '0 tagged. 2 not: the server does not answer.'")
    assert browser.run("document.querySelector('[data-after]').hidden")
    assert server.query({"meta.tag": "nothing"}) == []


def test_all_that_is_shown_is_chosen_by_key_and_by_mouse(browser, server):
    open_page(browser, server, GRID)
    press(browser, "a")  # a letter of no meaning, before anything is chosen
    assert browser.run("document.querySelectorAll('[data-chosen]').length") == 0
    shot(browser, 1)
    space(browser)
    press(browser, "a")
    assert browser.run("document.querySelector('[data-selected]').textContent") == "8 selected"
    browser.run("document.querySelector('[data-tag] input').value = 'ask again'")
    browser.run("document.querySelector('[data-clear]').click()")
    assert browser.run("document.querySelectorAll('[data-chosen]').length") == 0
    browser.run("document.querySelector('[data-select]').click()")
    assert browser.run("document.querySelector('[data-tag] input').value") == ""
    assert browser.run("document.querySelector('[data-all]').textContent").startswith("Select all 8 shown")  # fmt: skip
    browser.run("document.querySelector('[data-all]').click()")
    assert browser.run("document.querySelectorAll('[data-chosen]').length") == 8


@pytest.mark.parametrize("hand", ["key", "mouse"])
def test_what_was_tagged_is_a_link_and_is_taken_back(browser, server, hand):
    ids = [one["id"] for one in server.query({})]
    change(server, ids[0], {"set": {"tag": "kept"}})
    open_page(browser, server, GRID)
    shot(browser, 0)
    space(browser)
    press(browser, "a")
    tag_chosen(browser, HOSTILE)
    browser.wait_for(f"{NOTE} === '8 tagged.'")
    assert len(server.query({"meta.tag": HOSTILE})) == 8
    link = browser.run("document.querySelector('[data-to-tagged]').getAttribute('href')")
    change(server, ids[3], {"set": {"tag": "somebody else's"}})
    if hand == "key":
        browser.run("document.activeElement.blur()")
        press(browser, "z")
    else:
        browser.run("document.querySelector('[data-undo]').click()")
    browser.wait_for(f"{NOTE} === 'Taken back on 7. 1 not: changed since, and left as it is.'")  # fmt: skip
    assert {one["id"]: one["metadata"].get("tag") for one in server.query({})} == {
        **dict.fromkeys(ids),
        ids[0]: "kept",
        ids[3]: "somebody else's",
    }
    assert browser.run("document.querySelector('[data-after]').hidden")
    change(server, ids[5], {"set": {"tag": HOSTILE}})
    open_page(browser, server, link)
    shown = "[...document.querySelectorAll('.grid .shot')].map((shot) => shot.pathname.split('/').pop())"
    assert browser.run(shown) == [ids[5]]


def test_a_removed_tag_is_put_back(browser, server):
    ids = [one["id"] for one in server.query({})]
    for number, one in enumerate(ids):
        change(server, one, {"set": {"tag": f"tag {number}"}})
    open_page(browser, server, GRID)
    for number in (0, 1):
        shot(browser, number)
        space(browser)
    browser.run("document.querySelector('[data-untag]').click()")
    browser.wait_for(f"{NOTE} === 'The tag of 2 removed.'")
    assert browser.run("document.querySelector('[data-to-tagged]').hidden")
    assert len(server.query({"meta.tag": {"exists": True}})) == 6
    press(browser, "z")
    browser.wait_for(f"{NOTE} === 'Taken back on 2.'")
    assert [one["metadata"]["tag"] for one in server.query({})] == [f"tag {n}" for n in range(8)]


def test_what_could_not_be_taken_back_is_taken_back_later(browser, server):
    ids = [one["id"] for one in server.query({})]
    for one in ids:
        change(server, one, {"set": {"tag": "before"}})
    open_page(browser, server, GRID)
    for number in (0, 1):
        shot(browser, number)
        space(browser)
    tag_chosen(browser, "mistake")
    browser.wait_for(f"{NOTE} === '2 tagged.'")
    browser.run("""window.fetch = ((real) => (url, options) => (window.isBack || !String(url).endsWith('/metadata') ? real(url, options)
        : Promise.reject(new TypeError())))(window.fetch); 0""")
    browser.run("document.querySelector('[data-undo]').click()")
    browser.wait_for(f"{NOTE} === 'Taken back on 0. 2 not: the server does not answer.'")  # fmt: skip
    assert len(server.query({"meta.tag": "mistake"})) == 2
    browser.run("window.isBack = true; document.querySelector('[data-undo]').click()")
    browser.wait_for(f"{NOTE} === 'Taken back on 2.'")
    assert browser.run("document.querySelector('[data-after]').hidden")
    assert len(server.query({"meta.tag": "before"})) == 8


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_the_bar_is_accessible_and_fits(browser, server, scheme, width):
    open_page(browser, server, GRID, scheme=scheme, width=width)
    shot(browser, 0)
    space(browser)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    if not AXE.exists():
        pytest.skip("axe-core is not there: `make browser` gets it with npm")
    script = AXE.read_text("utf-8")
    assert hashlib.sha256(script.encode()).hexdigest() == AXE_SHA256
    browser.run(script + "; 0")
    assert not browser.run(
        "axe.run().then((r) => r.violations.map((v) => [v.id, v.nodes.slice(0, 3).map((n) => n.html.slice(0, 300))]))"
    )


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Yield a server with more images than a page shows, of which those of one camera are more than a page, too."""
    with ServerProcess(tmp_path_factory.mktemp("many") / "data", SAMPLE_MODELS / MODEL) as server:
        image = (IMAGES / "detection" / "scene_05.jpg").read_bytes()
        for number in range(56):
            camera = "south" if number < 4 else "north"
            server.store(MODEL, image, metadata=f'{{"camera": "{camera}"}}')
        server.query({}, consistency="journal")
        yield server


def test_all_that_the_filter_finds_is_tagged_and_taken_back(browser, many):
    open_page(browser, many, "/console/inferences?q=meta.camera%3Dnorth&view=grid")
    assert browser.run("document.querySelectorAll('.grid .shot').length") == 48
    button = "document.querySelector('[data-select-all]')"
    assert browser.run(f"{button}.textContent") == "Tag all 52"
    kept = many.query({"meta.camera": "north"}, limit=100)[-1]["id"]
    change(many, kept, {"set": {"tag": "kept"}})
    browser.run(f"{button}.click()")
    chosen = "document.querySelector('[data-selected]').textContent"
    assert browser.run(chosen) == "All 52 that the filter finds"
    tag_chosen(browser, HOSTILE)
    browser.wait_for(f"{NOTE} === '52 tagged.'")
    tagged = many.query({"meta.tag": HOSTILE}, limit=100)
    assert len(tagged) == 52
    assert {one["metadata"]["camera"] for one in tagged} == {"north"}
    other = tagged[7]["id"]
    change(many, other, {"set": {"tag": "somebody else's"}})
    browser.run("document.querySelector('[data-undo]').click()")
    browser.wait_for(f"{NOTE} === 'Taken back on 51. 1 not: changed since, and left as it is.'")  # fmt: skip
    left = {one["id"]: one["metadata"]["tag"] for one in many.query({"meta.tag": {"exists": True}}, limit=100)}  # fmt: skip
    assert left == {kept: "kept", other: "somebody else's"}


def test_a_click_leaves_all_that_the_filter_finds(browser, many):
    open_page(browser, many, "/console/inferences?q=meta.camera%3Dnorth&view=grid")
    browser.run("document.querySelector('[data-select-all]').click()")
    assert browser.run("document.querySelectorAll('[data-chosen]').length") == 48
    browser.run("document.querySelectorAll('.grid .shot')[3].click()")
    assert browser.run("document.querySelector('[data-selected]').textContent") == "1 selected"
    browser.run("document.querySelector('[data-select-all]').click()")
    browser.run("document.querySelector('[data-find]').click()")
    browser.wait_for("new URLSearchParams(location.search).get('q') === 'meta.camera=north' && !new URLSearchParams(location.search).has('view')")  # fmt: skip


@pytest.mark.parametrize("view", ["table", "objects"])
def test_all_is_tagged_from_rows_and_objects_too(browser, many, view):
    tag = f"from {view}"
    open_page(browser, many, f"/console/inferences?q=meta.camera%3Dsouth&view={view}")
    button = "document.querySelector('[data-select-all]')"
    assert browser.run(f"{button}.textContent") == "Tag all 4"
    browser.run(f"{button}.click()")
    browser.run("document.dispatchEvent(new KeyboardEvent('keydown', { key: 'a', bubbles: true }))")
    assert browser.run("document.querySelector('[data-selected]').textContent") == "All 4 that the filter finds"  # fmt: skip
    tag_chosen(browser, tag)
    browser.wait_for(f"{NOTE} === '4 tagged.'")
    assert len(many.query({"meta.tag": tag}, limit=100)) == 4
    if view == "objects":
        browser.run("document.querySelector('.grid .shot').click()")  # a card leads to its image
        browser.wait_for("location.pathname.startsWith('/console/inferences/')")
