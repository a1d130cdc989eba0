"""The drift page of a model: its windows, the last report in words, hostile names, roles, and teams."""

import html
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.engine.console.filter_line import window_filter
from quadriga.engine.console.pages.drift import MAX_ROWS, MAX_WINDOWS, make_strip
from quadriga.monitor.report.page import render_page
from quadriga.monitor.report.schema import Data, Metric, Report, ReportedModel, Slice, Window
from quadriga.monitor.watch.mutes import MuteBody, MuteStore
from quadriga.proto.access import ROLES
from quadriga.store.database.database import writer_engine
from quadriga.store.keys.access_keys import create_key
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import Scope
from tests.unit.engine.console_harness import Answer, open_page
from tests.unit.engine.drift_reports import (
    HOUR_MS,
    MODEL,
    START_MS,
    categorical,
    drift_report,
    keep_report,
    numeric,
    report_id,
)
from tests.unit.monitor.report.page_reading import words

HOSTILE = "<script>alert(1)</script>"
PAGE = f"/console/models/{MODEL}/drift"
DAMAGED_REPORTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda report: report[: len(report) // 2],
    "zeros": lambda report: bytes(len(report)),
    "another type": lambda report: report.replace(b'"data":{', b'"data":7,"was":{', 1),
    "bytes that are no text": lambda report: report.replace(b"OBJECT_DETECTION", b"\xff" * 16),
    "very deep": lambda _: b"[" * 100_000,
    "a kind of a newer version": lambda report: report.replace(b'"kind":"drift"', b'"kind":"outlook"'),
    "a status of a newer version": lambda report: report.replace(b'"status":"drift"', b'"status":"odd"'),
}  # fmt: skip
ROLES_THAT_READ = ("read", "annotate", "monitor", "operate", "admin")


class Keyed(NamedTuple):
    """A server with keys of roles, and of two teams."""

    server: Application
    settings: Settings
    keys: dict[str, str]

    def show(self, path: str, key: str) -> Answer:
        """Open a page."""
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        return open_page(self.server, path, headers=headers)


@pytest.fixture
def keyed(settings: Settings) -> Iterator[Keyed]:
    with writer_engine(settings.database_url) as engine:
        keys = {role: create_key(engine, name=role, roles=[role])[1] for role in ROLES_THAT_READ}
        for team in ("north", "south"):
            keys[team] = create_key(engine, name=team, roles=["monitor"], team=team)[1]
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    yield Keyed(application, settings, keys)
    application.close()


def cells(text: str) -> list[tuple[str, str]]:
    """Return the shade and the report of each cell, in the order of the page."""
    return re.findall(r'<td[^>]*><a class="([^"]*)" href="/console/reports/([^"]*)"', text)


def test_without_a_report_the_page_says_how_to_make_the_first(server):
    page = open_page(server, PAGE)
    assert page.status == 200
    assert "Nothing was compared yet." in page.text
    command = html.unescape(re.findall(r"<pre[^>]*>(.*?)</pre>", page.text, re.DOTALL)[0])
    assert "/api/drift" in command
    (body,) = re.findall(r"-d '(.*)'", command)
    assert json.loads(body)["model"] == MODEL
    assert "YOUR-KEY" not in command
    assert "<table" not in page.text


@pytest.mark.parametrize("name", ["shapes-detecto", "x" * 300, "%3Cscript%3E", ".."])
def test_a_model_that_is_not_there_has_no_page(server, name):
    page = open_page(server, f"/console/models/{name}/drift")
    assert page.status == 404
    assert "<script>" not in page.text


