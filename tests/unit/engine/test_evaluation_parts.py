"""Curves, slices and first images of an evaluation on its page: what they show, where they lead, and hostile or missing values."""

from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from quadriga.engine.console.frame import Frame
from quadriga.engine.console.pages.reports import (
    CurvePoint,
    curve_lines,
    slice_rows,
    worst_groups,
)
from quadriga.monitor.report.metric_texts import slice_name
from quadriga.monitor.report.schema import (
    Confusion,
    Data,
    Metric,
    Report,
    ReportedModel,
    Slice,
    Window,
    Worst,
)
from quadriga.store.query.inferences import InferenceReader, Page
from quadriga.store.query.request import QueryRequest
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

HOSTILE = "</script><script>alert(1)</script>"
LINK = Frame("", has_store=True).link


def report(**parts) -> Report:
    window = Window("2027-01-01T00:00:00.000Z", "2027-01-02T00:00:00.000Z", 80)
    whole = {
        "kind": "evaluation",
        "task": "OBJECT_DETECTION",
        "data": Data(window),
        "model": ReportedModel("ships", "2"),
        "metrics": [Metric("AP", 0.6)],
        **parts,
    }
    return Report(**whole)


def line_of(link: str) -> str:
    """Return the filter of a link."""
    (line,) = parse_qs(urlsplit(link).query)["q"]
    return line


def curve(label, points, **more):
    recall, precision, score = (list(column) for column in zip(*points, strict=True))
    return {"label": label, "recall": recall, "precision": precision, "score": score, **more}


GOOD = [(0.0, 1.0, 0.9), (0.5, 1.0, 0.6), (1.0, 0.8, 0.3), (1.0, 0.0, None)]
BAD = [(0.0, 0.5, 0.4), (0.5, 0.4, 0.2)]


def test_curves_have_the_point_of_a_score_and_end_where_the_recall_does():
    worse, better = curve_lines(report(curves={"pr": [curve("ship", GOOD), curve(HOSTILE, BAD)]}))
    assert better.name == "ship"
    assert better.chosen == CurvePoint(0.5, 1.0, 0.6)
    assert better.line == "0.0,0.0 160.0,0.0 320.0,64.0"
    assert msgspec.json.decode(better.points) == [[0, 1, 0.9], [0.5, 1, 0.6], [1, 0.8, 0.3]]
    assert worse.name.startswith("</script")  # the template escapes it
    assert worse.chosen is None


def test_the_first_match_threshold_and_the_worst_labels_are_drawn():
    rows = [curve(None, GOOD, iou=0.5), curve(None, BAD, iou=0.75)]
    labels = [curve(f"label{at}", [(0, at / 10, 0.9), (1, at / 10, 0.1)], iou=0.5) for at in range(9)]  # fmt: skip
    drawn = curve_lines(report(curves={"pr": [*rows, *labels, curve("label0", GOOD, iou=0.75)]}))
    assert [line.name for line in drawn] == [f"label{at}" for at in range(4)]
    assert [line.name for line in curve_lines(report(curves={"pr": rows}))] == [""]


@pytest.mark.parametrize("rows", [[], [curve("a", [(0, 1, None), (1, 0, None)])], [{"label": "a"}]])
def test_what_has_no_points_has_no_curve(rows):
    assert curve_lines(report(curves={"pr": rows})) == []
    assert curve_lines(report()) == []


