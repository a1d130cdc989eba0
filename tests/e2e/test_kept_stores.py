"""A store that 0.1.0 left, with records in the journal and jobs undone, goes on: see `tests/data/README.md`."""

import hashlib
import hmac
import json
import lzma
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from quadriga.store.database import REVISION
from tests.postgres_server import PostgresServer
from tests.server_process import ROOT, SAMPLE_MODELS, ServerProcess, quadriga

KEPT = ROOT / "tests" / "data" / "0.1.0"
KEPT_REVISION = "2026.11"
KINDS = ["sqlite", "postgresql"]
MODEL = SAMPLE_MODELS / "shapes-detector"
DETECTOR = "/api/models/shapes-detector"
FLAGS = ("--job-days", "36500", "--signals-per-s", "10000", "--webhook-hosts", "127.0.0.1")
"""Kept jobs ended long ago: by default they would be removed; and alerts would go to public addresses alone."""


WEBHOOK = "127.0.0.1:9"
SECRET = b"kept"


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


class Receiver:
    """A webhook that takes all alerts.

    Attributes:
        alerts: The headers and body of each.
    """

    def __init__(self) -> None:
        self.alerts: list[tuple[dict[str, str], bytes]] = []
        received = self.alerts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append(
                    ({name.lower(): value for name, value in self.headers.items()}, body)
                )
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class KeptStore:
    """A copy of a kept store, served by the tree under test.

    Attributes:
        database: Flags that name its database.
        recorded: What 0.1.0 answered once it had moved the waiting records and done the waiting jobs.
    """

    def __init__(self, kind: str, folder: Path, request: pytest.FixtureRequest) -> None:
        self.data = folder / "data"
        self.database: tuple[str, ...] = ()
        with tarfile.open(KEPT / f"{kind}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        if kind == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres")
            url = server.create(migrated=False)
            psql = [server._server.bin_path / "psql", url, "-v", "ON_ERROR_STOP=1"]
            with (folder / "dump.sql").open() as dump:
                subprocess.run(psql, stdin=dump, check=True, capture_output=True, timeout=60)
            self.database = ("--database", url)
        text = lzma.decompress((KEPT / f"{kind}.answers.json.xz").read_bytes())
        recorded = json.loads(text)
        self.recorded: list[dict[str, Any]] = [
            entry | {"answer": with_scoped_truth(entry)} if "answer" in entry else entry
            for entry in recorded["answers"]
        ]
        self.waiting_jobs: list[str] = recorded["waiting_jobs"]

    def send_alerts_to(self, receiver: Receiver) -> None:
        """Change where the alerts go that wait: to whoever listens."""
        for path in (self.data / "drift").rglob("*.json"):
            path.write_text(path.read_text().replace(WEBHOOK, receiver.address))

    def recorded_inferences(self) -> list[dict[str, Any]]:
        """Return all inferences, oldest first, as 0.1.0 answered them."""
        return self.recorded[0]["answer"]["inferences"]


@pytest.fixture(scope="module", params=KINDS)
def kept_store(request, tmp_path_factory) -> KeptStore:
    return KeptStore(request.param, tmp_path_factory.mktemp(request.param), request)


@pytest.fixture(scope="module")
def receiver(kept_store) -> Iterator[Receiver]:
    receiver = Receiver()
    kept_store.send_alerts_to(receiver)
    yield receiver
    receiver.close()


@pytest.fixture(scope="module")
def continued(kept_store, receiver) -> Iterator[ServerProcess]:
    """Serve a kept store, whose waiting jobs are done."""
    server = ServerProcess(kept_store.data, MODEL, *FLAGS, *kept_store.database).start()
    for job_id in kept_store.waiting_jobs:
        server.ended(job_id)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def different(continued, kept_store) -> list[dict[str, Any]]:
    """Recorded requests that are answered otherwise, asked before any test adds to the store."""
    continued.query({})
    return [entry for entry in kept_store.recorded if not is_answered_alike(continued, entry)]


