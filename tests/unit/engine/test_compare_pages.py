"""Two versions side by side: where they differ, which evaluation is shown, rights, teams, hostile names and requests."""

import html
import re
import shutil
from collections.abc import Iterator
from typing import Any, get_args
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
import pytest
from msgspec.structs import replace

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.engine.console.frame import Frame
from quadriga.engine.console.pages.compare import ComparedQuality, find_quality
from quadriga.monitor.report import metric_texts
from quadriga.monitor.report.saved import ReportSummary
from quadriga.monitor.report.schema import (
    ComparedSlice,
    Comparison,
    Data,
    Metric,
    Report,
    ReportedModel,
    Window,
)
from quadriga.proto.access import ROLES, Role
from quadriga.store.database.database import migrate
from quadriga.store.records.errors import NotFoundError
from quadriga.store.records.records import (
    InferenceRecord,
    InputReference,
    JournaledChange,
    ModelReference,
    TruthStatement,
)
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.console_harness import Answer, keyed_server, open_page
from tests.unit.engine.drift_reports import keep_report, report_id
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import store_entries

HOSTILE = "</script><script>alert(1)</script>"
FIRST = 700_000_000_000
PAIR = "compare?a=ships%3A1&b=ships%3A2"
FORM = {"content-type": "application/x-www-form-urlencoded", "origin": "http://localhost"}


def answered(
    number: int, version: str, image: int, label: str, *, camera: str = "north", team: str = "a", model: str = "ships"
) -> InferenceRecord:  # fmt: skip
    return make_record(
        FIRST + number,
        team=team,
        model=ModelReference(model, version, "ab" * 32),
        input=InputReference("image", f"blake3:{image:064x}", 80, 60, "image/jpeg", kept=True),
        metadata={"camera": camera, "light": "night" if image % 2 else "day"},
        predictions=[{"label": label, "score": 0.9, "xmin": 1, "ymin": 1, "xmax": 20, "ymax": 20}],
    )


RECORDS = [
    answered(1, "1", 1, "ship"),
    answered(2, "2", 1, "ship"),
    answered(3, "1", 2, "ship"),
    answered(4, "2", 2, HOSTILE),
    answered(5, "1", 3, "ship", camera="east"),
    answered(6, "2", 3, "barge", camera="east"),
    answered(7, "1", 4, "ship"),  # that the second never saw
    answered(8, "1", 5, "ship", team="b"),
    answered(9, "2", 5, "buoy", team="b"),
    answered(10, "1", 6, "ship", camera="west"),  # the second answered another image there
    answered(11, "2", 7, "ship", camera="west"),
    answered(12, "1", 8, "train", model="trains"),
]
TRUTH: list[Any] = [{"label": "ship", "xmin": 1, "ymin": 1, "xmax": 20, "ymax": 20}]
CHANGES = [
    JournaledChange(FIRST + 100 + number, TruthStatement("id", str(FIRST + number), TRUTH))
    for number in (1, 2, 7)
]
"""Truth of an image with both versions, and of one that the second never saw."""


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Application, dict[str, str]]]:
    """Yield a server with inferences of two versions, and a key of each role, and of a team."""
    data = tmp_path_factory.mktemp("compare") / "data"
    settings = Settings(models=str(SAMPLE_MODELS), data=str(data))
    migrate(settings.database_url)
    store_entries(settings.database_url, settings.journal_directory, [*RECORDS, *CHANGES])
    with keyed_server(settings, team={"roles": ["read"], "team": "b"}) as keyed:
        yield keyed


def show(keyed: Any, path: str, role: str = "read", **options: Any) -> Answer:
    server, keys = keyed
    headers = {"authorization": f"Bearer {keys[role]}", **options.pop("headers", {})}
    return open_page(server, f"/console/{path}", headers=headers, **options)


