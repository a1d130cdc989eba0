"""Editing the truth in Chromium: what is said before it is stored, and that every change can be undone."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

from quadriga.tasks.geometry import fill
from tests.browser import Browser
from tests.e2e.test_inference_in_browser import (
    BOX,
    MODEL,
    VIEW,
    check_nothing_wrong,
    press,
    show,
    state,
    truth_of,
    wait_for_page,
    wait_for_truth,
)
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Yield a server with the sample models."""
    with ServerProcess(tmp_path_factory.mktemp("editing") / "data", SAMPLE_MODELS) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def ids(server: ServerProcess) -> list[str]:
    """Store three images; return their ids, the oldest first."""
    paths = sorted((IMAGES / "detection").glob("*.jpg"))[:3]
    stored = [server.store(MODEL, path.read_bytes()) for path in paths]
    server.query({"id": {"in": stored}})
    return stored


def image_size(server, id_):
    """Return the width and height of an image in pixels."""
    image = server.call("GET", f"/api/inferences/{id_}")[1]["input"]
    return image["width"], image["height"]


DRAFT = "document.querySelector('[data-draft]')"


@pytest.mark.parametrize("score", [0, 1])
def test_what_the_first_change_stores_is_said_before_and_after(browser, server, ids, score):
    predicted = len(server.call("GET", f"/api/inferences/{ids[1]}")[1]["predictions"])
    assert predicted > 1
    show(browser, server, ids[1])
    assert browser.run(f"{DRAFT}.hidden")
    press(browser, "e")
    said = browser.run(f"{DRAFT}.innerText")
    assert said.startswith(f"Not stored yet. Your first change states all {predicted} objects")
    counts = "document.querySelector('[data-counts]').innerText"
    assert f"{predicted} not stored yet" in browser.run(counts)
    slider = (
        "document.querySelector('[data-score]')"  # it chooses what is shown, not what is stated
    )
    browser.run(f"{slider}.value = {score}; {slider}.dispatchEvent(new Event('input')); 0")
    assert "matched" not in browser.run("document.querySelector('.objects').innerText")
    assert truth_of(server, ids[1]) is None
    other = browser.run(
        "[...document.querySelectorAll('.pop button')].findIndex((b) => b.getAttribute('aria-pressed') === 'false') + 1"
    )
    press(browser, str(other))
    wait_for_truth(server, ids[1], lambda truth: truth is not None and len(truth) == predicted)
    browser.wait_for("!!document.querySelector('.toast')")
    toast = browser.run("document.querySelector('.toast').innerText")
    assert f"{predicted} predictions stored as truth: 1 changed, {predicted - 1} as predicted." in toast  # fmt: skip
    assert browser.run(f"{DRAFT}.hidden")
    assert f"{predicted} true" in browser.run(counts)
    check_nothing_wrong(browser, server, "404")


def test_editing_goes_on_after_the_first_change_is_undone(browser, server, ids):
    show(browser, server, ids[1])
    press(browser, "e", ".", "x")
    before = wait_for_truth(server, ids[1], lambda truth: truth is not None)
    press(browser, "z")
    wait_for_truth(server, ids[1], lambda truth: truth is None)
    browser.wait_for("document.querySelector('.toast')?.innerText.startsWith('Undone.')")
    assert not browser.run(f"{DRAFT}.hidden")
    press(browser, ".", "x")
    again = wait_for_truth(server, ids[1], lambda truth: truth is not None)
    assert len(again) == len(before)
    press(browser, "z")
    wait_for_truth(server, ids[1], lambda truth: truth is None)
    browser.wait_for("document.querySelector('.toast')?.innerText.startsWith('Undone.')")
    press(browser, "z")
    browser.wait_for("document.querySelector('.toast')?.innerText.startsWith('Nothing to undo.')")
    press(browser, "e")
    assert browser.run(f"{DRAFT}.hidden")
    assert "not stored yet" not in browser.run("document.querySelector('[data-counts]').innerText")
    check_nothing_wrong(browser, server, "404")


