"""Slices and first images of an evaluation on its page: what they show, where they lead, and hostile or missing values."""

from urllib.parse import parse_qs, urlsplit

import pytest

from quadriga.engine.console.frame import Frame
from quadriga.engine.console.pages.reports import ReportTargets, stored_pictures
from quadriga.monitor.report.gallery import worst_cards
from quadriga.monitor.report.metric_texts import is_worse_slice, slice_name
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


def link_of(part: Slice, of: Report | None = None) -> str:
    return ReportTargets(Frame("", has_store=True), of or report(), "rep-1").slice(part)


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
    whole = report(slices=slices, parameters={"slices": {"fog": "meta.fog=ge:1"}})
    links = [link_of(part, whole) for part in slices]
    assert [is_worse_slice(part, whole) for part in slices] == [False, True, *[False] * 6]
    assert [slice_name(part.by, part.value) for part in slices[3:6]] == ["fog", "not fog", "hour=07"]  # fmt: skip
    window = "model%3Dships+%26+version%3D%222%22+%26+ts%3Dge%3A2027-01-01T00%3A00%3A00.000Z+%26+ts%3Dle%3A2027-01-02T00%3A00%3A00.000Z+%26+ground_truth%3Dexists%3Atrue"
    assert links[0] == f"/console/inferences?q={window}+%26+meta.light%3Dday"
    assert links[3].endswith("%26+%28meta.fog%3Dge%3A1%29")
    assert links[4].endswith("%26+%21%28meta.fog%3Dge%3A1%29")
    assert links[2] == links[5] == ""
    for link in filter(None, links):
        QueryRequest(where=line_of(link)).parse_filter()


SLICES = [("1", "1"), ('"1"', '"1"'), ("true", "true"), ('"true"', '"true"'), ("1.5", "1.5"), ("a & b", '"a & b"'), ("2026-01-31", '"2026-01-31"'), ('"a\\"b"', '"a\\"b"')]  # fmt: skip


@pytest.mark.parametrize(("value", "operand"), SLICES)
def test_a_slice_leads_to_the_filter_that_it_names(value, operand):
    assert line_of(link_of(Slice("meta.k", value, 3, []))).endswith(f" & meta.k={operand}")


def test_slices_of_all_versions_together_name_none():
    part = Slice("meta.light", "day", 40, [Metric("AP", 0.5)])
    assert "version" not in link_of(part, report(model=ReportedModel("ships", "1, 2")))


def test_of_a_metric_where_less_is_better_more_is_worse():
    def is_worse(mean):
        part = Slice("meta.k", "v", 40, [Metric("ECE", mean, ci95=(mean - 0.05, mean + 0.05))])
        return is_worse_slice(part, report(metrics=[Metric("ECE", 0.2)]))

    assert [is_worse(mean) for mean in (0.1, 0.2, 0.3)] == [False, False, True]


def shown(of: Report, inferences: InferenceReader) -> list[list[str]]:
    """Return the ids of the images that are shown, and why."""
    pictures = stored_pictures(Frame("", has_store=True), of, inferences)
    return [[card.inference_id, *card.reasons] for card in worst_cards(of, pictures)]


def test_the_worst_images_that_are_still_stored_are_shown_by_reason(store: StoreHarness):
    first = 700_000_000_000
    store.commit(*(make_record(first + number) for number in range(1, 9)))
    worst = [
        *(Worst(str(first + number), "miss", 9.0 - number) for number in range(1, 9)),
        Worst(str(first + 2), "odd_reason", 0.5),
        Worst(str(first + 999), "false_positive", 0.9),
        Worst("scene_01.jpg", "wrong_label", 0.9),
    ]
    confusion = Confusion(["ship"], [[1]], misses={"ship": 9})
    of = report(worst=worst[:-1], confusion=confusion)
    cards = shown(of, store.inferences)
    assert cards[:2] == [[str(first + 1), "miss: 8"], [str(first + 2), "odd reason: 0.500", "miss: 7"]]  # fmt: skip
    assert [id_ for id_, *_ in cards] == [str(first + number) for number in range(1, 9)]
    ((words, link),) = ReportTargets(Frame("", has_store=True), of, "rep-1").all_errors()
    assert words == "Missed: all of them"
    QueryRequest(where=line_of(link)).parse_filter()
    # Images of a dataset on a disk are no inferences.
    assert shown(report(worst=worst[-1:]), store.inferences) == []


class Absent(InferenceReader):
    """A store that is not asked."""

    def __init__(self) -> None:
        pass

    def query(self, request: QueryRequest) -> Page:
        raise AssertionError(request)


def test_a_report_without_worst_images_asks_nothing_of_the_store():
    assert shown(report(), Absent()) == []