def pairs(page: Answer) -> list[tuple[int, int]]:
    """Return the numbers of the inferences that are shown side by side."""
    found = [
        int(id_) - FIRST for id_ in re.findall(r'class="shot[^>]*/inferences/(\d+)"', page.text)
    ]
    return list(zip(found[::2], found[1::2], strict=True))


def test_images_that_both_answered_differently_are_shown(keyed):
    page = show(keyed, PAIR)
    assert page.status == 200
    assert pairs(page) == [(8, 9), (5, 6), (3, 4)]
    assert "3 that differ, of the newest 4 that both have answered" in page.text
    assert "Only ships:2: <b>barge 0.90</b>" in page.text
    assert "o-false" in page.text
    assert HOSTILE not in page.text
    assert html.escape(HOSTILE)[:20] in page.text


def test_a_filter_and_a_team_narrow_it(keyed):
    assert pairs(show(keyed, f"{PAIR}&q=meta.camera%3Deast")) == [(5, 6)]
    assert pairs(show(keyed, PAIR, "team")) == [(8, 9)]
    nothing = show(keyed, f"{PAIR}&q=label%3Dnothing")
    assert "No image has answers of both" in nothing.text


def test_without_a_choice_two_versions_of_a_model_are_compared(keyed):
    assert pairs(show(keyed, "compare")) == pairs(show(keyed, PAIR))
    assert pairs(show(keyed, "compare?a=ships")) == pairs(show(keyed, PAIR))
    assert show(keyed, "compare?a=shapes-detector").status == 200


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("a=ships%3A1&b=ships%3A1", 400),
        ("a=ships%3A1&b=nobody%3A1", 404),
        (f"a={quote(HOSTILE)}&b=ships%3A1", 404),
        ("a=ships%3A1&b=ships%3A2&q=meta.camera%3Dgt%3A", 400),
        ("a=ships%3A1&b=ships%3A2&cursor=none", 400),
        ("a=ships%3A1&b=ships%3A2&job=unknown", 200),
        ("a=ships%3A1&a=ships%3A2", 400),
    ],
)
def test_a_wrong_address_says_why(keyed, query, status):
    page = show(keyed, f"compare?{query}")
    assert page.status == status
    assert HOSTILE not in page.text


@pytest.mark.parametrize("role", get_args(Role))
def test_who_reads_sees_it_and_who_monitors_evaluates(keyed, role):
    rights = ROLES[role]
    page = show(keyed, PAIR, role)
    assert page.status == (200 if "read" in rights else 403)
    assert ("/console/compare/evaluate" in page.text) == ("monitor" in rights)
    to_label = re.search(r'href="(/console/label[?][^"]*)"', page.text)
    assert (to_label is not None) == ({"read", "annotate"} <= set(rights))
    if to_label is not None:
        queue = show(keyed, html.unescape(to_label[1]).removeprefix("/console/"), role)
        assert len(re.findall(r'<th scope="row"><a href="/console/inferences/', queue.text)) == 3
    body = b"a=ships%3A1&b=ships%3A2&q=&by=meta.light"
    sent = show(keyed, "compare/evaluate", role, method="POST", body=body, headers=FORM)
    assert sent.status == (303 if "monitor" in rights else 403)


def test_the_keys_of_few_values_are_offered_to_slice_by(keyed):
    page = show(keyed, PAIR, "monitor")
    offered = re.findall(r'name="by" value="([^"]+)"( checked)?', page.text)
    assert offered == [
        ("meta.camera", " checked"),
        ("meta.light", " checked"),
        ("hour", ""),
        ("day", ""),
    ]


