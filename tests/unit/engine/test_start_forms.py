"""The forms that start comparisons, evaluations and exports: what they ask for, by whom, and what they refuse."""

import html
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, get_args
from urllib.parse import parse_qsl, urlencode

import msgspec
import pytest
from msgspec.structs import replace

from quadriga.engine.config.settings import Settings
from quadriga.engine.console.pages.start import drift_parameters
from quadriga.monitor.drift.parameters import StoredWindow
from quadriga.monitor.report.schema import ReportedModel
from quadriga.proto.access import ROLES, Role
from quadriga.store.records.errors import QueryError
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import (
    JournaledChange,
    ModelReference,
    TruthStatement,
    timestamp_text,
)
from tests.unit.engine.console_harness import Answer, keyed_server, open_page
from tests.unit.engine.drift_reports import drift_report, keep_report
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import store_entries

FORM = {"content-type": "application/x-www-form-urlencoded", "origin": "http://localhost"}
NOW = datetime(2026, 1, 7, 12, tzinfo=UTC)
"""A Wednesday."""
FIRST = 700_000_000_000
RECORDS = [
    make_record(FIRST + number, model=ModelReference("ships", version, "ab" * 32), metadata=metadata)
    for number, (version, metadata) in enumerate(
        (("1", {"camera": "north"}), ("1", {"camera": "south"}), ("ships:2@sha", {}), ("no truth", {}))
    )
]  # fmt: skip
TRUTH = [
    JournaledChange(FIRST + 10 + number, TruthStatement("id", str(FIRST + number), [], "mara", task=RECORDS[number].task))
    for number in (0, 2)
]  # fmt: skip
"""Truth of the camera north, and of the second version."""
FORMS = {
    "reports/compare": ("monitor", b"model=ships&period=day&before=previous", '"from": "'),
    "reports/evaluate": (
        "monitor",
        b"model=ships%3A1&q=meta.camera%3Dnorth",
        '"where": "meta.camera=north"',
    ),
    "inferences/export": (
        "read",
        b"format=coco&annotations=ground_truth&q=model%3Dships",
        '"annotations": "ground_truth"',
    ),
}
"""Right, fields, and what the page of the job then says, of each form."""


@pytest.fixture
def keyed(settings: Settings) -> Iterator[tuple[Any, dict[str, str]]]:
    store_entries(settings.database_url, settings.journal_directory, [*RECORDS, *TRUTH])
    with keyed_server(settings) as server_and_keys:
        yield server_and_keys


def send(keyed: Any, path: str, role: str, body: bytes | None = None, **given: str) -> Answer:
    server, keys = keyed
    headers = {"authorization": f"Bearer {keys[role]}"}
    if body is None:
        return open_page(server, f"/console/{path}", headers=headers)
    sent = {**FORM, **headers, **{name.replace("_", "-"): value for name, value in given.items()}}
    return open_page(server, f"/console/{path}", method="POST", headers=sent, body=body)


@pytest.mark.parametrize("role", get_args(Role))
@pytest.mark.parametrize("path", FORMS)
def test_who_has_the_right_starts_a_job_and_comes_to_its_page(keyed, path, role):
    right, body, expected = FORMS[path]
    sent = send(keyed, path, role, body)
    assert sent.status == (303 if right in ROLES[role] else 403)
    if sent.status == 303 and "read" in ROLES[role]:
        page = send(keyed, sent.headers["location"].removeprefix("/console/"), role)
        assert expected in html.unescape(page.text)
        assert "data-look-again" in page.text


@pytest.mark.parametrize("role", get_args(Role))
def test_the_pages_show_the_forms_to_those_who_may_send_them(keyed, role):
    if "read" not in ROLES[role]:
        return
    may_start = "monitor" in ROLES[role]
    assert ('href="/console/reports/new"' in send(keyed, "reports", role).text) == may_start
    for kind, path in (("evaluation", "reports/evaluate"), ("drift", "reports/compare")):
        page = send(keyed, f"reports/new?kind={kind}&q=meta.camera%3Dnorth", role)
        assert (page.status == 200) == may_start
        assert (f'action="/console/{path}"' in page.text) == may_start
        assert ('value="meta.camera=north"' in page.text) == may_start
    listed = send(keyed, "inferences?q=model%3Dships", role).text
    assert 'action="/console/inferences/export"' in listed


