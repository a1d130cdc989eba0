"""Lists of inferences in Chromium: names that differ at their ends are told apart in facets and on cards."""

import json

import pytest

from tests.e2e.test_console_pages_in_browser import open_page
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess

pytestmark = pytest.mark.browser

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


BOX = {"label": "star", "xmin": 10, "ymin": 10, "xmax": 60, "ymax": 70}


def test_truth_of_the_same_image_is_taken_over_and_taken_back(browser, server):
    image = sorted((IMAGES / "detection").glob("*.jpg"))[7].read_bytes()
    first, second = (server.store(MODEL, image, metadata="{}") for _ in range(2))
    put = server.call("PUT", f"/api/inferences/{first}/ground-truth", {"annotations": [BOX], "source": "mara"})  # fmt: skip
    assert put[0] == 200
    open_page(browser, server, f"/console/inferences/{first}")
    assert browser.run("document.querySelector('.same-image a').href").endswith(f"/{second}")
    assert browser.run("document.querySelector('[data-take-truth]')") is None
    open_page(browser, server, f"/console/inferences/{second}")
    browser.run("document.querySelector('[data-take-truth]').click()")
    browser.wait_for("document.querySelector('.toast')?.textContent.includes('taken over')")
    (stored,) = server.query({"id": second})
    assert [item["label"] for item in stored["ground_truth"]] == ["star"]
    assert stored["ground_truth"][0]["xmax"] == 60
    assert browser.run("document.querySelector('[data-take-truth]').hidden")
    assert browser.run("document.querySelectorAll('[data-objects=truth] li').length") == 1
    browser.run("document.querySelector('.toast button').click()")
    browser.wait_for("document.querySelector('.toast')?.textContent.includes('Undone')")
    (stored,) = server.query({"id": second})
    assert stored["ground_truth"] is None
    assert not browser.run("document.querySelector('[data-take-truth]').hidden")
    browser.run("document.querySelector('[data-take-truth]').click()")
    browser.wait_for("document.querySelector('.toast')?.textContent.includes('taken over')")
    assert browser.run("document.querySelector('[data-take-truth]').hidden")
    (stored,) = server.query({"id": second})
    assert [item["label"] for item in stored["ground_truth"]] == ["star"]


def test_truth_that_is_gone_meanwhile_is_not_taken_over(browser, server):
    image = sorted((IMAGES / "detection").glob("*.jpg"))[8].read_bytes()
    first, second = (server.store(MODEL, image, metadata="{}") for _ in range(2))
    path = f"/api/inferences/{first}/ground-truth"
    assert server.call("PUT", path, {"annotations": [BOX], "source": "mara"})[0] == 200
    open_page(browser, server, f"/console/inferences/{second}")
    assert server.call("DELETE", path)[0] == 200
    browser.run("document.querySelector('[data-take-truth]').click()")
    browser.wait_for("document.querySelector('[data-take-note]').textContent.includes('not there any more')")  # fmt: skip
    (stored,) = server.query({"id": second})
    assert stored["ground_truth"] is None
