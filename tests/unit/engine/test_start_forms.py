"""The forms that start comparisons, evaluations and exports: what they ask for, by whom, and what they refuse."""

import html
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, get_args
from urllib.parse import parse_qs

import pytest

from quadriga.engine.console.start_forms import drift_parameters
from quadriga.engine.settings import Settings
from quadriga.monitor.drift.parameters import StoredWindow
from quadriga.proto.access import ROLES, Role
from quadriga.store.database import migrate
from quadriga.store.errors import QueryError
from quadriga.store.records import ModelReference
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.console_harness import Answer, keyed_server, open_page
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import store_entries

FORM = {"content-type": "application/x-www-form-urlencoded", "origin": "http://localhost"}
NOW = datetime(2026, 1, 7, 12, tzinfo=UTC)
"""A Wednesday."""
RECORDS = [
    make_record(700_000_000_000 + number, model=ModelReference("ships", version, "ab" * 32))
    for number, version in enumerate(("1", "1", "ships:2@sha"))
]
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
def keyed(tmp_path: Any) -> Iterator[tuple[Any, dict[str, str]]]:
    settings = Settings(models=str(SAMPLE_MODELS), data=str(tmp_path / "data"))
    migrate(settings.database_url)
    store_entries(settings.database_url, settings.journal_directory, RECORDS)
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
    reports = send(keyed, "reports?model=ships&q=meta.camera%3Dnorth", role).text
    for path in ("reports/compare", "reports/evaluate"):
        assert (f'action="/console/{path}"' in reports) == may_start
    assert ('value="meta.camera=north"' in html.unescape(reports)) == may_start
    listed = send(keyed, "inferences?q=model%3Dships", role).text
    assert 'action="/console/inferences/export"' in listed


def test_a_version_of_a_logged_model_may_be_any_text(keyed):
    """Each choice of the form is a model and a version that the server finds."""
    page = html.unescape(send(keyed, "reports", "monitor").text)
    assert '<option value="ships:ships:2@sha">' in page
    sent = send(keyed, "reports/evaluate", "monitor", b"model=ships%3Aships%3A2%40sha")
    assert sent.status == 303
    job = html.unescape(send(keyed, sent.headers["location"].removeprefix("/console/"), "monitor").text)  # fmt: skip
    assert '"model": "ships"' in job
    assert '"version": "ships:2@sha"' in job


@pytest.mark.parametrize("path", FORMS)
def test_another_site_starts_nothing(keyed, path):
    foreign = {"origin": "https://evil.example", "sec_fetch_site": "cross-site"}
    assert send(keyed, path, "admin", FORMS[path][1], **foreign).status == 403


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("reports/compare", b"", 400),
        ("reports/compare", b"model=nobody&period=day&before=previous", 404),
        ("reports/compare", b"model=ships&period=day&before=baseline&baseline=none", 400),
        ("reports/evaluate", b"model=ships", 400),
        ("reports/evaluate", b"model=nobody%3A1", 404),
        ("reports/evaluate", b"model=ships%3A1&q=meta.camera%3Dnorth+%26", 400),
        ("inferences/export", b"format=xls&annotations=either", 400),
        ("inferences/export", b"format=coco&annotations=both", 400),
        ("inferences/export", b"format=coco&annotations=either&q=%26", 400),
        ("inferences/export", b"\xff", 400),
    ],
)
def test_a_wrong_form_starts_no_job(keyed, path, body, status):
    assert send(keyed, path, "admin", body).status == status
    assert "/console/jobs/" not in send(keyed, "jobs", "admin").text


@pytest.mark.parametrize(
    ("fields", "now_from", "now_to", "before_from"),
    [
        ("period=day", "2026-01-06T12:00", "2026-01-07T12:00", "2026-01-05T12:00"),
        ("period=today", "2026-01-07T00:00", "2026-01-07T12:00", "2026-01-06T12:00"),
        ("period=week", "2026-01-05T00:00", "2026-01-07T12:00", "2026-01-02T12:00"),
        ("period=seven_days", "2025-12-31T12:00", "2026-01-07T12:00", "2025-12-24T12:00"),
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
    compared = drift_parameters(parse_qs(f"model=ships&before=previous&{fields}"), NOW)
    start, end = (f"{moment}:00.000Z" for moment in (now_from, now_to))
    assert (compared.start, compared.end) == (start, end)
    assert compared.baseline == StoredWindow(f"{before_from}:00.000Z", start)


def test_a_period_is_compared_with_a_baseline_by_its_name():
    fields = parse_qs("model=ships&period=day&before=baseline&baseline=spring")
    assert drift_parameters(fields, NOW).baseline == "spring"


@pytest.mark.parametrize(
    "fields",
    [
        "period=year&before=previous",
        "period=day&before=",
        "period=day&before=baseline",
        "from=2026-01-03T00:00&before=previous",
        "from=2026-01-03T00:00&to=2026-01-02T00:00&before=previous",
        "from=0001-01-02T00:00&to=2026-01-02T00:00&before=previous",
        "from=0001-01-01T00:00%2B05:00&to=2026-01-02T00:00&before=previous",
    ],
)
def test_a_period_that_means_nothing_is_refused(fields):
    with pytest.raises(QueryError):
        drift_parameters(parse_qs(f"model=ships&{fields}"), NOW)