@pytest.mark.parametrize("damage", DAMAGED_REPORTS.values(), ids=DAMAGED_REPORTS)
def test_a_report_that_cannot_be_read_is_named_and_the_others_are_listed(
    server, settings, caplog, damage
):
    for number in range(3):
        folder = keep_report(settings, drift_report(number, numeric("score", 5, 7)))
    (folder / "report.json").write_bytes(damage((folder / "report.json").read_bytes()))
    for _ in range(2):
        listed = json.loads(open_page(server, "/api/reports").text)
        assert [report["id"] for report in listed["reports"]] == [report_id(1), report_id(0)]
        assert listed["unreadable"] == [report_id(2)]
    page = open_page(server, "/console/reports")
    assert page.status == 200
    assert f'/console/reports/{report_id(1)}"' in page.text
    assert re.search(
        rf"These reports cannot be read: their files are damaged, or a newer version wrote them..*/console/jobs/{report_id(2)}",
        page.text,
    )
    for path in ("/console/", "/console/models", "/api/models", f"/console/jobs/{report_id(2)}"):
        assert open_page(server, path).status == 200
    damaged = open_page(server, f"/console/reports/{report_id(2)}")
    assert (
        damaged.status,
        "This report cannot be read: its file is damaged, or a newer version wrote it."
        in damaged.text,
    ) == (500, True)
    assert f'/console/reports/{report_id(1)}"' in open_page(server, PAGE).text
    assert f'quadriga_drift_alarm{{model="{MODEL}"' in open_page(server, "/metrics").text
    assert caplog.text.count(f"report {report_id(2)} cannot be read") == 1


def test_windows_stand_from_the_oldest_to_the_newest_with_the_alarms_first(server, settings):
    for number in range(3):
        brightness = numeric("image.brightness", 50, 20 if number == 2 else 50.2)
        keep_report(settings, drift_report(number, numeric("score", 5, 7, alarm=False), brightness))
    page = open_page(server, PAGE)
    assert page.status == 200
    rows = re.findall(r'<th scope="row"[^>]*>([^<]*)', page.text)
    assert rows == ["brightness", "score"]
    assert cells(page.text) == [
        ("x-h0", report_id(0)), ("x-h0", report_id(1)), ("x-h5", report_id(2)),
        ("x-h2", report_id(0)), ("x-h2", report_id(1)), ("x-h2", report_id(2)),
    ]  # fmt: skip
    assert page.text.count('<span class="at">') == 1
    assert "<em>Changed: brightness from 50 to 20 (darker).</em>" in page.text


HOUR, DAY, WEEK = 1, 24, 168


def of_hours(number: int, first: float, hours: float) -> Report:
    """Return the report that was made as the so manieth, of a window from an hour on."""
    start, end = (timestamp_text(int(START_MS + at * HOUR_MS)) for at in (first, first + hours))
    return drift_report(
        number, numeric("score", 5, 5), data=Data(Window(start, end, 9), Window(n=9))
    )


def test_windows_stand_in_the_order_of_their_images_with_their_first_and_last_time(
    server, settings
):
    reports = [
        of_hours(0, 200, HOUR),
        of_hours(1, 0, DAY),  # of earlier images, made later
        of_hours(2, 201 - WEEK, WEEK),  # ends with the first, and is longer
        of_hours(3, 9, 0),
        drift_report(4, numeric("score", 5, 5), data=Data(Window(n=0), Window(n=9))),
    ]
    for report in reports:
        keep_report(settings, report)
    text = open_page(server, PAGE).text
    order = [report for _, report in cells(text)]
    assert order == [report_id(number) for number in (4, 3, 1, 2, 0)]
    heads = re.findall(r'<th scope="col"><a [^>]*>(.*?)</a></th>', text)
    assert [re.sub("<[^>]*>", "", head) for head in heads] == [
        "21 Sep 19:14",  # nothing but the time of the report
        "21 Sep 23:13",
        "21 Sep 14:13 \N{EN DASH}22 Sep 14:13",
        "22 Sep \N{EN DASH}29 Sep",
        "29 Sep 22:13 \N{EN DASH}23:13",
    ]
    ends = re.findall(r'data-start="([^"]*)" data-end="([^"]*)"', text)
    assert [end > start for start, end in ends] == [False, False, True, True, True]
    assert "score, 21 Sep 14:13 \N{EN DASH} 22 Sep 14:13 UTC: moved" in text