def test_a_version_of_a_logged_model_may_be_any_text(keyed):
    """Each choice of the form is a model and a version that the server finds."""
    page = html.unescape(send(keyed, "reports/new", "monitor").text)
    assert '<option value="ships:ships:2@sha"' in page
    sent = send(keyed, "reports/evaluate", "monitor", b"model=ships%3Aships%3A2%40sha")
    assert sent.status == 303
    job = html.unescape(send(keyed, sent.headers["location"].removeprefix("/console/"), "monitor").text)  # fmt: skip
    assert '"model": "ships"' in job
    assert '"version": "ships:2@sha"' in job


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("model=ships & version=1 & meta.camera=north", ("ships:1", "meta.camera=north")),
        ("meta.camera=north", ("ships:1", "meta.camera=north")),
        ("model=ships", ("ships:ships:2@sha", "")),
        ("model=ships & meta.camera=south", ("ships:1", "meta.camera=south")),
        ("meta.camera=nowhere", ("", "meta.camera=nowhere")),
        ("camera=", ("", "camera=")),
        ('meta.camera="<b>" | version=1', ("ships:1", 'meta.camera="<b>" | version=1')),
    ],
)
def test_an_evaluation_takes_model_version_and_filter_from_the_page_before(keyed, query, shown):
    """Without a version the newest inference with ground truth decides, not the first name by alphabet."""
    page = send(keyed, f"reports/new?{urlencode({'q': query})}", "monitor").text
    assert page.partition("field-model")[2]
    chosen = re.findall(r'<option value="([^"]*)" selected', page)
    (line,) = re.findall(r'id="field-q" name="q" type="text" value="([^"]*)"', page)
    assert ("".join(chosen), html.unescape(line)) == shown


def test_a_comparison_takes_the_time_from_the_page_before(keyed):
    line = "model=ships & version=1 & ts=ge:2026-01-03T00:00:00Z & ts=lt:2026-01-04T00:00:00Z & meta.camera=north"
    page = send(keyed, f"reports/new?{urlencode({'kind': 'drift', 'q': line})}", "monitor").text
    for name, value in (("from", "2026-01-03T00:00:00"), ("to", "2026-01-04T00:00:00")):
        assert f'id="field-{name}" name="{name}" type="datetime-local" value="{value}"' in page
    assert '<option value="ships:1" selected>' in page
    assert 'value="meta.camera=north"' in page


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("reports/evaluate", b"model=ships%3A1&q=meta.camera%3D%22%3Cb%3E%22&by=meta.lens", "q"),
        ("reports/compare", b"model=ships%3A1&q=meta.camera%3D%22%3Cb%3E%22&by=meta.lens&before=previous&to=2026-01-03T00:00", "from"),
        ("reports/compare", b"model=ships%3A1&q=meta.camera%3D%22%3Cb%3E%22&by=meta.lens&before=x&period=day", "before"),
    ],
)  # fmt: skip
def test_what_is_wrong_stands_at_its_field_with_what_was_typed(keyed, path, body, field):
    page = send(keyed, path, "monitor", body)
    assert page.status == 400
    assert re.findall(r'id="help-(\w+)" role="alert"', page.text) == [field]
    assert '<option value="ships:1" selected>' in page.text
    assert 'value="meta.camera=&#34;&lt;b&gt;&#34;"' in page.text
    assert 'value="meta.lens"' in page.text
    program = send(keyed, path, "monitor", body, accept="application/json")
    assert (program.status, list(msgspec.json.decode(program.text))) == (400, ["error"])


@pytest.mark.parametrize("path", FORMS)
def test_another_site_starts_nothing(keyed, path):
    foreign = {"origin": "https://evil.example", "sec_fetch_site": "cross-site"}
    assert send(keyed, path, "admin", FORMS[path][1], **foreign).status == 403


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("reports/compare", b"", 400),
        ("reports/compare", b"model=nobody&period=day&before=previous", 404),
        ("reports/compare", b"model=ships&period=day&before=baseline:none", 400),
        ("reports/compare", b"model=ships&period=day&before=baseline", 400),
        (
            "reports/compare",
            b"model=ships&period=day&before=previous&q=meta.camera%3Dnorth+%26",
            400,
        ),
        (
            "reports/compare",
            b"model=ships&period=day&before=previous&by="
            + b"a,b," * 9
            + b",".join(b"k%d" % n for n in range(19)),
            400,
        ),
        ("reports/evaluate", b"model=ships", 400),
        ("reports/evaluate", b"model=nobody%3A1", 404),
        ("reports/evaluate", b"model=ships%3A1&q=meta.camera%3Dnorth+%26", 400),
        ("reports/evaluate", b"model=ships%3A1&q=meta.camera%3Dsouth", 400),
        ("reports/evaluate", b"model=ships%3A1&q=ground_truth%3Dexists:false", 400),
        ("reports/evaluate", b"model=ships%3Ano+truth", 400),
        ("reports/evaluate", b"model=ships%3A7", 400),
        ("inferences/export", b"format=xls&annotations=either", 400),
        ("inferences/export", b"format=coco&annotations=both", 400),
        ("inferences/export", b"format=coco&annotations=either&q=%26", 400),
        ("inferences/export", b"\xff", 400),
    ],
)
def test_a_wrong_form_starts_no_job(keyed, path, body, status):
    assert send(keyed, path, "admin", body).status == status
    assert "/console/jobs/" not in send(keyed, "jobs", "admin").text