def with_scoped_truth(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of 0.1.0 as it is since ground truth has a task: a label alone is none of a detector."""
    answer: dict[str, Any] = entry["answer"]
    if is_mislabelled(answer):
        return answer | {"ground_truth": None}
    if "inferences" not in answer:
        return answer
    is_found_by_truth = "ground_truth" in json.dumps(entry.get("body", {}).get("where", {}))
    inferences = [
        record | {"ground_truth": None} if is_mislabelled(record) else record
        for record in answer["inferences"]
        if not (is_found_by_truth and is_mislabelled(record))
    ]
    return answer | {"inferences": inferences}


def is_mislabelled(record: dict[str, Any]) -> bool:
    is_label = record.get("ground_truth") == [{"label": "star"}]
    return is_label and record["task"] == "OBJECT_DETECTION"


def is_answered_alike(server: ServerProcess, entry: dict[str, Any]) -> bool:
    """Ask a recorded request again: stored answers are the same, computed ones but for rounding."""
    body = json.dumps(entry["body"]) if "body" in entry else None
    status, _, answer = server.request(entry["method"], entry["path"], body)
    if status != 200:
        return False
    if "sha256" in entry:
        digest: str = hashlib.sha256(answer).hexdigest()
        return digest == entry["sha256"]
    left_out = entry.get("without", [])
    compared = {key: value for key, value in json.loads(answer).items() if key not in left_out}
    if "metrics" in entry["answer"]:
        recorded_report = without_revised(entry["answer"])
        return is_same(recorded_report, only_recorded(compared, recorded_report))
    if left_out:
        return is_same(entry["answer"], only_recorded(compared, entry["answer"]))
    equal: bool = entry["answer"] == compared
    return equal


REVISED = {"ci95", "minimum", "slices"}
"""Fields of reports that are computed otherwise than in 0.1.0: intervals, smallest effects, and what moved where."""


def without_revised(report: Any) -> Any:
    """Return a report, or a part of one, without the fields that are computed otherwise than in 0.1.0."""
    if isinstance(report, dict):
        return {key: without_revised(value) for key, value in report.items() if key not in REVISED}
    return [without_revised(part) for part in report] if isinstance(report, list) else report


def only_recorded(report: Any, recorded: Any) -> Any:
    """Return a report, or a part of one, with the fields that the recorded one has."""
    if isinstance(report, dict) and isinstance(recorded, dict):
        return {
            key: only_recorded(value, recorded[key])
            for key, value in report.items()
            if key in recorded
        }
    if isinstance(report, list) and isinstance(recorded, list) and len(report) == len(recorded):
        return [only_recorded(*pair) for pair in zip(report, recorded, strict=True)]
    return report


def is_same(first: Any, second: Any) -> bool:
    """Tell whether two JSON values are the same, but for the rounding of another processor."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(
            is_same(first[key], second[key]) for key in first
        )
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(is_same, first, second))
    if isinstance(first, float) and isinstance(second, float):
        return first == pytest.approx(second, rel=1e-6, abs=1e-9)
    return first == second


def test_waiting_records_arrive(kept_store, continued) -> None:
    expected = {record["id"] for record in kept_store.recorded_inferences()}
    assert expected <= {record["id"] for record in continued.query({})}
    waiting = [
        record_
        for record_ in kept_store.recorded_inferences()
        if record_["metadata"].get("note") == "waiting"
    ]
    tasks = {record["task"] for record in waiting}
    assert tasks == {
        "IMAGE_CLASSIFICATION",
        "ORIENTED_OBJECT_DETECTION",
        "IMAGE_SEGMENTATION",
        "IMAGE_TEXT_TO_TEXT",
        "TENSOR",
    }
    assert {record["status"] for record in waiting} == {200, 500}
    assert not (kept_store.data / "dead.jsonl").exists()
    assert not (kept_store.data / "dead").exists()


def test_answers_are_those_of_0_1_0(kept_store, different) -> None:
    assert len(kept_store.recorded) > 100
    # 0.1.0 had a retention for models that are neither served nor stored.
    unknown_model = ("/api/models/nobody/retention", None)
    assert [(entry["path"], entry.get("body")) for entry in different] == [unknown_model]


def test_waiting_jobs_are_done(kept_store, continued) -> None:
    *done, cancelled = [
        continued.call("GET", f"/api/jobs/{name}")[1] for name in kept_store.waiting_jobs
    ]
    # Their results are among the recorded answers; the drift is told by a kept baseline.
    assert [(job["kind"], job["state"]) for job in done] == [
        ("evaluation", "succeeded"),
        ("drift", "succeeded"),
        ("export", "succeeded"),
        ("baseline", "succeeded"),
    ]
    assert [job["starts"] for job in done] == [2, 1, 1, 1]  # the first was interrupted
    assert cancelled["state"] == "cancelled"


def test_saved_reports_open(kept_store, continued) -> None:
    listed = {report["id"] for report in continued.call("GET", "/api/reports")[1]["reports"]}
    jobs = continued.call("GET", "/api/jobs")[1]["jobs"]
    saved = [job["id"] for job in jobs if job["id"] < kept_store.waiting_jobs[0] and job["state"] == "succeeded"
             and job["kind"] in {"drift", "evaluation"}]  # fmt: skip
    assert len(saved) == 5
    assert set(saved) <= listed
    for job_id in saved:
        status, headers, page = continued.request("GET", f"/api/reports/{job_id}/page")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert page.startswith(b"<!DOCTYPE html>")