def test_undo_past_the_first_change_says_so_last_however_fast_it_is_pressed(browser, server, ids):
    show(browser, server, ids[1])
    # Each answer of the server comes late, so that the key is pressed again before it.
    browser.run("""(() => { const ask = window.fetch;
      window.said = [];
      new MutationObserver(() => { const toast = document.querySelector('.toast span'); if (toast) said.push(toast.textContent); })
        .observe(document.body, { childList: true, subtree: true });
      window.fetch = async (...all) => { await new Promise((done) => { setTimeout(done, 300); }); return ask(...all); }; })(); 0""")
    press(browser, "e", ".", "x")
    browser.wait_for("said.length === 1")
    press(browser, "z", "z")
    browser.wait_for("document.querySelector('[data-stated]').textContent.startsWith('removed')")
    assert browser.run("said.at(-1)") == "Nothing to undo."
    assert wait_for_truth(server, ids[1], lambda truth: truth is None) is None


def test_labels_stay_beside_an_object_that_is_moved_over_others(browser, server, ids):
    width, height = image_size(server, ids[1])
    moving = {"label": "star", "xmin": 0.4 * width, "ymin": 0.1 * height, "xmax": 0.5 * width, "ymax": 0.2 * height}  # fmt: skip
    still = {"label": "circle", "xmin": 0.3 * width, "ymin": 0.5 * height, "xmax": 0.7 * width, "ymax": 0.6 * height}  # fmt: skip
    state(server, ids[1], [moving, still])
    show(browser, server, ids[1])
    press(browser, "p", "e")
    place = "(({left, top}) => [left, top])(document.querySelector('.pop').getBoundingClientRect())"
    scale = browser.run("document.querySelector('canvas').getBoundingClientRect().height") / height
    places, steps_px = [browser.run(place)], 100
    for _ in range(steps_px):
        press(browser, "ArrowDown")
        places.append(browser.run(place))
    steps = [(abs(x - a), abs(y - b)) for (a, b), (x, y) in pairwise(places)]
    assert max(x for x, _ in steps) < 1
    assert max(y for _, y in steps) < scale + 1
    assert places[-1][1] > places[0][1] + 10 * scale
    # Each is stored after the one before, and leaving the page earlier asks.
    wait_for_truth(server, ids[1], lambda truth: truth[0]["ymin"] == moving["ymin"] + steps_px)


def test_an_edit_is_undone_from_the_next_page(browser, server, ids):
    state(server, ids[2], [BOX])
    show(browser, server, ids[2])
    press(browser, "e", ".", "x")
    wait_for_truth(server, ids[2], lambda truth: truth == [])
    browser.wait_for("!!document.querySelector('.toast')")
    press(browser, "j")
    wait_for_page(browser, ids[1])
    browser.wait_for("document.querySelector('.toast')?.innerText.includes('removed from the truth')")  # fmt: skip
    press(browser, "z")
    wait_for_page(browser, ids[2])
    assert wait_for_truth(server, ids[2], lambda truth: truth != []) == [BOX]
    check_nothing_wrong(browser, server)


def test_previous_leads_back_to_what_left_the_filter(browser, server, ids):
    named = " | ".join(f"id={id_}" for id_ in ids)
    query = "?" + urlencode({"q": f"ground_truth=exists:false & ({named})"})
    show(browser, server, ids[2], query)
    press(browser, "a")
    wait_for_page(browser, ids[1])
    wait_for_truth(server, ids[2], lambda truth: truth is not None)
    assert browser.run("document.querySelector('[rel=prev]').pathname.split('/').pop()") == ids[2]
    press(browser, "k")
    wait_for_page(browser, ids[2])
    check_nothing_wrong(browser, server)


@pytest.mark.parametrize("width", [390, 1200])
def test_editing_keeps_the_image_in_sight_above_its_list(browser, server, ids, width):
    show(browser, server, ids[1], width=width)
    press(browser, "e", ".", ".")
    top = browser.run("document.querySelector('[data-stage] canvas').getBoundingClientRect().top")
    assert 0 <= top < 300
    check_nothing_wrong(browser, server, "404")


@pytest.mark.parametrize("width", [390, 1440])
def test_the_mode_and_how_to_draw_stand_with_the_buttons(browser, server, ids, width):
    show(browser, server, ids[1], width=width)
    pressed = "['edit', 'draw'].map((name) => document.querySelector(`[data-do=${name}]`).getAttribute('aria-pressed') === 'true')"
    press(browser, "e")
    assert browser.run(pressed) == [True, False]
    press(browser, "d")
    assert browser.run(pressed) == [False, True]
    assert browser.run(f"{DRAFT}.innerText").startswith("Drag from one corner")
    buttons = "document.querySelector('[data-actions]').getBoundingClientRect()"
    assert browser.run(f"{DRAFT}.getBoundingClientRect().top - {buttons}.bottom") < 20
    if width == 1440:
        assert browser.run(f"{DRAFT}.getBoundingClientRect().bottom < innerHeight")
    press(browser, "Escape")
    assert browser.run(pressed) == [False, False]
    check_nothing_wrong(browser, server, "404")