@pytest.mark.parametrize("path", FORMS)
def test_a_wrong_filter_is_explained_as_in_the_list(keyed, path):
    body = FORMS[path][1].partition(b"&q=")[0] + b"&q=camera%3Dnorth"
    page = html.unescape(send(keyed, path, "admin", body).text)
    assert "There is no field \N{LEFT DOUBLE QUOTATION MARK}camera\N{RIGHT DOUBLE QUOTATION MARK}. Metadata begins with meta., as in meta.KEY=VALUE." in page  # fmt: skip
    assert "expected" not in page


@pytest.mark.parametrize("times", [b"period=day&to=2026-01-03T00:00", b"period=own"])
def test_a_period_without_a_beginning_is_refused_and_stays_one_of_its_own(keyed, times):
    body = b"model=ships&before=previous&" + times
    page = html.unescape(send(keyed, "reports/compare", "admin", body).text)
    assert "expected the beginning of the period as 2026-01-31T08:00, got none" in page
    assert '<option value="own" selected>' in page


def test_the_form_says_how_much_of_the_model_with_the_most_is_in_the_period(keyed):
    page = send(keyed, "reports/new?kind=drift&period=day", "monitor").text
    assert re.findall('<option value="([^"]*)" selected', page) == ["ships", "day"]
    assert "0 inferences match in this period, 0 in the one before. An alarm needs 30 on each side." in page  # fmt: skip
    times = "period=day&from=2020-01-01T00:00"
    page = send(keyed, f"reports/new?kind=drift&{times}&q=version%3D1", "monitor").text
    found = len([record for record in RECORDS if record.model.version == "1"])
    assert f"{found} inferences match in this period, 0 in the one before." in page
    assert '<option value="own" selected>' in page


def test_where_no_period_has_enough_images_the_later_half_is_compared_with_all_before(keyed):
    page = send(keyed, "reports/new?kind=drift", "monitor").text
    assert re.findall('<option value="([^"]*)" selected', page) == ["ships", "half"]
    # All of them are of one millisecond, which has no half.
    assert "4 inferences match in this period, 0 in the one before. An alarm needs 30 on each side." in page  # fmt: skip
    sent = send(keyed, "reports/compare", "monitor", b"model=ships&period=half&before=previous")
    job = html.unescape(send(keyed, sent.headers["location"].removeprefix("/console/"), "monitor").text)  # fmt: skip
    middle = timestamp_text(time_ms(FIRST + 2))
    assert (job.count(f'"from": "{middle}"'), job.count(f'"to": "{middle}"')) == (1, 1)
    nothing = send(keyed, "reports/compare", "monitor", b"model=ships:none&period=half&before=previous")  # fmt: skip
    assert nothing.status == 400
    assert "expected two inferences or more to compare, found 0" in nothing.text


@pytest.mark.parametrize(
    ("fields", "now_from", "now_to", "before_from"),
    [
        ("period=day", "2026-01-06T12:00", "2026-01-07T12:00", "2026-01-05T12:00"),
        ("period=today", "2026-01-07T00:00", "2026-01-07T12:00", "2026-01-06T12:00"),
        ("period=week", "2026-01-05T00:00", "2026-01-07T12:00", "2026-01-02T12:00"),
        ("period=seven_days", "2025-12-31T12:00", "2026-01-07T12:00", "2025-12-24T12:00"),
        (
            "period=day&from=2026-01-06T12:00",
            "2026-01-06T12:00",
            "2026-01-07T12:00",
            "2026-01-05T12:00",
        ),
        (
            "period=day&from=2026-01-03T00:00&to=2026-01-04T00:00",
            "2026-01-03T00:00",
            "2026-01-04T00:00",
            "2026-01-02T00:00",
        ),
    ],
)
def test_a_period_is_compared_with_the_one_of_the_same_length_before(
    fields, now_from, now_to, before_from
):
    compared = drift_parameters(dict(parse_qsl(f"model=ships&before=previous&{fields}")), NOW, None)
    start, end = (f"{moment}:00.000Z" for moment in (now_from, now_to))
    assert (compared.start, compared.end) == (start, end)
    assert compared.baseline == StoredWindow(f"{before_from}:00.000Z", start)


def test_a_period_is_compared_with_a_baseline_by_its_name():
    fields = dict(parse_qsl("model=ships&period=day&before=baseline:spring"))
    assert drift_parameters(fields, NOW, None).baseline == "spring"