def test_a_schedule_goes_on_with_its_history(kept_store, continued) -> None:
    (then,) = (entry for entry in kept_store.recorded if f"{DETECTOR}/drift?" in entry["path"])
    recorded = then["answer"]["windows"]
    assert [window["status"] for window in recorded] == ["ok", "drift"]
    moment = recorded[-1]["to"]

    def state() -> dict[str, Any]:
        return continued.call("GET", f"{DETECTOR}/drift-schedule")[1]

    continued.wait_until(lambda: state()["next_at"] > datetime.now(UTC).isoformat())
    schedule = state()
    assert schedule["next"] >= moment
    body = {"every": schedule["every"], "alpha": 0.01}
    changed = continued.call("PUT", f"{DETECTOR}/drift-schedule", body)[1]
    assert (changed["since"], changed["next"]) >= (schedule["since"], schedule["next"])
    history = continued.call("GET", f"{DETECTOR}/drift")[1]
    assert history["windows"][: len(recorded)] == recorded


def test_an_alert_that_waited_is_delivered(continued, receiver) -> None:
    continued.wait_until(lambda: receiver.alerts)
    headers, body = receiver.alerts[0]
    signed = headers["quadriga-timestamp"].encode() + b"." + body
    expected = hmac.new(SECRET, signed, hashlib.sha256).hexdigest()
    assert headers["quadriga-signature"] == f"sha256={expected}"
    alert = json.loads(body)
    assert (alert["event"], alert["model"]) == ("drift", "shapes-detector")
    assert "image.brightness" in {signal["name"] for signal in alert["signals"]}
    assert continued.call("GET", alert["report"])[1]["status"] == "drift"


def test_new_inferences_are_found_among_the_kept(kept_store, continued, photo) -> None:
    newest = max(int(record["id"]) for record in kept_store.recorded_inferences())
    new = continued.infer("shapes-detector", photo, metadata={"batch": "to come", "new": True})
    inference_id = new["parameters"]["inference_id"]
    assert int(inference_id) > newest
    (inference,) = continued.query({"meta.new": True})
    assert inference["id"] == inference_id
    assert inference["ground_truth"] is None  # a label was stated before, of a classifier to come
    assert 0 <= inference["standard_metadata"]["semantic_score"] <= 1  # by the kept baseline
    batch = [record["id"] for record in continued.query({"meta.batch": "to come"}, order="ts")]
    assert len(batch) == 3
    assert batch[-1] == inference_id


def test_retention_removes_kept_inferences(kept_store, continued) -> None:
    rule = f"{DETECTOR.replace('detector', 'segmenter')}/retention"
    everything = {record["id"]: record["model"]["name"] for record in continued.query({})}
    assert continued.call("PUT", rule, {"inferences_days": 0})[0] == 200
    assert continued.stop() == 0
    continued.start()  # the rules are looked at once it runs
    old = {"model": "shapes-segmenter"}
    continued.wait_until(lambda: not continued.query(old))
    remaining = {record["id"] for record in continued.query({})}
    assert remaining == {name for name, model in everything.items() if model != "shapes-segmenter"}
    assert "shapes-segmenter" in everything.values()


@pytest.mark.parametrize("kind", KINDS)
def test_migrate_says_what_it_did(kind, tmp_path, request) -> None:
    store = KeptStore(kind, tmp_path, request)
    already = f"at revision {REVISION} already\n"
    first = (
        already if REVISION == KEPT_REVISION else f"from {KEPT_REVISION} to revision {REVISION}\n"
    )
    for expected in dict.fromkeys((first, already)):
        assert quadriga("migrate", "--data", store.data, *store.database).stdout == expected


def test_a_kept_store_is_backed_up_first_and_restored(tmp_path: Path, request) -> None:
    """The way of an upgrade: stop, back up with the new version, migrate, start; and back, if it has to be."""
    store = KeptStore("sqlite", tmp_path, request)
    recorded = [record["id"] for record in store.recorded_inferences()]
    data, backups = store.data, tmp_path / "backups"
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    made = json.loads(quadriga("backup", backups, "--data", data, "--json").stdout)
    assert (made["revision"], made["missing_images"]) == (KEPT_REVISION, 0)
    assert made["journaled"] > 5
    assert {path: path.read_bytes() for path in before} == before  # 0.1.0 may still start on it
    target = tmp_path / "restored"
    quadriga("restore", backups, "--data", target)
    quadriga("migrate", "--check", "--data", target, code=1)
    quadriga("migrate", "--data", target)
    quadriga("migrate", "--check", "--data", target)
    quadriga("check", "--data", target)
    with (
        ServerProcess(data, MODEL, *FLAGS) as there,
        ServerProcess(target, MODEL, *FLAGS) as back,
    ):
        expected = there.query({}, order="ts")
        assert len(recorded) > made["inferences"]  # those of the journal are among them
        assert [record["id"] for record in expected] == recorded
        assert [record["id"] for record in back.query({}, order="ts")] == recorded
        kept = [record["id"] for record in expected if record["input"].get("kept")]
        assert len(kept) > 10
        for inference_id in kept:
            path = f"/api/inferences/{inference_id}/input"
            answers = [server.request("GET", path) for server in (there, back)]
            assert [status for status, _, _ in answers] == [200, 200]
            assert answers[0][2] == answers[1][2] != b""