def test_slices_lead_to_their_images_and_say_which_are_worse():
    def part(by, value, mean, reach):
        return Slice(by, value, 40, [Metric("AP", mean, ci95=(mean - reach, mean + reach))])

    slices = [
        part("meta.light", "day", 0.8, 0.05),
        part("meta.light", 'n"ight & more', 0.3, 0.1),
        part("meta.light", None, 0.5, 0.2),
        part("fog", "true", 0.6, 0.1),
        part("fog", "false", 0.6, 0.1),
        part("hour", "07", 0.6, 0.1),
        Slice("meta.few", "x", 3, [Metric("AP", None, ci_reason="fewer than 30 images")]),
        Slice("meta.none", "x", 0, []),
    ]
    rows = slice_rows(report(slices=slices, parameters={"slices": {"fog": "meta.fog=ge:1"}}), LINK)
    assert [row.is_worse for row in rows] == [False, True, *[False] * 6]
    assert [slice_name(row.part.by, row.part.value) for row in rows[3:6]] == [
        "fog",
        "not fog",
        "hour=07",
    ]
    window = "model%3Dships+%26+version%3D%222%22+%26+ground_truth%3Dexists%3Atrue+%26+ts%3Dge%3A2027-01-01T00%3A00%3A00.000Z+%26+ts%3Dle%3A2027-01-02T00%3A00%3A00.000Z"
    assert rows[0].link == f"/console/inferences?q={window}+%26+meta.light%3Dday"
    assert rows[3].link.endswith("%26+%28meta.fog%3Dge%3A1%29")
    assert rows[4].link.endswith("%26+%21%28meta.fog%3Dge%3A1%29")
    assert rows[2].link == rows[5].link == ""
    for row in rows:
        if row.link:
            QueryRequest(where=line_of(row.link)).parse_filter()


SLICES = [("1", "1"), ('"1"', '"1"'), ("true", "true"), ('"true"', '"true"'), ("1.5", "1.5"), ("a & b", '"a & b"'), ("2026-01-31", '"2026-01-31"'), ('"a\\"b"', '"a\\"b"')]  # fmt: skip


@pytest.mark.parametrize(("value", "operand"), SLICES)
def test_a_slice_leads_to_the_filter_that_it_names(value, operand):
    (row,) = slice_rows(report(slices=[Slice("meta.k", value, 3, [])]), LINK)
    assert parse_qs(urlsplit(row.link).query)["q"][0].endswith(f" & meta.k={operand}")


def test_slices_of_all_versions_together_name_none():
    part = Slice("meta.light", "day", 40, [Metric("AP", 0.5)])
    rows = slice_rows(report(slices=[part], model=ReportedModel("ships", "1, 2")), LINK)
    assert "version" not in rows[0].link


def test_of_a_metric_where_less_is_better_more_is_worse():
    def rows(mean):
        part = Slice("meta.k", "v", 40, [Metric("ECE", mean, ci95=(mean - 0.05, mean + 0.05))])
        return slice_rows(report(metrics=[Metric("ECE", 0.2)], slices=[part]), LINK)

    assert [rows(mean)[0].is_worse for mean in (0.1, 0.2, 0.3)] == [False, False, True]


def test_the_worst_images_that_are_still_stored_are_shown_by_reason(store: StoreHarness):
    first = 700_000_000_000
    store.commit(*(make_record(first + number) for number in range(1, 9)))
    worst = [
        *(Worst(str(first + number), "miss", 9.0 - number) for number in range(1, 9)),
        Worst(str(first + 2), "odd_reason", 0.5),
        Worst(str(first + 999), "false_positive", 0.9),
        Worst("scene_01.jpg", "wrong_label", 0.9),
    ]
    groups = worst_groups(
        report(worst=worst[:-1], confusion=Confusion(["ship"])), "rep-1", store.inferences, LINK
    )
    assert [group.name for group in groups] == ["Missed", "odd reason"]
    assert [card.of.id for card in groups[0].cards] == [str(first + at) for at in range(1, 7)]
    QueryRequest(where=line_of(groups[0].link)).parse_filter()
    assert groups[1].link == ""
    # Images of a dataset on a disk are no inferences.
    assert worst_groups(report(worst=worst[-1:]), "rep-1", store.inferences, LINK) == []


class Absent(InferenceReader):
    """A store that is not asked."""

    def __init__(self) -> None:
        pass

    def query(self, request: QueryRequest) -> Page:
        raise AssertionError(request)


def test_a_report_without_worst_images_asks_nothing_of_the_store():
    assert worst_groups(report(), "rep-1", Absent(), LINK) == []
