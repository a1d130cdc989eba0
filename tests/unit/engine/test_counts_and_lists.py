"""Numbers that lead to a list: it has as many, or the page says what differs."""

import html
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec.structs import replace

from quadriga.monitor.report.cells import Cell, save_cells
from quadriga.monitor.report.page import cell_count, counted_unit
from quadriga.monitor.report.schema import Confusion, Data, Metric, Window
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import JournaledChange, ModelReference, TruthStatement
from tests.unit.engine.console_harness import open_page
from tests.unit.engine.drift_reports import (
    MODEL,
    START_MS,
    drift_report,
    keep_report,
    numeric,
    report_id,
)
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import store_entries

OBJECTS = Confusion(
    ["star", "ring"],
    [[5, 1], [0, 2]],
    hallucinations={"ring": 4},
    misses={"star": 3},
    parameters={"of": "objects"},
)


@pytest.mark.parametrize(
    ("truth", "predicted", "count"),
    [
        ("star", "star", 5),
        ("star", "ring", 1),
        ("ring", "star", 0),
        ("star", "", 3),
        ("", "ring", 4),
    ],
)
def test_the_count_of_a_cell_is_that_of_the_matrix(truth, predicted, count):
    assert cell_count(OBJECTS, truth, predicted) == count


@pytest.mark.parametrize(
    ("truth", "predicted"), [(None, "star"), ("star", None), (None, None), ("x", "star"), ("", "")]
)
def test_what_is_no_single_cell_has_no_count(truth, predicted):
    assert cell_count(OBJECTS, truth, predicted) is None


@pytest.mark.parametrize(
    ("confusion", "unit"),
    [
        (None, "objects"),
        (Confusion(), "objects"),
        (Confusion(parameters={"of": "images"}), "images"),
    ],
)
def test_the_unit_of_the_counts(confusion, unit):
    assert counted_unit(confusion) == unit


def evaluation(**fields):
    return replace(drift_report(0), kind="evaluation", **fields)


@pytest.mark.parametrize(
    ("unit", "is_said"), [("objects", True), ("pixels", True), ("images", False)]
)
def test_a_cell_says_how_many_it_counts_and_on_how_many_images(settings, server, unit, is_said):
    ids = [smallest_id_at(START_MS + n) for n in range(2)]
    store_entries(settings.database_url, settings.journal_directory, map(make_record, ids))
    confusion = replace(OBJECTS, misses={"star": 1_246}, parameters={"of": unit})
    folder = keep_report(settings, evaluation(confusion=confusion))
    save_cells(folder, [Cell("star", None, [str(id_) for id_ in ids]), Cell("star", "star", [])])
    path = f"/console/reports/{report_id(0)}"
    assert (
        "an image with several stands once in their list" in open_page(server, path).text
    ) == is_said
    page = open_page(server, f"{path}/images?truth=star&predicted=").text
    assert f"1,246 {unit} on 2 images" in page
    assert page.count('href="/console/inferences/') >= 2
    assert " on 2 images" not in open_page(server, f"{path}/images?truth=star").text
    (folder / "report.json").write_bytes(b"{")
    damaged = open_page(server, f"{path}/images?truth=star&predicted=")
    assert (damaged.status, "1,246" in damaged.text) == (200, False)


@pytest.mark.parametrize("unit", ["object", "pixel", "image"])
def test_a_cell_with_one_speaks_of_one(settings, server, unit):
    id_ = smallest_id_at(START_MS)
    store_entries(settings.database_url, settings.journal_directory, [make_record(id_)])
    confusion = replace(OBJECTS, misses={"star": 1}, parameters={"of": f"{unit}s"})
    folder = keep_report(settings, evaluation(confusion=confusion))
    save_cells(folder, [Cell("star", None, [str(id_)])])
    page = open_page(server, f"/console/reports/{report_id(0)}/images?truth=star&predicted=").text
    assert f">1 {unit} on 1 image<" in page