@pytest.mark.parametrize(
    ("line", "role", "missing"),
    [
        ("", "monitor", ""),
        ("meta.light=night", "monitor", ""),
        ("meta.camera=west", "monitor", "images"),
        ("label=nothing", "monitor", "images"),
        ("meta.camera=east", "monitor", "truth"),
        ("ground_truth=exists:false", "monitor", "truth"),
        ("meta.camera=west", "read", "images"),
    ],
)
def test_both_are_evaluated_only_where_there_is_something_to_measure(keyed, line, role, missing):
    page = show(keyed, f"{PAIR}&q={quote(line)}", role)
    sentences = {
        "images": "once both have answered the same images: none of those that the filter finds.",
        "truth": "once some of the images that the filter finds have ground truth with ships:2.",
    }
    said = [name for name, sentence in sentences.items() if sentence in page.text]
    assert said == ([missing] if missing else [])
    assert ("/console/compare/evaluate" in page.text) == (not missing)


def test_two_models_without_a_common_image_are_not_said_to_be_filtered(keyed):
    page = show(keyed, "compare?a=ships%3A1&b=trains%3A1", "monitor")
    assert "once both have answered the same images." in page.text
    assert "that the filter finds" not in page.text
    assert "/console/compare/evaluate" not in page.text


def test_an_evaluation_of_both_is_a_job(keyed):
    body = b"a=ships%3A1&b=ships%3A2&q=meta.camera%3Dnorth&by=meta.light&by=hour&by=hour"
    sent = show(keyed, "compare/evaluate", "monitor", method="POST", body=body, headers=FORM)
    location = sent.headers["location"]
    assert location.startswith(
        "/console/compare?a=ships%3A1&b=ships%3A2&q=meta.camera%3Dnorth&job="
    )
    job = location.rpartition("=")[2]
    page = show(keyed, f"jobs/{job}")
    parameters = html.unescape(page.text)
    for expected in ('"version": "2"', '"by": [', '"hour"', '"where": "meta.camera=north"'):
        assert expected in parameters
    assert "<h1>evaluation ships 2</h1>" in page.text
    for listing in ("jobs", ""):  # which model each of several jobs is about
        assert re.search(
            rf"/console/jobs/{job}\"(?s:.){{1,400}}>ships 2<", show(keyed, listing).text
        )
    waiting = show(keyed, location.removeprefix("/console/"))
    assert "data-look-again" in waiting.text
    assert "/console/compare/evaluate" not in waiting.text


@pytest.mark.parametrize(
    "body",
    [
        b"a=ships%3A1&b=ships%3A1",
        b"a=ships%3A1",
        b"a=ships%3A1&b=nobody%3A1",
        b"a=ships%3A1&b=ships%3A2&by=camera",
        b"a=ships%3A1&b=ships%3A2&q=meta.camera%3Dnorth+%26",
        b"\xff",
        b"",
    ],
)
def test_a_wrong_form_begins_no_job(keyed, body):
    before = show(keyed, "jobs").text.count("/console/jobs/")
    sent = show(keyed, "compare/evaluate", "monitor", method="POST", body=body, headers=FORM)
    assert sent.status == (404 if b"nobody" in body else 400)
    assert show(keyed, "jobs").text.count("/console/jobs/") == before


class Reports:
    """The reports of evaluations, by id, the newest first."""

    def __init__(self, reports: dict[str, Report | None]) -> None:
        self._reports = reports

    def all(self) -> list[ReportSummary]:
        model = ReportedModel("ships", "2")
        return [
            ReportSummary(id_, "evaluation", "", model, "2027-01-01", "ok", 1, None)
            for id_ in self._reports
        ]

    def read(self, report_id: str) -> bytes:
        report = self._reports[report_id]
        if report is None:
            raise NotFoundError("removed")
        return msgspec.json.encode(report)


