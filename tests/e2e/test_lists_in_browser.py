"""Lists of inferences in Chromium: names that differ at their ends are told apart in facets and on cards."""

import json

import pytest

from tests.e2e.test_console_pages_in_browser import open_page
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

MODEL = "shapes-detector"
GRID = "/console/inferences?view=grid"
CAMERAS = [f"harbour-entrance-of-the-old-town-quay-camera-{side}" for side in ("east", "west")]
ENDS = """(selector) => [...document.querySelectorAll(selector)].filter((element) => element.textContent.includes("harbour-")).map((element) => {
  const text = document.createTreeWalker(element, NodeFilter.SHOW_TEXT).nextNode(), range = document.createRange();
  range.setStart(text, text.length - 1);
  range.setEnd(text, text.length);
  const end = range.getBoundingClientRect(), box = element.getBoundingClientRect();
  return [text.data.slice(-4), end.width > 0 && end.right <= box.right + 1 && end.bottom <= box.bottom + 1 && box.right <= innerWidth];
})"""
"""For each element with a name: the end of the name, and whether its last letter is within the element and the page."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("lists") / "data", SAMPLE_MODELS / MODEL) as server:
        for number, path in enumerate(sorted((IMAGES / "detection").glob("*.jpg"))[:6]):
            metadata = json.dumps({"camera": CAMERAS[number % 2], "lens": "x" * 200 + str(number % 2)})  # fmt: skip
            server.store(MODEL, path.read_bytes(), metadata=metadata)
        server.query({}, consistency="journal")
        yield server


@pytest.mark.parametrize("width", [1200, 360])
def test_names_that_differ_at_their_ends_are_whole(browser, server, width):
    open_page(browser, server, GRID, width=width)
    cards = browser.run(f"({ENDS})('.shot .words > span > :first-child')")
    assert sorted(cards) == [[side, True] for side in ("east", "west") for _ in range(3)]
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    if width < 1000:
        browser.run("location.hash = 'facets'")
    facets = browser.run(f"({ENDS})('.facet li a span:nth-child(2)')")
    assert sorted(facets) == [["east", True], ["west", True]]


def test_a_very_long_value_is_whole_once_it_has_the_focus(browser, server):
    open_page(browser, server, GRID)
    value = "document.querySelector('.facet li a span[title^=xxxx]')"
    assert browser.run(f"{value}.scrollHeight > {value}.clientHeight")
    browser.send("Input.dispatchKeyEvent", type="keyDown", key="Tab", windowsVirtualKeyCode=9)
    browser.run(f"{value}.closest('a').focus()")
    assert browser.run(f"{value}.scrollHeight <= {value}.clientHeight")
