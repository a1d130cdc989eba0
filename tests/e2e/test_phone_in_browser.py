"""The console on a phone in Chromium: tables, charts and maps are whole at 390 px, and an image that is edited stays in sight."""

import base64
from datetime import UTC, datetime, timedelta

import cv2
import numpy as np
import pytest

from quadriga.engine.config.settings import Settings
from tests.e2e.test_console_pages_in_browser import open_page
from tests.e2e.test_times_in_browser import BARS, bounds, chosen_range
from tests.server_process import ServerProcess
from tests.two_versions import MODEL, answer_all, write_two_versions
from tests.unit.engine.drift_reports import drift_report, keep_report, numeric, report_id

pytestmark = pytest.mark.browser

WIDTHS = [360, 430]
WINDOWS = 14
OUT_OF_SIGHT = """(selector) => [...document.querySelectorAll(selector)].filter((element) => {
  const { left, right, width } = element.getBoundingClientRect();
  return !width || left < 0 || right > document.documentElement.clientWidth;
}).map((element) => element.outerHTML.slice(0, 200))"""
CUT = """(selector) => [...document.querySelectorAll(selector)].filter((element) =>
  element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 1).map((element) => element.innerText)"""
OVERLAPS = """(selector) => { const places = [...document.querySelectorAll(selector)].map((element) => element.getBoundingClientRect());
  return places.flatMap((a, number) => places.slice(number + 1).filter((b) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)).length; }"""
LETTERS_PX = """[...document.querySelectorAll('svg text')].map((text) => {
  const { a, b } = text.getScreenCTM();
  return Number.parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b); })"""