def compared(version: str, *, line: str | None = None) -> Report:
    def difference(value: float, reach: float) -> list[Metric]:
        return [Metric("AP", value, ci95=(value - reach, value + reach))]

    slices = [
        ComparedSlice("meta.light", "night", 40, difference(0.094, 0.04), [Metric("AP", 0.3)]),
        ComparedSlice("meta.light", 'a" & b', 40, difference(-0.2, 0.1)),
        ComparedSlice("hour", "07", 3, [Metric("AP", 0.1, ci_reason="fewer than 30 images")]),
        ComparedSlice("meta.light", None, 4, difference(0.0, 0.5)),
        ComparedSlice("meta.fog", "true", 4, difference(0.0, 0.5)),
    ]
    comparison = Comparison(
        ReportedModel("ships", version), 80, [Metric("AP", 0.5)], difference(0.02, 0.1), slices=slices
    )  # fmt: skip
    return Report(
        "evaluation",
        "",
        Data(Window(n=80, filter=line)),
        model=ReportedModel("ships", "2"),
        metrics=[Metric("AP", 0.52)],
        comparisons=[comparison],
    )


def quality_of(reports: dict[str, Report | None], **options: str) -> ComparedQuality | None:
    chosen = {"line": "", "report_id": "", **options}
    link = Frame("", has_store=True).link
    return find_quality(Reports(reports), ("ships", "1"), ("ships", "2"), **chosen, link=link)  # type: ignore[arg-type]  # as much of it as is asked for


def test_the_newest_evaluation_of_both_with_the_filter_is_shown():
    reports = {
        "gone": None,
        "of-another": compared("3"),
        "of-a-part": compared("1", line="meta.camera=north"),
        "newest": compared("1"),
        "older": compared("1"),
    }
    assert quality_of(reports).report_id == "newest"
    assert quality_of(reports, line="meta.camera=north").report_id == "of-a-part"
    assert quality_of(reports, report_id="older").report_id == "older"
    assert quality_of(reports, line="meta.camera=south") is None
    assert quality_of(reports, report_id="of-another") is None
    assert quality_of({}) is None


@pytest.mark.parametrize(
    ("low", "high", "is_named"), [(0.05, 0.2, False), (0.11, 0.2, True), (0.01, 0.09, True)]
)
def test_a_sentence_names_the_places_that_differ_from_all(low, high, is_named):
    report = compared("1")
    part = ComparedSlice("meta.light", "night", 80, [Metric("AP", (low + high) / 2, ci95=(low, high))])  # fmt: skip
    whole = [Metric("AP", 0.1, ci95=(0.05, 0.15))]
    comparison = replace(report.comparisons[0], differences=whole, slices=[part])
    sentence = metric_texts.comparison_sentence(report, comparison)
    assert sentence.startswith("ships 2 is better than ships 1 by 0.100")
    assert ("; better where meta.light=night" in sentence) == is_named


def test_differences_are_said_with_their_interval_and_lead_to_their_images():
    quality = quality_of({"one": compared("1")})
    assert metric_texts.comparison_sentence(quality.report, quality.comparison) == (
        "No certain difference to ships 1; better where meta.light=night by 0.094; "
        'worse where meta.light=a" & b by 0.200.'
    )
    assert (
        metric_texts.comparison_values(quality.comparison) == "AP 0.520, beside 0.500 on 80 images"
    )
    rows = {row.name: row for row in quality.rows}
    assert [metric_texts.difference_verdict(row.metric) for row in quality.rows] == [
        "no difference shown", "better", "worse", "fewer than 30 images", "no difference shown", "no difference shown"
    ]  # fmt: skip
    assert metric_texts.format_difference(rows["meta.light=night"].metric) == "+0.094"
    assert rows["meta.light=night"].first == 0.3
    assert rows[""].first == 0.5
    assert rows["hour=07"].first is None
    assert metric_texts.format_interval(rows["meta.light=night"].metric) == "0.054 to 0.134"
    assert "meta.light%3Dnight" in rows["meta.light=night"].link
    assert rows['meta.light=a" & b'].link.endswith("meta.light%3D%22a%5C%22+%26+b%22")
    assert rows["hour=07"].link == rows["meta.light=(none)"].link == ""
    assert rows[""].link.endswith(
        "q=model%3Dships+%26+version%3D%222%22+%26+ground_truth%3Dexists%3Atrue"
    )
    assert metric_texts.difference_reach(row.metric for row in quality.rows) == pytest.approx(0.5)
    assert rows["meta.fog=true"].link.endswith("+%26+meta.fog%3Dtrue")


