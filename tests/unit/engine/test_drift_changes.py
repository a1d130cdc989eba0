"""The images behind a changed signal: filters that find them, distributions, and images of the report."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec.structs import replace

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.engine.console.filter_line import window_filter
from quadriga.engine.console.frame import Frame
from quadriga.engine.console.pages.drift_report import images_behind
from quadriga.engine.console.pages.reports import ReportTargets
from quadriga.monitor.report.charts.drift import signal_chart
from quadriga.monitor.report.page import MAX_CHANGES, render_page
from quadriga.monitor.report.schema import (
    ChangedImage,
    ChangedImages,
    Data,
    Effect,
    Histogram,
    Level,
    Signal,
    Slice,
    Unlike,
    Window,
)
from quadriga.store.query.filters.syntax import And, Compare, Or
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import InputReference, ModelReference
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.console_harness import open_page
from tests.unit.engine.drift_reports import (
    MODEL,
    START_MS,
    categorical,
    drift_report,
    keep_report,
    numeric,
    report_id,
)
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

HOSTILE = "<script>alert(1)</script>"
EMBEDDING = Signal(
    "embedding", "embedding", "energy", Effect("energy_coefficient", 0.5, 0.0005), (500, 400), alarm=True,
)  # fmt: skip


def levels(
    before: tuple[float, float, float], after: tuple[float, float, float]
) -> dict[str, Level]:
    """Return the levels of two sides: mean, 10th and 90th percentile."""
    return {"before": Level(*before), "after": Level(*after)}


def tails(signal: Signal, **fields: object) -> list[tuple[str, str]]:
    """Return the words of the images behind a signal, and what their filter adds to that of the window."""
    report = drift_report(0, signal, **fields)
    start = window_filter(report.model, report.data.current).line
    before = window_filter(report.model, report.data.baseline).line
    found = []
    for behind in images_behind(signal, report):
        assert QueryRequest(where=behind.line).parse_filter()
        line = behind.line.replace(before, "BEFORE").replace(start, "NOW")
        found.append((behind.words, line))
    return found


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        (numeric("image.brightness", 50, 20), "NOW & sig.image.brightness=lt:40"),
        (numeric("image.brightness", 20, 50), "NOW & sig.image.brightness=gt:30"),
        (numeric("latency_ms", 20, 50), "NOW & latency_ms=gt:30"),
        (numeric("meta.altitude", -120, -80), "NOW & meta.altitude=gt:-110"),
        (numeric("meta.a b & c", 1, 5e20), 'NOW & "meta.a b & c"=gt:11'),
        (numeric("meta.tiny", 5e20, 0), "NOW & meta.tiny=lt:5e+20"),
        # Few distinct values: nothing is below the lowest of the baseline.
        (numeric("predictions", 3, 1, **levels((3, 0, 6), (1, 0, 2))), "NOW & predictions=le:0"),
        (numeric("predictions", 3, 6, **levels((3, 0, 6), (5, 4, 6))), "NOW & predictions=ge:6"),
        # The values spread to both sides, or gathered.
        (numeric("image.blur", 5, 5, shift=4.0, alarm=True, **levels((5, 4, 6), (5, 1, 9))), "NOW & (sig.image.blur=lt:4 | sig.image.blur=gt:6)"),
    ],
)  # fmt: skip
def test_numbers_lead_to_the_images_beyond_those_of_the_baseline(signal, expected):
    ((words, line),) = tails(signal)
    assert line == expected
    assert "the baseline's" in words


@pytest.mark.parametrize(
    "signal",
    [
        numeric("image.blur", 5, 5, shift=4.0, alarm=True, **levels((5, 1, 9), (5, 4, 6))),
        numeric("area", 5, 50),
        numeric("score", 5, 50),
        numeric("image.unheard", 5, 50),
        numeric("meta.x", 5, 50, before=None),
        categorical("input.feature", ["a", "b"], [1, 9], [9, 1]),
        categorical("label", [], [], []),
        categorical("label", ["a", "b"], [0, 0], [9, 1]),
        EMBEDDING,
    ],
)
def test_what_no_field_of_a_filter_has_leads_nowhere(signal):
    assert tails(signal) == []


def test_without_times_nothing_leads_anywhere():
    report = drift_report(0, numeric("image.brightness", 50, 20), data=Data(Window(n=5), Window()))
    assert images_behind(report.signals[0], report) == []


@pytest.mark.parametrize(
    ("signal", "now", "then"),
    [
        (categorical("label", ["ship", "plane"], [9, 1], [1, 9]), "label=plane", "label=ship"),
        (categorical("label", [HOSTILE, "a:ge:0.9"], [9, 1], [1, 9]), 'label="a:ge:0.9"', 'label="<script>alert(1)</script>"'),
        (categorical("meta.camera", ["east", 'no"rth'], [9, 1], [1, 9]), r'meta.camera="no\"rth"', "meta.camera=east"),
        (categorical("meta.fog", ["true", "false"], [9, 1], [1, 9]), "meta.fog=false", "meta.fog=true"),
        (categorical("meta.lane", ["5", "a"], [1, 9], [9, 1]), 'meta.lane=in:5,"5"', "meta.lane=a"),
        (categorical("meta.gps (is there)", ["no", "yes"], [0, 9], [9, 0]), "meta.gps=exists:false", "meta.gps=exists:true"),
    ],
)  # fmt: skip
def test_labels_lead_to_what_gained_now_and_lost_before(signal, now, then):
    assert [line for _, line in tails(signal)] == [f"NOW & {now}", f"BEFORE & {then}"]


def test_the_value_of_a_metadata_key_is_found_as_number_and_as_text():
    report = drift_report(0, categorical("meta.lane", ["5", "a"], [1, 9], [9, 1]))
    tree = QueryRequest(where=images_behind(report.signals[0], report)[0].line).parse_filter()
    assert isinstance(tree, And)
    assert {type(value) for value in tree.operands[-1].value} == {int, str}


def test_both_sides_of_a_spread_are_one_part_of_the_filter():
    signal = numeric("image.blur", 5, 5, shift=4.0, **levels((5, 4, 6), (5, 1, 9)))
    report = drift_report(0, signal)
    tree = QueryRequest(where=images_behind(signal, report)[0].line).parse_filter()
    assert isinstance(tree, And)
    assert tree.operands[-1] == Or(
        (Compare("sig.image.blur", "lt", 4), Compare("sig.image.blur", "gt", 6))
    )


PARTS = [
    ("meta.camera", 'no"rth', r'NOW & meta.camera="no\"rth"'),
    ("meta.lane", "5", 'NOW & meta.lane=in:5,"5"'),
    ("label", "star", "NOW & label=star"),
    ("day", None, ""),
    ("day", "2026-11-01", ""),
]


@pytest.mark.parametrize(("by", "value", "expected"), PARTS)
def test_a_part_of_the_window_leads_to_its_images(by, value, expected):
    def line_of(report):
        link = ReportTargets(Frame("", has_store=True), report, "1-a").part(
            Slice(by, value, 40, [])
        )
        return parse_qs(urlsplit(link).query).get("q", [""])[0]

    report = drift_report(0, numeric("image.blur", 5, 9))
    window = window_filter(report.model, report.data.current).line
    assert line_of(report).replace(window, "NOW") == expected
    assert line_of(drift_report(0, data=Data(Window(n=5), Window()))) == ""


def test_embeddings_lead_to_the_images_least_like_the_baseline():
    unlike = [Unlike(str(number), 0.01) for number in range(50, 70)]
    ((words, line),) = tails(EMBEDDING, unlike=unlike)
    assert words == "the 12 least like the baseline"
    assert line == f"id=in:{','.join(str(number) for number in range(50, 62))}"
    assert tails(EMBEDDING, unlike=[Unlike("5 | model=x", 0.01)]) == []


@pytest.mark.parametrize(("baseline", "current"), [([], []), ([0, 0], [1, 1]), ([1, 1], [0, 0])])
@pytest.mark.parametrize("kind", ["numeric", "categorical"])
def test_a_side_without_values_has_no_picture(kind, baseline, current):
    signal = replace(numeric("x", 1, 5), kind=kind, histogram=Histogram(["a", "b"], baseline, current))  # fmt: skip
    assert signal_chart(signal, "x") is None


def test_the_picture_of_labels_is_the_same_on_both_pages_and_holds_no_markup_of_theirs():
    signal = categorical("label", [HOSTILE, "ship"], [1, 9], [9, 1])
    chart = signal_chart(signal, "label")
    assert chart is not None
    assert "<script" not in chart.svg
    assert "style=" not in chart.svg  # the console's policy lets no style in
    assert "&lt;script" in chart.svg
    assert chart.svg in render_page(drift_report(0, signal), lambda _: None)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Application, Settings, list[str]]]:
    """Yield a server with six stored images, and their ids."""
    folder = tmp_path / "data"
    folder.mkdir()
    store = StoreHarness(folder, f"sqlite:///{folder}/store.db")
    ids = [smallest_id_at(START_MS + number * 60_000) for number in range(6)]
    image = InputReference("image", f"blake3:{0:064x}", 640, 480, "image/jpeg", kept=True)
    model = ModelReference(MODEL, "1", "ab" * 32)
    store.commit(*(make_record(id_, input=image, model=model, predictions=[]) for id_ in ids))
    store.close()
    settings = Settings(models=str(SAMPLE_MODELS), data=str(folder))
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    yield application, settings, [str(id_) for id_ in ids]
    application.close()


def test_a_report_shows_the_images_of_each_change_that_are_still_there(server):
    application, settings, ids = server
    signal = numeric("image.brightness", 50, 20)
    gone = str(smallest_id_at(START_MS - 5))
    images = ChangedImages(
        signal.name,
        [ChangedImage(ids[0], 14.0), ChangedImage(gone, 15.0), ChangedImage("no id", HOSTILE)],
        [ChangedImage(ids[1], 51.0)],
    )
    keep_report(settings, drift_report(0, signal, changed=[images]))
    for path in (f"/console/reports/{report_id(0)}", f"/console/models/{MODEL}/drift"):
        page = open_page(application, path)
        assert page.status == 200
        shown = re.findall(r'<figure><a href="/console/inferences/([^"]*)"', page.text)
        assert shown == [ids[0], ids[1]]
        pictures = re.findall(r'<image href="/api/inferences/([^"]*)"', page.text)
        assert pictures == [f"{id_}/input?w=512" for id_ in shown]
        assert "below 40, the baseline&#39;s 10th percentile" in page.text
        (link,) = re.findall(r'<a href="(/console/inferences\?q=[^"]*brightness[^"]*)"', page.text)
        (line,) = parse_qs(urlsplit(html.unescape(link)).query)["q"]
        assert line.endswith("sig.image.brightness=lt:40")
        assert open_page(application, html.unescape(link)).status == 200


def test_many_changes_are_cut_and_the_table_has_the_others(server):
    application, settings, ids = server
    signals = [numeric(f"meta.key{number}", 5, 50 + number) for number in range(MAX_CHANGES + 5)]
    images = [ChangedImages(s.name, [ChangedImage(ids[0], 1.0)], []) for s in signals]
    keep_report(settings, drift_report(0, *signals, changed=images))
    page = open_page(application, f"/console/reports/{report_id(0)}")
    assert page.text.count('<article class="signal">') == MAX_CHANGES
    assert page.text.count("<figure>") == MAX_CHANGES
    assert all(f"<code>meta.key{number}</code>" in page.text for number in range(MAX_CHANGES + 5))