def send_tall_images(server):
    """Store narrow images of earlier days, whose times have their date."""
    image = base64.b64encode(cv2.imencode(".png", np.zeros((600, 240, 3), np.uint8))[1]).decode()
    inferences = [
        {
            "time": (datetime.now(UTC) - timedelta(days=3, minutes=number)).isoformat(),
            "image": image,
            "metadata": {"camera": "north"},
            "predictions": [],
        }
        for number in range(6)
    ]
    body = {"model": "tall", "version": "1", "task": "object_detection", "inferences": inferences}
    status, answer = server.call("POST", "/api/inferences", body)
    assert status == 200, answer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield a server with answers of two versions, an evaluation and windows of drift."""
    folder = tmp_path_factory.mktemp("phone")
    with ServerProcess(folder / "data", write_two_versions(folder / "models")) as server:
        answer_all(server)
        send_tall_images(server)
        status, job = server.call("POST", "/api/evaluations", {"model": MODEL, "by": ["meta.light"]})  # fmt: skip
        assert status == 202, job
        server.evaluation = job["id"]
        assert server.ended(job["id"])["state"] == "succeeded"
        settings = Settings(data=str(server.data))
        for number in range(WINDOWS):
            signals = [numeric("image.brightness", 50, 20), numeric("meta." + "a_long_key" * 5, 5, 5.2), numeric("image.blur", 5, 9, alarm=False)]  # fmt: skip
            keep_report(settings, drift_report(number, *signals))
        server.query({}, consistency="journal")
        yield server


def paths(server):
    """Return the pages with tables and charts."""
    return {
        "overview": "/console/",
        "models": "/console/models",
        "reports": "/console/reports",
        "model": f"/console/models/{MODEL}",
        "jobs": "/console/jobs",
        "label next": "/console/label?q=model%3Dtall&by=random",
        "evaluation": f"/console/reports/{server.evaluation}",
        "drift report": f"/console/reports/{report_id(WINDOWS - 1)}",
        "drift map": f"/console/models/{MODEL}/drift",
    }


@pytest.mark.parametrize("width", WIDTHS)
def test_every_cell_is_in_sight_and_whole(browser, server, width):
    cells = ".folds th[scope=row], .folds td, .windows td a, .matrix td, .matrix th"
    for name, path in paths(server).items():
        open_page(browser, server, path, width=width)
        found = browser.run(f"document.querySelectorAll('{cells}').length")
        assert found > 5, name
        assert browser.run(f"({OUT_OF_SIGHT})('{cells}')") == [], name
        assert browser.run(f"({CUT})('.folds th[scope=row], .folds td, .windows tbody th')") == []
        assert browser.run("[...document.querySelectorAll('.flush')].every((box) => box.scrollWidth <= box.clientWidth)"), name  # fmt: skip
        assert browser.run("document.documentElement.scrollWidth <= innerWidth"), name


@pytest.mark.parametrize("width", WIDTHS)
def test_a_value_has_the_head_of_its_column_beside_it(browser, server, width):
    open_page(browser, server, paths(server)["evaluation"], width=width)
    heads = browser.run("[...document.querySelector('[data-labels] tbody tr').cells].map((cell) => getComputedStyle(cell, '::before').content)")  # fmt: skip
    assert heads == ["none", '"AP"', "none", '"True"', '"Missed or taken for another"', '"Recall"', '"False"', '"Precision"']  # fmt: skip
    assert browser.run("document.querySelectorAll('[data-labels] tbody svg').length") == 5


@pytest.mark.parametrize("width", WIDTHS)
def test_heads_of_the_matrix_stand_apart_and_are_whole(browser, server, width):
    open_page(browser, server, paths(server)["evaluation"], width=width)
    names = browser.run("[...document.querySelectorAll('.matrix thead th, .matrix tbody th')].map((th) => th.innerText.trim())")  # fmt: skip
    assert {"triangle", "missed", "no object"} <= set(names)
    assert browser.run(f"({OVERLAPS})('.matrix thead th > span, .matrix tbody th')") == 0
    assert browser.run(f"({CUT})('.matrix thead th > span, .matrix tbody th')") == []


@pytest.mark.parametrize("width", WIDTHS)
def test_times_of_cards_do_not_overlap(browser, server, width):
    for query in ("q=model%3Dtall", f"q=model%3D{MODEL}", "view=objects"):
        open_page(browser, server, f"/console/inferences?{query}", width=width)
        assert browser.run("document.querySelectorAll('.shot time').length") > 5
        assert browser.run(f"({OVERLAPS})('.shot .words > span > *')") == 0
        assert browser.run(f"({OUT_OF_SIGHT})('.shot time')") == []


@pytest.mark.parametrize("width", WIDTHS)
def test_charts_fit_and_their_letters_can_be_read(browser, server, width):
    for path in ("/console/", "/console/inferences", paths(server)["evaluation"]):
        open_page(browser, server, path, width=width)
        letters = browser.run(LETTERS_PX)
        assert letters
        assert min(letters) >= 11
        assert browser.run(f"({OUT_OF_SIGHT})('.timeline a, .timeline text')") == []
        assert browser.run(f"({OVERLAPS})('.timeline text')") == 0


def test_a_finger_takes_a_range_of_bars(browser, server):
    browser.send("Emulation.setTouchEmulationEnabled", enabled=True)
    try:
        open_page(browser, server, "/console/inferences?q=model%3Dtall", width=390, height=844)
        browser.run("document.querySelector('.timeline').scrollIntoView({ block: 'center' })")
        bars = browser.run(BARS)
        assert len(bars) > 3
        first, last = bars[1], bars[-2]
        for kind, x in (("touchStart", first["x"]), ("touchMove", first["x"] + 10), ("touchMove", last["x"])):  # fmt: skip
            browser.send("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": first["y"]}])  # fmt: skip
        browser.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        assert chosen_range(browser)[0] == bounds(first, last)
    finally:
        browser.send("Emulation.setTouchEmulationEnabled", enabled=False)


def test_an_edited_image_stays_in_sight_with_its_labels_below(browser, server):
    inference = max(server.query({"model": MODEL, "version": "2"}), key=lambda row: len(row["predictions"]))  # fmt: skip
    open_page(browser, server, f"/console/inferences/{inference['id']}", width=390, height=700)
    browser.wait_for("document.querySelector('[data-still]')?.hidden")
    browser.run("document.querySelector('[data-do=edit]').scrollIntoView({ block: 'center' })")
    browser.run("document.querySelector('[data-do=edit]').click()")
    browser.wait_for("!!document.querySelector('.pop')")
    for scrolled in (0, 120):
        browser.run(f"scrollBy(0, {scrolled})")
        bar, image, labels = (
            browser.run(f"document.querySelector('{selector}').getBoundingClientRect().toJSON()")
            for selector in (".bar", "[data-stage]", ".pop")
        )
        assert abs(image["top"] - bar["bottom"]) <= 1
        assert image["height"] > 200
        assert labels["height"] > 30
        assert image["bottom"] <= labels["top"] + 1
        assert labels["bottom"] < 700
    browser.run("document.querySelector('[data-do=edit]').click()")
    browser.run("scrollTo(0, 0)")
    assert browser.run("getComputedStyle(document.querySelector('[data-stage]')).position") == "relative"  # fmt: skip