def test_what_happened_is_said_once_on_the_next_page_and_covers_nothing(browser, server, ids):
    query = "?" + urlencode({"q": f"id=in:{','.join(ids)}"})
    show(browser, server, ids[2], query)
    press(browser, "n")
    wait_for_page(browser, ids[1])
    browser.wait_for("document.querySelector('.toast')?.innerText.startsWith('The image before: Stated: nothing there.')")  # fmt: skip
    covered = """[...document.querySelectorAll('[data-do]')].some((button) => { const box = button.getBoundingClientRect();
        const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2); return top && !button.contains(top); })"""
    assert not browser.run(covered)
    press(browser, "j")
    wait_for_page(browser, ids[0])
    assert browser.run("document.querySelector('.toast')") is None
    press(browser, "z")  # it can be undone still
    wait_for_page(browser, ids[2])
    assert wait_for_truth(server, ids[2], lambda truth: truth is None) is None
    browser.errors.clear()


OFFLINE = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}


def test_that_a_change_is_not_stored_is_in_sight(browser, server, ids):
    show(browser, server, ids[1], width=1000)
    press(browser, "e")
    browser.send("Network.emulateNetworkConditions", offline=True, **OFFLINE)
    press(browser, "3")
    browser.wait_for(
        "document.querySelector('[data-conflict]').textContent.includes('Not stored.')"
    )
    box = "document.querySelector('[data-conflict]').getBoundingClientRect()"
    assert browser.run(f"{box}.top >= 0 && {box}.bottom <= innerHeight")
    browser.send("Network.emulateNetworkConditions", offline=False, **OFFLINE)
    browser.run("document.querySelector('[data-conflict] button').click()")
    browser.wait_for("!document.querySelector('[data-conflict]').textContent")
    browser.errors.clear()


def test_what_was_accepted_before_is_not_said_beside_what_is_not_stored(browser, server, ids):
    show(browser, server, ids[2], "?" + urlencode({"q": f"id=in:{','.join(ids)}"}))
    press(browser, "a")
    wait_for_page(browser, ids[1])
    browser.wait_for("document.querySelector('.toast')?.innerText.includes('accepted as truth.')")
    browser.send("Network.emulateNetworkConditions", offline=True, **OFFLINE)
    press(browser, "n")
    browser.wait_for("document.querySelector('[data-conflict]').innerText.includes('Not stored.')")
    assert not browser.run("document.querySelector('.toast')?.innerText")
    browser.send("Network.emulateNetworkConditions", offline=False, **OFFLINE)
    browser.errors.clear()
    browser.run("document.querySelector('[data-conflict] button').click()")
    wait_for_truth(server, ids[1], lambda truth: truth == [])


CORNERS = [(60, 60), (120, 40), (180, 60), (200, 120), (160, 170), (100, 170), (50, 120)]


@pytest.fixture
def region(server: ServerProcess) -> str:
    """Store an image of a segmenter whose first label is the background's, with a region over all of it as truth; return its id."""
    image = min((IMAGES / "segmentation").glob("*.jpg")).read_bytes()
    id_ = server.store("shapes-segmenter", image)
    server.query({"id": id_})
    width, height = image_size(server, id_)
    frame = [{"x": x, "y": y} for x, y in ((0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1))]  # fmt: skip
    state(server, id_, [{"label": "background", "contour": [frame]}])
    return id_


def click(browser, point):
    """Click at a point of the image."""
    left, top, scale = browser.run(VIEW)
    for kind in ("mousePressed", "mouseReleased"):
        browser.send(
            "Input.dispatchMouseEvent", type=kind, x=left + point[0] * scale, y=top + point[1] * scale,
            button="left", buttons=1, clickCount=1,
        )  # fmt: skip