def test_a_row_leads_to_what_was_evaluated_of_the_second_model_and_the_page_says_so(keyed):
    """The inferences are those with truth until the end of the evaluation, whatever the filter has."""
    report = compared("1", line="meta.camera=north | meta.camera=east")
    end = "2027-01-02T00:00:00.000Z"
    report = replace(report, data=Data(Window("2027-01-01T00:00:00.000Z", end, filter=report.data.current.filter)))  # fmt: skip
    quality = quality_of({"one": report}, line=report.data.current.filter)
    (line,) = parse_qs(urlsplit(quality.rows[1].link).query)["q"]
    assert line == (
        f'model=ships & version="2" & ground_truth=exists:true & ts=le:{end} & '
        "(meta.camera=north | meta.camera=east) & meta.light=night"
    )
    found = show(keyed, quality.rows[0].link.removeprefix("/console/"))
    assert "<b>1 inference</b>" in found.text


@pytest.mark.parametrize(
    ("value", "ci95", "difference", "interval", "verdict"),
    [
        (0.01, (0.0004, 0.0206), "+0.010", "0.0004 to 0.0206", "better"),
        (
            -0.01,
            (-0.0206, -0.00007),
            "\N{MINUS SIGN}0.010",
            "\N{MINUS SIGN}0.0206 to \N{MINUS SIGN}0.0001",
            "worse",
        ),
        (0.00004, (0.00002, 0.00006), "+0.00004", "0.00002 to 0.00006", "better"),
        (0.01, (0.0, 0.02), "+0.010", "0.000 to 0.020", "no difference shown"),
        (0.00004, (-0.0004, 0.02), "+0.000", "0.000 to 0.020", "no difference shown"),
        (0.01, (0.004, 0.02), "+0.010", "0.004 to 0.020", "better"),
        (0.5, (3e-7, 1.0), "+0.500", "0.0000003 to 1.0000000", "better"),
        (0.01, (0.0004, None), "+0.010", "0.000 to —", "no interval"),
        (0.01, None, "+0.010", "", "no interval"),
        (None, None, "—", "", "no interval"),
    ],
)
def test_an_interval_without_0_shows_that(value, ci95, difference, interval, verdict):
    report = compared("1")
    comparison = replace(
        report.comparisons[0], differences=[Metric("AP", value, ci95=ci95)], slices=[]
    )
    quality = quality_of({"one": replace(report, comparisons=[comparison])})
    (row,) = quality.rows
    assert metric_texts.format_difference(row.metric) == difference
    assert not interval or metric_texts.format_interval(row.metric) == interval
    assert metric_texts.difference_verdict(row.metric) == verdict
    if verdict in {"better", "worse"}:
        assert f"{verdict} than ships 1 by {difference[1:]}." in metric_texts.comparison_sentence(
            quality.report, quality.comparison
        )


def test_a_phone_has_the_images_and_both_values_of_a_row(keyed):
    settings = keyed[0]._settings
    report = replace(compared("1"), id=report_id(0), created="2027-01-03T00:00:00.000Z")
    keep_report(settings, report)
    try:
        page = show(keyed, PAIR)
    finally:
        shutil.rmtree(settings.jobs_directory / report.id)
    narrow = re.findall(r'<span class="under only-s">(.*?)</span></th>', page.text)
    assert narrow[:3] == [
        "80 images<br>ships:1 0.500<br>ships:2 0.520",
        "40 images<br>ships:1 0.300<br>ships:2 0.394",
        "40 images",
    ]
    assert "Images: those that both have answered and that have ground truth." in page.text