def test_the_images_of_an_evaluation_are_those_with_truth(settings, server):
    ids = [smallest_id_at(START_MS + n) for n in range(5)]
    model = ModelReference(MODEL, "1", "ab" * 32)
    records = [make_record(id_, model=model) for id_ in ids]
    changes = [
        TruthStatement("id", str(id_), [], "mara", task=records[0].task, review=review)
        for id_, review in zip(ids, ("", "approved", "rejected"), strict=False)
    ]
    journaled = [JournaledChange(ids[-1] + 1 + n, change) for n, change in enumerate(changes)]
    store_entries(settings.database_url, settings.journal_directory, [*records, *journaled])
    keep_report(settings, evaluation(data=Data(replace(drift_report(0).data.current, n=2))))
    page = open_page(server, f"/console/reports/{report_id(0)}").text
    (link,) = re.findall(r'href="([^"]*)">Images with truth of this time<', page)
    assert "<b>2 inferences</b>" in open_page(server, html.unescape(link)).text
    (line,) = parse_qs(urlsplit(html.unescape(link)).query)["q"]
    assert line.startswith(f"model={MODEL} & ")


@pytest.mark.parametrize(
    ("excluded", "rows", "words"),
    [
        ({}, 100_000, "See the 200 images"),
        ({"baseline_other_task": 5}, 100_000, "See the 200 images"),
        ({"other_task": 0}, 100_000, "See the 200 images"),
        ({"other_task": 5}, 100_000, "See all images of this time"),
        ({}, 200, "See all images of this time"),
    ],
)
def test_images_that_were_not_compared_are_not_counted(settings, server, excluded, rows, words):
    report = drift_report(0, numeric("score", 5, 9), parameters={"rows": rows})
    keep_report(settings, replace(report, data=replace(report.data, excluded=excluded)))
    page = open_page(server, f"/console/models/{MODEL}/drift").text
    assert re.findall(r'<a class="button first"[^>]*>([^<]*)', page) == [words]


def test_an_evaluation_of_files_has_no_link(settings, server):
    keep_report(settings, evaluation(data=Data(Window(n=2))))
    assert (
        "Images with truth of this time"
        not in open_page(server, f"/console/reports/{report_id(0)}").text
    )


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        ([(0.9, 200, None, False), (0.5, 20, "label=a", False)], 0.9),
        ([(0.9, 200, None, False), (0.5, 20, "label=a", True)], 0.5),
        ([(0.5, 20, "label=a", True), (0.9, 200, None, False)], 0.9),
        ([(0.9, 200, None, False), (0.5, 0, None, False), (0.4, 0, "label=a", True)], 0.9),
        ([(0.9, 20, "label=b", False), (0.5, 20, "label=a", False), (0.4, 0, None, False)], 0.5),
        ([(0.5, 0, "label=a", False)], 0.5),
        (
            [(0.9, 200, None, False), (0.5, 90, "ts=ge:-7d & ts=lt:2030-01-01T00:00:00Z", False)],
            0.5,
        ),
        ([(0.9, 200, None, False), (0.5, 90, {"ts": {"ge": "-7d"}}, False)], 0.5),
        ([(0.9, 200, None, False), (0.5, 90, "ts=ge:-7d & label=a", False)], 0.9),
        ([(0.9, 200, None, False), (0.5, 90, "of_a_later_version=a", False)], 0.9),
    ],
)
def test_the_quality_of_a_model_is_of_all_its_images_or_of_a_schedule(settings, server, made, shown):  # fmt: skip
    id_ = smallest_id_at(START_MS)
    record = make_record(id_, model=ModelReference(MODEL, "1", "ab" * 32))
    store_entries(settings.database_url, settings.journal_directory, [record])
    for number, (value, n, line, is_scheduled) in enumerate(made):
        window = replace(drift_report(number).data.current, n=n, filter=line)
        report = replace(
            drift_report(number),
            kind="evaluation",
            data=Data(window),
            metrics=[Metric("AP", value)],
        )
        keep_report(settings, report, schedule={"start": "x"} if is_scheduled else None)
    page = open_page(server, f"/console/models/{MODEL}").text
    assert f">AP {shown:.3f}</a>" in page
    assert page.count("AP 0.") == 1