@pytest.mark.parametrize("end", ["Enter", "the first corner"])
def test_a_contour_is_drawn_corner_by_corner_over_others(browser, server, region, end):
    before = truth_of(server, region)
    show(browser, server, region, "?q=model%3Dshapes-segmenter")
    browser.run("sessionStorage.removeItem('quadriga-label'); 0")
    press(browser, "e", "d")
    assert "Enter" in browser.run(f"{DRAFT}.innerText")
    for corner in CORNERS:
        click(browser, corner)
    assert truth_of(server, region) == before  # nothing is stored yet
    if end == "Enter":
        press(browser, "Enter")
    else:
        click(browser, CORNERS[0])
    truth = wait_for_truth(server, region, lambda truth: len(truth) == 2)
    assert truth[0] == before[0]
    (ring,) = truth[1]["contour"]
    drawn = [point[axis] + 0.5 for point in ring for axis in "xy"]
    assert drawn == pytest.approx([value for corner in CORNERS for value in corner], abs=1)
    assert truth[1]["label"] not in {"background", "object"}
    check_nothing_wrong(browser, server)


def test_corners_are_taken_back_and_a_new_object_has_the_label_used_last(browser, server, region):
    show(browser, server, region, "?q=model%3Dshapes-segmenter")
    press(browser, "d")
    for corner in [*CORNERS, (300, 200)]:
        click(browser, corner)
    press(browser, "Backspace", "z")  # the last two
    names = browser.run("[...document.querySelectorAll('.pop button')].map((made) => made.lastChild.textContent)")  # fmt: skip
    browser.run(f"document.querySelectorAll('.pop button')[{names.index('star')}].click(); 0")
    press(browser, "Enter")
    truth = wait_for_truth(server, region, lambda truth: len(truth) == 2)
    assert (truth[1]["label"], len(truth[1]["contour"][0])) == ("star", 6)
    show(browser, server, region, "?q=model%3Dshapes-segmenter")  # the page anew
    press(browser, "d")
    for corner in CORNERS[:2]:
        click(browser, corner)
    press(browser, "Enter")  # two corners are no object
    browser.wait_for("document.querySelector('.toast')?.innerText.includes('three corners')")
    click(browser, CORNERS[2])
    press(browser, "Enter")
    truth = wait_for_truth(server, region, lambda truth: len(truth) == 3)
    assert truth[2]["label"] == "star"
    press(browser, "d")
    for corner in CORNERS[:3]:
        click(browser, corner)
    press(browser, "Escape", "Enter")
    assert len(truth_of(server, region)) == 3
    check_nothing_wrong(browser, server)


def test_what_was_stored_is_said_beside_the_labels_and_the_picture(browser, server, ids):
    show(browser, server, ids[1], width=1440)
    press(browser, "e", "1", "2")
    browser.wait_for("!!document.querySelector('.toast')")
    apart = """((a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top)"""
    for other in (".pop", "canvas"):
        assert browser.run(f"{apart}(document.querySelector('.toast').getBoundingClientRect(), document.querySelector('{other}').getBoundingClientRect())")  # fmt: skip


def _square(left, top, side):
    return [(left, top), (left + side, top), (left + side, top + side), (left, top + side)]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([[(5, 5), (5, 9)]], [[(5, 5), (5, 9)]]),  # one pixel wide: its polygon has no area
        ([_square(10, 10, 3)], [_square(11, 10, 3)]),
        ([_square(10, 10, 3)], [_square(14, 10, 3)]),  # side by side
        ([_square(0, 0, 1)], [[(0, 0), (1, 0)]]),
        ([_square(10, 10, 40), _square(20, 20, 10)], [_square(10, 10, 40)]),  # with a hole
        ([[(3, 40), (60, 4), (90, 70), (30, 90)]], [[(5, 40), (60, 8), (85, 70), (35, 88)]]),
        ([_square(100, 100, 900)], [_square(140, 160, 900)]),
        ([_square(0, 0, 50)], [_square(60, 60, 50)]),
    ],
)
def test_contours_overlap_as_an_evaluation_counts_their_pixels(browser, server, ids, a, b):
    show(browser, server, ids[0])
    masks = [fill([np.array(ring, np.int32) for ring in rings], 1200, 1200) for rings in (a, b)]
    counted = np.sum(masks[0] & masks[1]) / np.sum(masks[0] | masks[1])
    items = [{"contour": [[{"x": x, "y": y} for x, y in ring] for ring in rings]} for rings in (a, b)]  # fmt: skip
    script = "document.querySelector('script[src*=inference]').src.replace('inference.js', 'geometry.js')"
    made = "(item) => { const rings = m.ringsOf(item, 1200, 1200); return { source: item, rings, bounds: m.boundsOf(rings) }; }"
    shown = browser.run(f"import({script}).then((m) => m.overlap(...{json.dumps(items)}.map({made})))")  # fmt: skip
    assert shown == pytest.approx(counted, abs=0.02)