@pytest.mark.parametrize(
    ("fields", "version", "where", "by"),
    [
        ("model=ships", None, None, []),
        ("model=ships:1", "1", None, []),
        ("model=ships:ships:2@sha", "ships:2@sha", None, []),
        ("model=ships&q=meta.camera%3Dnorth", None, "meta.camera=north", []),
        ("model=ships:1&by=camera_id,+meta.lens,,camera_id", "1", None, ["camera_id", "meta.lens"]),
        ("model=ships&by=+,", None, None, []),
    ],
)
def test_both_sides_are_of_the_version_and_the_filter_that_were_chosen(fields, version, where, by):
    compared = drift_parameters(dict(parse_qsl(f"{fields}&period=day&before=previous")), NOW, None)
    assert (compared.model, compared.version, compared.where, compared.by) == ("ships", version, where, by)  # fmt: skip
    assert isinstance(compared.baseline, StoredWindow)
    assert (compared.baseline.version, compared.baseline.where) == (version, where)


def test_several_versions_are_compared_together_by_name_alone(keyed):
    page = html.unescape(send(keyed, "reports/new?kind=drift&model=ships:1", "monitor").text)
    form = page.partition('action="/console/reports/compare"')[2].partition("</form>")[0]
    options = re.findall(
        r'<option value="([^"]*)"( selected)?>([^<]*)', form.partition("</select>")[0]
    )
    assert options == [
        ("ships", "", "ships, versions no truth, ships:2@sha, 1 together"),
        ("ships:no truth", "", "ships no truth"),
        ("ships:ships:2@sha", "", "ships ships:2@sha"),
        ("ships:1", " selected", "ships 1"),
    ]


def test_baselines_that_are_kept_are_offered_and_no_others(keyed):
    def offered() -> list[str]:
        page = html.unescape(send(keyed, "reports/new?kind=drift", "monitor").text)
        return re.findall(r'<option value="baseline:[^"]*">([^<]*)', page)

    assert offered() == []
    server, keys = keyed
    for name in ("spring", "default"):
        body = msgspec.json.encode({"name": name, "from": "-30d", "to": "now"})
        sent = {"authorization": f"Bearer {keys['monitor']}", "content-type": "application/json"}
        made = open_page(
            server, "/api/models/ships/baseline", method="PUT", headers=sent, body=body
        )
        assert made.status < 300, made.text
    assert offered() == ["Baseline default of ships", "Baseline spring of ships"]


def test_without_truth_the_form_says_what_is_missing(keyed):
    refused = send(keyed, "reports/evaluate", "monitor", b"model=ships%3A1&q=meta.camera%3Dsouth")
    assert "no inference of ships 1 that the filter finds has ground truth" in html.unescape(
        refused.text
    )


def test_a_report_of_several_versions_says_so(keyed, settings):
    for number, (version, is_said) in enumerate((("1", False), ("1, 2", True))):
        report = replace(drift_report(number), model=ReportedModel("ships", version))
        keep_report(settings, report)
        page = send(keyed, f"reports/{report.id}", "monitor").text
        assert ("Versions 1, 2 are compared together" in page) is is_said


@pytest.mark.parametrize(
    "fields",
    [
        "period=year&before=previous",
        "period=day&before=",
        "period=day&before=baseline",
        "to=2026-01-03T00:00&before=previous",
        "period=own&before=previous",
        "from=2026-01-03T00:00&to=2026-01-02T00:00&before=previous",
        "from=0001-01-02T00:00&to=2026-01-02T00:00&before=previous",
        "from=0001-01-01T00:00%2B05:00&to=2026-01-02T00:00&before=previous",
    ],
)
def test_a_period_that_means_nothing_is_refused(fields):
    with pytest.raises(QueryError):
        drift_parameters(dict(parse_qsl(f"model=ships&{fields}")), NOW, None)


@pytest.mark.parametrize(
    ("query", "model", "others"),
    [
        ("", "ships:ships:2@sha", "ships 1"),
        ("q=meta.camera%3Dnorth", "ships:1", ""),
        ("q=model%3Dships", "ships:ships:2@sha", "ships 1"),
        ("q=model%3Dships+%26+version%3D1", "ships:1", ""),
        ("q=version%3D%22no+truth%22", "ships:no truth", ""),
        ("q=meta.camera%3Dsouth+%7C+version%3D%22no+truth%22", "ships:no truth", "ships 1"),
    ],
)
def test_an_evaluation_says_that_the_filter_finds_other_versions_too(keyed, query, model, others):
    page = send(keyed, f"reports/new?{query}", "monitor").text
    assert html.unescape(re.search(r'<option value="([^"]*)" selected', page)[1]) == model
    said = re.search(r'id="help-model">([^<]*)', page)
    assert (said[1] if said else "") == (
        f"A report is about one version of a model: the filter finds {others}, too." if others else ""
    )  # fmt: skip
