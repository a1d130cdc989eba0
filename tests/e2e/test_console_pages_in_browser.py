"""The console in Chromium: each page with data and empty, in both themes, on a phone, printed, without JavaScript, by keyboard."""

import base64
import hashlib
import json
import re
import time
from http.client import HTTPConnection

import cv2
import numpy as np
import pytest

from quadriga.engine.config.settings import Settings
from quadriga.monitor.report.schema import ChangedImage, ChangedImages
from quadriga.store.records.records import timestamp_text
from tests.server_process import IMAGES, ROOT, SAMPLE_MODELS, ServerProcess
from tests.unit.engine.drift_reports import (
    categorical,
    drift_report,
    keep_report,
    numeric,
    report_id,
)

pytestmark = pytest.mark.browser

AXE = ROOT / ".axe" / "axe.min.js"
"""Checks of accessibility: axe-core (MPL-2.0), which `make browser` gets and the project does not contain."""

AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
HOSTILE = "<script>document.title='taken'</script>"
ATTRIBUTE = '"><img src=x onerror="document.title=\'taken\'">'
PAGES = {
    "overview": "/console/",
    "grid": "/console/inferences?view=grid",
    "table": "/console/inferences?view=table",
    "objects": "/console/inferences?view=objects&q=label%3Dship%3Age%3A0.6",
    "filtered": "/console/inferences?q=label%3Dship+%26+meta.camera%3Dnorth",
    "wrong": "/console/inferences?q=meta.altitude%3Dgt%3A",
    "nothing": "/console/inferences?q=label%3Dship+%26+meta.camera%3Dnone",
    "live": "/console/live",
    "live_filtered": "/console/live?q=label%3Dship+%26+meta.camera%3Dnorth",
    "live_wrong": "/console/live?q=meta.altitude%3Dgt%3A",
    "label": "/console/label?by=margin&target=5&done=2",
    "compare": "/console/compare",
    "models": "/console/models",
    "model": "/console/models/shapes-detector",
    "traffic": "/console/models/shapes-detector/traffic",
    "drift": "/console/models/shapes-detector/drift",
    "reports": "/console/reports",
    "jobs": "/console/jobs",
    "views": "/console/views",
    "keys": "/console/keys",
    "audit": "/console/audit",
    "you": "/console/you",
    "words": "/console/words#effect",
    "absent": "/console/absent",
}
IMAGES_IN_SIGHT = """Promise.all([...document.images]
  .filter((image) => image.getBoundingClientRect().top < innerHeight)
  .map((image) => image.decode().catch(() => 0))).then(() => 0)"""
"""Waits for the images that a person sees; others are loaded once they come near."""

ASKED_FOR = ("400 (Bad Request)", "404 (Not Found)")
"""What Chromium notes of the pages above that are no success."""


def ask(server, method, path, body):
    connection = HTTPConnection(server.host, timeout=60)
    connection.request(method, path, body if isinstance(body, bytes) else json.dumps(body))
    answer = connection.getresponse()
    content = answer.read()
    assert answer.status < 300, (path, content[:500])
    connection.close()
    return json.loads(content)


def send_images(server, folder, model):
    for number, path in enumerate(sorted((IMAGES / folder).glob("*.jpg"))):
        camera = (HOSTILE, ATTRIBUTE, "north", "east")[number % 4]
        metadata = {
            "camera": camera,
            "altitude": 100 + number,
            "path": path.name,
            HOSTILE: ATTRIBUTE,
        }
        image = {
            "name": "input-image-0",
            "shape": [1],
            "datatype": "BYTES",
            "data": [base64.b64encode(path.read_bytes()).decode()],
            "parameters": {"metadata": json.dumps(metadata)},
        }
        ask(server, "POST", f"/v2/models/{model}/infer", {"inputs": [image]})


