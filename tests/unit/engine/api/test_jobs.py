"""Jobs over HTTP: submitted, watched, cancelled, fetched."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from contextvars import copy_context
from pathlib import Path

import msgspec
import pytest
from litestar import Litestar
from litestar.testing import TestClient

from quadriga.engine.api.access import check_end_webhook
from quadriga.engine.api.jobs import job_routes
from quadriga.monitor.watch.webhooks import parse_webhook_hosts
from quadriga.proto.access import ROLES, Caller
from quadriga.proto.errors import Forbidden
from quadriga.proto.request import RequestContext, set_current_request
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.exchange.export import run_export
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.jobs.runner import JobRunner
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import QueryError
from tests.background import in_background, until
from tests.unit.http_client import NoStore, client_of
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import store_entries


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient[Litestar]]:
    with client_of(job_routes(Jobs(tmp_path / "jobs"), NoStore())) as client:
        yield client


def test_an_export_is_submitted_watched_and_fetched(client, tmp_path) -> None:
    assert client.get("/api/jobs").json() == {"jobs": []}
    url = f"sqlite:///{tmp_path}/store.db"
    store_entries(url, tmp_path / "journal", [make_record(seq) for seq in (1, 2)])
    body = {"where": {"id": "2"}, "time_range": {"start": "1970-01-01T00:00:00Z"}}
    answer = client.post("/api/exports", json=body)
    assert answer.status_code == 202
    job = answer.json()
    assert (job["state"], job["kind"], job["progress"]) == (
        "queued",
        "export",
        {"done": 0, "total": None},
    )
    path = f"/api/jobs/{job['id']}"
    assert client.get(f"{path}/result").status_code == 404
    assert client.get("/api/jobs").json() == {"jobs": [job]}
    blobs = FileBlobs(tmp_path / "blobs")
    inferences = InferenceReader(url, tmp_path / "journal", blobs)
    runner = JobRunner(Jobs(tmp_path / "jobs"), {"export": run_export}, inferences, blobs)
    with in_background(runner.run):
        until(lambda: client.get(path).json()["ended_at"] is not None)
    inferences.close()
    job = client.get(path).json()
    assert (job["state"], job["progress"]) == ("succeeded", {"done": 1, "total": 1})
    assert "1 inferences written to inferences.jsonl" in job["log"]
    result = client.get(f"{path}/result")
    assert result.headers["content-type"].startswith("application/jsonl")
    assert 'filename="inferences.jsonl"' in result.headers["content-disposition"]
    assert [json.loads(line)["id"] for line in result.content.splitlines()] == ["2"]
    assert len(result.content) == job["result"]["bytes"]
    assert client.post(f"{path}/cancel").json()["state"] == "succeeded"


def test_a_queued_job_is_cancelled(client) -> None:
    job = client.post("/api/exports", content=b"").json()
    answer = client.post(f"/api/jobs/{job['id']}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b"{",
            "expected the body to be a JSON object with where, format (chariot, coco, cvat, dota, imagefolder, jsonl, label-studio, parquet, yolo, yolo-obb, yolo-seg), images, annotations (either, ground_truth, predictions), split, split_by, image_url, upright, labels, webhook, metadata_filter, gps_box, time_range, got",
        ),
        (b'{"format": "xml"}', "expected the body to be a JSON object"),
        (b'{"where": {"nothing": 1}}', "expected where.nothing to"),
        (b'{"where": 5}', "expected where to be an object, got an integer"),
        (b'{"metadata_filter": [{"key": "a", "value": 5}]}', "expected metadata_filter[0].value"),
        (b'{"pagination": {"limit": 1}}', "expected the body to be a JSON object"),
    ],
)
def test_an_export_that_means_nothing_is_refused(client, body: bytes, message: str) -> None:
    answer = client.post("/api/exports", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(message)
    assert client.get("/api/jobs").json() == {"jobs": []}


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("GET", "/result"), ("POST", "/cancel")])
@pytest.mark.parametrize("job_id", ["5", "0" * 19 + "-abcd", "..%2F..%2Fetc"])
def test_unknown_job_is_not_found(client, method: str, path: str, job_id: str) -> None:
    answer = client.request(method, f"/api/jobs/{job_id}{path}")
    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("role", "url", "error"),
    [
        ("read", msgspec.UNSET, None),
        ("monitor", "https://example.org/end", None),
        ("monitor", "http://hook.example.com:99/", None),
        ("read", "https://example.org/end", "expected a key with the role monitor"),
        ("infer", "https://example.org/end", "expected a key with the role monitor"),
        ("admin", "ftp://example.org", "expected webhook to be http or https with a host"),
        ("admin", "https://user@example.org", "expected webhook to be http or https with a host"),
        ("admin", "http://169.254.169.254/", "expected the host of webhook to be an address that"),
        ("admin", "http://localhost/", "expected the host of webhook to be a public host, or one"),
    ],
)
def test_a_webhook_of_a_job_is_checked_as_those_of_schedules(role, url, error) -> None:
    def check() -> None:
        set_current_request(
            RequestContext(caller=Caller(name="test", rights=frozenset(ROLES[role])))
        )
        check_end_webhook(url, parse_webhook_hosts("public,hook.example.com"))

    with pytest.raises((Forbidden, QueryError), match=error) if error else nullcontext():
        copy_context().run(check)