def test_a_signal_has_one_name_on_all_pages(server, settings):
    names = ["image.brightness", "meta.score", "score", "meta.gps (is there)", "width", HOSTILE]
    report = drift_report(0, *(numeric(name, 50, 20 + place) for place, name in enumerate(names)))
    keep_report(settings, report)
    mutes = MuteStore(settings.drift_directory)
    mutes.put(
        MODEL,
        MuteBody(timestamp_text(time.time_ns() // 1_000_000 + HOUR_MS), ["image.brightness"]),
        "mara",
    )
    page, whole = open_page(server, PAGE).text, open_page(server, f"/console/reports/{report_id(0)}").text  # fmt: skip
    in_map = {html.unescape(name): html.unescape(title) for name, title in re.findall(r'<th scope="row" title="([^"]*)">([^<]*)</th>', page)}  # fmt: skip
    table = whole.partition('aria-label="Signals"')[2]
    in_table = {}
    for head in re.findall(r'<th scope="row">(.*?)</th>', table, re.DOTALL):
        title, *code = html.unescape(re.sub("<[^>]*>", "\n", head)).split()
        in_table[" ".join(code) or title] = title
    titles = ["brightness", "meta.score", "score", "gps (is there)"]
    assert [in_map[name] for name in names[:4]] == titles
    assert in_map[HOSTILE] == HOSTILE
    assert len(in_map) == len(names)
    assert in_table["image.brightness"] == "brightness"
    assert in_table["meta.score"] == "meta.score"
    assert "of brightness" in page
    printed = words(render_page(report, lambda _: None))
    assert "brightness image.brightness changed 50 20" in printed
    assert " meta.score changed 50 21" in printed


def test_what_could_not_be_judged_says_where_it_moved_and_leads_there(server, settings):
    few = numeric("score", 5, 9, alarm=False, status="insufficient")
    part = Slice("meta.camera", HOSTILE, 40, [Metric("wasserstein_iqr", 0.6, {"signal": "score", "other": 0.1})])  # fmt: skip
    keep_report(settings, drift_report(0, few, numeric("width", 5, 5), slices=[part]))
    page = open_page(server, PAGE).text
    assert "<h2>What moved</h2>" in page
    assert '<span class="tag warn">moved, too few</span>' in page
    headline = f"which moved, most where camera is {html.escape(HOSTILE)}."
    for path in (PAGE, f"/console/reports/{report_id(0)}"):
        assert headline in open_page(server, path).text
    (link,) = re.findall(r'<th scope="row"><a href="([^"]*)">meta.camera is [^<]*</a>', open_page(server, f"/console/reports/{report_id(0)}").text)  # fmt: skip
    assert open_page(server, html.unescape(link)).status == 200


def test_the_way_leads_to_the_images_of_the_last_window(server, settings):
    keep_report(settings, drift_report(1, numeric("image.brightness", 50, 20)))
    page = open_page(server, PAGE)
    assert "See the 200 images" in page.text
    links = [html.unescape(link) for link in re.findall(r'class="button[^"]*" href="([^"]*)"', page.text)]  # fmt: skip
    links = [link for link in links if "/reports/new?" not in link]
    summaries = re.findall(r'<summary class="button">([^<]*)</summary>', page.text)
    assert summaries == ["Acknowledge…", "Mute for…"]  # words, no bare triangles
    images, label, report = links
    (line,) = parse_qs(urlsplit(images).query)["q"]
    assert line.startswith(f'model={MODEL} & version="1" & ts=ge:')
    QueryRequest(where=line).parse_filter()
    assert parse_qs(urlsplit(label).query) == {"q": [line], "target": ["200"]}
    assert report == f"/console/reports/{report_id(1)}"
    assert all(open_page(server, link).status == 200 for link in links)


def test_signals_that_were_not_compared_or_too_few_are_told_from_quiet_ones(server, settings):
    few = numeric("score", 5, 5, status="insufficient", alarm=False)
    keep_report(settings, drift_report(0, few))
    keep_report(settings, drift_report(1, numeric("image.blur", 5, 5)))
    text = open_page(server, PAGE).text
    assert [shade for shade, _ in cells(text)].count("few") == 3
    assert "score, 21 Sep 14:13 \N{EN DASH} 15:13 UTC: too few values" in text
    assert "too few values, or not compared" in text
    assert text.count("UTC: not compared") == 2


def test_hostile_names_stay_texts(server, settings):
    signals = [
        numeric(f"meta.{HOSTILE}", 5, 50),
        categorical("label", [HOSTILE, "ship"], [1, 9], [9, 1]),
        categorical(f'meta."><img src=x onerror={HOSTILE}', ["a", "b"], [1, 9], [9, 1]),
    ]
    keep_report(settings, drift_report(0, *signals))
    for path in (PAGE, f"/console/reports/{report_id(0)}", "/console/"):
        page = open_page(server, path)
        assert page.status == 200
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text


def test_a_long_history_is_cut_to_the_newest_windows_and_to_what_moved(server, settings):
    quiet = [numeric(f"meta.key{number}", 5, 5 + number / 1000) for number in range(MAX_ROWS + 9)]
    for number in range(MAX_WINDOWS + 3):
        keep_report(settings, drift_report(number, *quiet))
    text = open_page(server, PAGE).text
    assert len(cells(text)) == MAX_WINDOWS * MAX_ROWS
    assert {report for _, report in cells(text)} == {report_id(number) for number in range(3, 27)}
    assert "9 more signals moved less." in text
    assert "3 older comparisons are among the" in text
    assert "key48" in text
    assert "key0<" not in text


def test_a_damaged_or_removed_report_is_left_out(server, settings):
    folders = [keep_report(settings, drift_report(n, numeric("score", 5, 5))) for n in range(3)]
    assert len(cells(open_page(server, PAGE).text)) == 3
    (folders[2] / "report.json").write_bytes(b'{"kind": "drift"')
    (folders[0] / "report.json").unlink()
    page = open_page(server, PAGE)
    assert page.status == 200
    assert [report for _, report in cells(page.text)] == [report_id(1)]


def test_a_report_of_an_empty_window_has_a_column_and_no_images(server, settings):
    data = Data(Window(), Window(n=10))
    keep_report(settings, drift_report(0, data=data, status="insufficient"))
    page = open_page(server, PAGE)
    assert page.status == 200
    assert "See the" not in page.text
    assert "/console/label?" not in page.text


def test_reports_of_other_models_and_kinds_are_no_windows(server, settings):
    keep_report(settings, drift_report(0, numeric("score", 5, 50), model="shapes-classifier"))
    keep_report(settings, drift_report(1, numeric("score", 5, 50), model="SHAPES-detector"))
    assert [report for _, report in cells(open_page(server, PAGE).text)] == [report_id(1)]


@pytest.mark.parametrize("role", ROLES_THAT_READ)
def test_who_may_annotate_is_offered_to_label(keyed, role):
    keep_report(keyed.settings, drift_report(0, numeric("score", 5, 50)))
    page = keyed.show(PAGE, role)
    assert page.status == 200
    assert ("Label 200 of these" in page.text) == ("annotate" in ROLES[role])


def test_another_team_sees_nothing_of_it(keyed):
    keep_report(keyed.settings, drift_report(0, numeric("score", 5, 50)), Scope("north"))
    assert cells(keyed.show(PAGE, "north").text) == [("x-h5", report_id(0))]
    page = keyed.show(PAGE, "south")
    assert page.status == 200
    assert "Nothing was compared yet." in page.text
    assert report_id(0) not in page.text
    assert keyed.show(f"/console/reports/{report_id(0)}", "south").status == 404


def test_overview_models_and_report_lead_to_the_page(server, settings):
    keep_report(settings, drift_report(0, numeric("image.brightness", 50, 20)))
    for path in ("/console/", "/console/models", f"/console/models/{MODEL}", f"/console/reports/{report_id(0)}"):  # fmt: skip
        assert f'href="{PAGE}"' in open_page(server, path).text, path


@pytest.mark.parametrize(
    ("where", "end", "is_whole"),
    [
        (None, "", True),
        ("meta.camera=north", " & meta.camera=north", True),
        ("meta.camera=north | label=ship", " & (meta.camera=north | label=ship)", True),
        ({"meta.camera": "north"}, "", False),
        ("this is no filter", "", False),
        (5, "", False),
    ],
)
def test_the_filter_of_a_window_has_that_of_its_report(where, end, is_whole):
    window = Window("2026-11-25T12:00:00Z", "2026-11-25T13:00:00Z", 5, filter=where)
    found = window_filter(ReportedModel("a & b"), window)
    times = "ts=ge:2026-11-25T12:00:00Z & ts=le:2026-11-25T13:00:00Z"
    assert found.line == f'model="a & b" & {times}{end}'
    assert found.is_whole is is_whole
    QueryRequest(where=found.line).parse_filter()


def test_a_strip_of_nothing_is_empty():
    strip = make_strip([])
    assert strip == {"windows": [], "rows": [], "more_rows": 0}