def keep_drift_reports(data, ids):
    """Keep some windows of drift, the last with an alarm, and return the id of its report."""
    settings = Settings(data=str(data))
    for number in range(8):
        is_dark = number > 5
        signals = [
            numeric("image.brightness", 50, 20 - number if is_dark else 50.3),
            numeric(f"meta.{HOSTILE}", 5, 5.6),
            numeric("score", 5, 5, status="insufficient"),
            *([categorical("label", ["star", ATTRIBUTE], [1, 9], [9, 1])] if is_dark else []),
        ]
        images = [
            ChangedImages(
                signal.name,
                [ChangedImage(id_, ATTRIBUTE) for id_ in ids[:3]],
                [ChangedImage(id_, 51.5) for id_ in ids[3:]],
            )
            for signal in signals
        ]
        keep_report(settings, drift_report(number, *signals, changed=images))
    return report_id(7)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield a server with images, truth and a report."""
    data = tmp_path_factory.mktemp("console") / "data"
    with ServerProcess(data) as server:
        send_images(server, "detection", "shapes-detector")
        send_images(server, "oriented", "ships-oriented-detector")
        ask(
            server,
            "POST",
            "/api/ground-truth",
            (IMAGES / "detection/annotations.jsonl").read_bytes(),
        )
        # Whatever was acknowledged before this query is in the database then.
        ask(server, "POST", "/api/inferences/query", {"consistency": "journal", "limit": 1})
        job = ask(server, "POST", "/api/evaluations", {"model": "shapes-detector"})
        while (job := ask(server, "GET", f"/api/jobs/{job['id']}", b""))["state"] in (
            "queued",
            "running",
        ):
            pass
        assert job["state"] == "succeeded", job
        server.report = job["id"]
        stored = ask(server, "POST", "/api/inferences/query", {"limit": 6})["inferences"]
        server.drift_report = keep_drift_reports(data, [found["id"] for found in stored])
        ask(server, "POST", f"/api/reports/{report_id(6)}/acknowledge", {"note": HOSTILE})
        until = timestamp_text(time.time_ns() // 1_000_000 + 3_600_000)
        mute = {"until": until, "signals": [ATTRIBUTE], "note": HOSTILE * 20}
        ask(server, "PUT", "/api/models/shapes-detector/drift-mute", mute)
        rule = {"shares": {"1": 1}, "sticky_by": ATTRIBUTE}
        ask(server, "PUT", "/api/models/shapes-detector/traffic", rule)
        view = {"query": "label=ship & meta.camera=north & meta.altitude=ge:100"}
        ask(server, "PUT", "/api/views/ships%20of%20the%20north", view)
        query = {
            "where": {"model": "shapes-detector", "ground_truth.label": {"exists": True}},
            "limit": 1,
        }
        server.inference = ask(server, "POST", "/api/inferences/query", query)["inferences"][0][
            "id"
        ]
        yield server


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """Yield a server that has stored nothing yet."""
    with ServerProcess(
        tmp_path_factory.mktemp("empty") / "data", SAMPLE_MODELS / "shapes-detector"
    ) as server:
        yield server


def open_page(browser, server, path, **options):
    """Open a page, see that nothing is wrong with it, and nothing was asked of another server."""
    browser.errors.clear()
    browser.open(f"http://{server.host}{path}", **options)
    browser.run(IMAGES_IN_SIGHT)
    errors = [
        error
        for error in browser.errors
        if not (isinstance(error, str) and error.startswith(f"http://{server.host}/"))
        and not any(text in str(error) for text in ASKED_FOR)
        and not is_left_stream(error)
    ]
    assert not errors, (path, errors)
    assert browser.run("document.title") != "taken"


def is_left_stream(error):
    """Tell whether a note of Chromium is about the tail of a live page that was left."""
    return isinstance(error, dict) and error.get("type") == "EventSource" and error.get("canceled")


def with_reports(server):
    report = f"/console/reports/{server.report}"
    return {**PAGES, "inference": f"/console/inferences/{server.inference}", "report": report, "cell": f"{report}/images?truth=star&predicted=star",
            "job": f"/console/jobs/{server.report}", "drift report": f"/console/reports/{server.drift_report}",
            "acknowledged": f"/console/reports/{report_id(6)}"}  # fmt: skip


def test_each_cell_of_a_report_leads_to_the_same_images_as_its_filter(browser, server):
    shown = "[...document.querySelectorAll('main a[href*=\"/console/inferences/\"]')].map((a) => a.pathname)"
    open_page(browser, server, f"/console/reports/{server.report}")
    cells = browser.run(
        "[...document.querySelectorAll('a[href*=\"/images?\"]')].map((a) => a.pathname + a.search)"
    )
    assert len(cells) > 3
    for path in cells:
        open_page(browser, server, path)
        of_cell = browser.run(shown)
        to_list = browser.run(
            "(([a]) => a.pathname + a.search)(document.querySelectorAll('main a.button[href*=\"report%3D\"]'))"
        )
        open_page(browser, server, to_list)
        assert set(browser.run(shown)) == set(of_cell) != set(), path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 900, 360])
def test_no_page_asks_elsewhere_or_scrolls_sideways(browser, server, scheme, width):
    for path in with_reports(server).values():
        open_page(browser, server, path, scheme=scheme, width=width)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth"), (path, width)
        ground = browser.run("getComputedStyle(document.documentElement).backgroundColor")
        assert ground == ("rgb(246, 247, 248)" if scheme == "light" else "rgb(14, 17, 20)")


def test_what_has_the_focus_is_not_behind_the_bar(browser, server):
    open_page(browser, server, "/console/inferences?view=table")
    browser.run("scrollTo(0, document.body.scrollHeight); [...document.links].at(-1).focus(); 0")
    tops = []
    for _ in range(40):
        for kind in ("rawKeyDown", "keyUp"):
            browser.send("Input.dispatchKeyEvent", type=kind, key="Tab", windowsVirtualKeyCode=9, modifiers=8)  # fmt: skip
        tops += browser.run(
            "(({tagName: tag}) => document.activeElement.closest('.bar') || tag === 'BODY' ? [] :"
            " [document.activeElement.getBoundingClientRect().top])(document.activeElement)"
        )
    bar = browser.run("document.querySelector('.bar').getBoundingClientRect().bottom")
    assert len(tops) > 20
    assert min(tops) >= bar


def test_every_page_of_an_empty_store_is_in_order(browser, empty):
    for path in PAGES.values():
        open_page(browser, empty, path)
    open_page(browser, empty, "/console/")
    command = browser.run("document.getElementById('command').textContent")
    assert f"curl http://{empty.host}/infer " in command
    assert browser.run("!document.querySelector('[data-copy]').hidden")


def test_images_are_whole_and_have_their_outlines(browser, server):
    open_page(browser, server, "/console/inferences?q=model%3Dshapes-detector&view=grid")
    assert browser.run("document.images.length") > 10
    assert browser.run("[...document.images].slice(0, 5).every((image) => image.naturalWidth > 0)")
    assert browser.run("document.querySelectorAll('.mark.pred').length") > 20
    assert browser.run("document.querySelectorAll('.mark.o-truth').length") > 20
    rows = browser.run(
        "[...document.querySelectorAll('.shot')].map((shot) => shot.getBoundingClientRect().right)"
    )
    assert max(rows) <= 1200


def test_pages_read_and_work_without_javascript(browser, server):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        for path in with_reports(server).values():
            browser.errors.clear()
            browser.open(f"http://{server.host}{path}")
        browser.send("Emulation.setScriptExecutionDisabled", value=False)
        browser.open(f"http://{server.host}/console/inferences?q=label%3Dcircle")
        browser.send("Emulation.setScriptExecutionDisabled", value=True)
        browser.run("document.querySelector('[data-filter]').focus()")
        browser.send("Input.insertText", text="meta.altitude=ge:103")
        press(browser, "Enter")
        browser.wait_for("location.search.includes('103')")
        assert browser.run("document.querySelectorAll('.chip').length") == 2
        assert browser.run("document.querySelectorAll('.shot').length") > 1
        # The filters of a phone open by their link alone.
        browser.open(f"http://{server.host}/console/inferences#facets", width=360)
        assert browser.run("getComputedStyle(document.getElementById('facets')).display") == "grid"
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)


def press(browser, key):
    code, text = (13, "\r") if key == "Enter" else (ord(key.upper()), key)
    browser.send(
        "Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, text=text
    )
    browser.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)


def test_keys_alone_find_inferences(browser, server):
    open_page(browser, server, "/console/")
    press(browser, "g")
    press(browser, "i")
    browser.wait_for("location.pathname === '/console/inferences'")
    press(browser, "/")
    assert browser.run("document.activeElement.name") == "q"
    browser.send("Input.insertText", text="label=star & meta.camera=north")
    press(browser, "Enter")
    browser.wait_for("document.querySelectorAll('.chip').length === 2")
    count = browser.run("document.querySelectorAll('.shot').length")
    assert count > 0
    browser.send("Page.reload")
    browser.wait_for("document.querySelectorAll('.chip').length === 2")
    assert browser.run("document.querySelectorAll('.shot').length") == count


def send_shape(server, **metadata):
    """Send an image, and return the id of its inference."""
    path = min((IMAGES / "detection").glob("*.jpg"))
    answer = server.infer("shapes-detector", path.read_bytes(), metadata=json.dumps(metadata))
    return answer["parameters"]["inference_id"]


def test_a_new_inference_appears_on_the_live_page_and_pause_holds_it(browser, server):
    line = "meta.line=live"
    open_page(browser, server, f"/console/live?q={line.replace('=', '%3D')}")
    browser.wait_for("document.querySelector('[data-state]').textContent === 'live'")
    ids = "[...document.querySelectorAll('.shot')].map((a) => a.pathname.split('/').pop())"
    assert browser.run(ids) == []
    first = send_shape(server, camera=HOSTILE, line="live")
    send_shape(server, line="other")
    browser.wait_for("document.querySelectorAll('.shot').length")
    assert browser.run(ids) == [first]
    assert HOSTILE in browser.run("document.querySelector('.shot').textContent")
    browser.run("document.querySelector('.shot img').decode()")
    assert browser.run("document.querySelectorAll('.shot .mark.pred').length") > 0
    by_script = browser.run("document.querySelector('.shot').outerHTML")
    more = "document.querySelector('[data-more]')"

    press(browser, "p")
    second = send_shape(server, camera=ATTRIBUTE, line="live")
    browser.wait_for(f"!{more}.hidden && {more}.textContent === '1 new'")
    assert browser.run(ids) == [first]
    browser.run(f"{more}.click()")
    browser.wait_for(f"{more}.hidden")
    assert browser.run(ids) == [second, first]
    third = send_shape(server, line="live")
    browser.wait_for(f"!{more}.hidden")
    press(browser, " ")  # goes on
    browser.wait_for(f"{more}.hidden")
    assert browser.run(ids) == [third, second, first]

    browser.run("document.querySelector('.shot').focus()")
    fourth = send_shape(server, line="live")
    browser.wait_for(f"!{more}.hidden")
    assert browser.run(ids) == [third, second, first]
    browser.run("document.activeElement.blur()")
    browser.wait_for(f"{more}.hidden")
    assert browser.run(ids) == [fourth, third, second, first]
    browser.wait_for("document.querySelector('[data-summary]').textContent.includes('new')")
    assert browser.run("document.title") != "taken"
    unwanted = [error for error in browser.errors if not isinstance(error, str)]
    assert not unwanted

    # The page as the server renders it has the same card.
    open_page(browser, server, f"/console/live?q={line.replace('=', '%3D')}")
    rendered = browser.run(f"document.querySelector('.shot[href*=\"{first}\"]').outerHTML")
    assert texts_of(rendered) == texts_of(by_script)
    assert drawn_in(rendered) == drawn_in(by_script)


def texts_of(card):
    return [text.strip() for text in re.findall(r">([^<]+)<", card) if text.strip()]


def drawn_in(card):
    return re.findall(r'class="(?:mark|rim|media|shot)[^"]*"', card)


def test_a_printed_page_has_neither_bar_nor_facets(browser, server):
    open_page(browser, server, "/console/inferences", medium="print")
    for selector in (".bar", ".side"):
        assert (
            browser.run(f"getComputedStyle(document.querySelector('{selector}')).display") == "none"
        )
    assert browser.printed().startswith(b"%PDF")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser, server, empty, scheme):
    if not AXE.exists():
        pytest.skip("axe-core is not there: `make browser` gets it with npm")
    script = AXE.read_text("utf-8")
    assert hashlib.sha256(script.encode()).hexdigest() == AXE_SHA256
    found = []
    for target, paths in ((server, with_reports(server)), (empty, {"overview": "/console/"})):
        for width in (1200, 360):
            for path in paths.values():
                open_page(browser, target, path, scheme=scheme, width=width)
                browser.run(script + "; 0")
                violations = browser.run(
                    "axe.run().then((r) => r.violations.map((v) => [v.id, v.nodes.slice(0, 3).map((n) => n.html.slice(0, 300))]))"
                )
                found += [(path, width, *violation) for violation in violations]
    assert not found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_progress_of_labelling_has_the_colours_of_the_page(browser, server, scheme):
    open_page(browser, server, PAGES["label"], scheme=scheme)
    x, y, width = browser.run(
        "(({x, y, width, height}) => [x, y + height / 2, width])(document.querySelector('.progress').getBoundingClientRect())"
    )
    picture = cv2.imdecode(np.frombuffer(browser.picture(), np.uint8), cv2.IMREAD_COLOR)
    for share, token in ((0.2, "--accent"), (0.8, "--line")):  # two of five are labelled
        shown = picture[int(y), int(x + share * width), ::-1]
        colour = browser.run(f"getComputedStyle(document.body).getPropertyValue('{token}')")
        assert f"#{bytes(shown).hex()}" == colour, token


def test_an_alarm_is_acknowledged_and_muted_by_hand(browser, server):
    drift, alarm = "/console/models/shapes-detector/drift", "!!document.querySelector('.alarm')"
    open_page(browser, server, "/console/")
    assert browser.run(alarm)
    open_page(browser, server, drift)
    browser.run("document.querySelector('main details summary').focus()")
    press(browser, "Enter")
    browser.wait_for("document.querySelector('main details').open")
    browser.run("document.querySelector('main details input[name=note]').focus()")
    browser.send("Input.insertText", text="lens <b>is dirty")
    press(browser, "Enter")
    browser.wait_for("location.pathname.startsWith('/console/reports/')")
    said = browser.run("document.querySelector('.said').innerText")
    assert said.startswith("Acknowledged by somebody")
    assert said.endswith("lens <b>is dirty")
    open_page(browser, server, "/console/")
    assert not browser.run(alarm)
    open_page(browser, server, drift)
    browser.run("document.querySelector('form[action$=unmute] button').click()")
    browser.wait_for("!!document.querySelector('form[action$=\"drift/mute\"]')")
    browser.run("document.querySelector('form[action$=\"drift/mute\"] button').click()")
    browser.wait_for("!!document.querySelector('form[action$=unmute]')")
    words = browser.run("document.querySelector('main').innerText")
    assert "Muted by somebody until" in words
    assert "of brightness, label" in words


def test_labels_of_an_evaluation_stand_worst_first_and_lead_to_their_errors(browser, server):
    truth = f"/api/inferences/{server.inference}/ground-truth"
    annotations = ask(server, "GET", truth, b"")["annotations"]
    wrong = [{**annotations[0], "label": "barge"}, *annotations[2:]]  # one of each kind of error
    ask(server, "PUT", truth, {"annotations": wrong})
    where = {"id": server.inference}
    job = ask(server, "POST", "/api/evaluations", {"model": "shapes-detector", "where": where})
    while (job := ask(server, "GET", f"/api/jobs/{job['id']}", b""))["state"] in ("queued", "running"):  # fmt: skip
        time.sleep(0.1)
    open_page(browser, server, f"/console/reports/{job['id']}")
    rows = "[...document.querySelectorAll('[data-labels] tbody tr')]"
    cells = browser.run(f"{rows}.map((row) => [...row.cells].map((cell) => cell.innerText))")
    report = ask(server, "GET", f"/api/reports/{job['id']}", b"")
    values = [float(row[1]) for row in cells if row[1] != "\N{EM DASH}"]
    assert values == sorted(values)
    assert cells[0][0] == "barge"
    assert cells[0][3:5] == ["1", "1"]
    score = report["confusion"]["parameters"]["score"]
    words = browser.run("document.querySelector('main').innerText")
    assert f"precision count objects, as the confusion matrix does: predictions with a score of at least {score}, overlap (IoU) at least 0.5." in words  # fmt: skip
    name = next(row[0] for row in cells if row[6] not in {"0", "\N{EN DASH}"})
    for label, column in (("barge", 4), (name, 6)):
        open_page(browser, server, f"/console/reports/{job['id']}")
        browser.run(f"{rows}.find((row) => row.cells[0].innerText === {json.dumps(label)}).cells[{column}].querySelector('a').click()")  # fmt: skip
        browser.wait_for("location.pathname === '/console/inferences'")
        assert browser.run("document.querySelectorAll('.shot').length") == 1


def test_a_term_leads_by_keyboard_to_what_it_means(browser, server):
    open_page(browser, server, f"/console/reports/{server.report}")
    browser.run("document.querySelector('.term[href$=\"#iou\"]').focus()")
    assert browser.run("document.activeElement.title").startswith("How much two regions share")
    browser.run("document.activeElement.click()")
    browser.wait_for("location.hash === '#iou'")
    top = browser.run("document.querySelector(':target').getBoundingClientRect().top")
    assert 40 < top < 700


def test_on_a_phone_outcomes_and_dates_can_be_seen(browser, server):
    open_page(browser, server, "/console/reports", width=390)
    tag = "document.querySelector('tbody .tag').getBoundingClientRect()"
    assert browser.run(f"{tag}.left > 0 && {tag}.right <= innerWidth")
    open_page(browser, server, "/console/models/shapes-detector/drift", width=390)
    in_sight = "[...document.querySelectorAll('.windows thead a, .windows td a')].map((a) => { const r = a.getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth && r.width >= 12; })"  # fmt: skip
    cells = browser.run(in_sight)
    assert len(cells) > 16
    assert all(cells)
    heads = browser.run("[...document.querySelectorAll('.windows thead th + th')].map((th) => { const r = th.getBoundingClientRect(), t = th.querySelector('time').getBoundingClientRect(); return t.width <= r.width + 1; })")  # fmt: skip
    assert len(heads) == 8
    assert all(heads)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
