"""A store that 0.2.0 left, with records in the journal and jobs undone, goes on: see `tests/data/README.md`."""

import hashlib
import hmac
import json
import lzma
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from quadriga.store.database.database import REVISION
from tests.postgres_server import PostgresServer
from tests.server_process import ROOT, SAMPLE_MODELS, ServerProcess, quadriga

KEPT = ROOT / "tests" / "data" / "0.2.0"
KEPT_REVISION = "2027.09"
KINDS = ["sqlite", "postgresql"]
DETECTOR = "/api/models/shapes-detector"
FLAGS = (
    "--job-days", "36500", "--audit-days", "36500", "--signals-per-s", "10000", "--webhook-hosts", "127.0.0.1",
)  # fmt: skip
"""Kept jobs ended long ago: by default they would be removed; and alerts would go to public addresses alone."""


CONSTANTS = {"engine.external.event_pairs": {"ALONE_S": 1.0, "_SWEEP_S": 1.0}}
WEBHOOK = "127.0.0.1:9"
SECRET = b"kept"
GONE = {"detectors"}
"""What later versions tell no longer."""
BETTER = {"p_adjusted", "warnings"}
"""What later versions tell otherwise where they do a job that waited: drift tests look inside the window."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A detector, and a classifier in two versions, as the rule of its traffic has them."""
    folder: Path = tmp_path_factory.mktemp("models")
    (folder / "shapes-detector").symlink_to(SAMPLE_MODELS / "shapes-detector")
    (folder / "shapes-classifier").mkdir()
    for version in ("1", "2"):
        (folder / "shapes-classifier" / version).symlink_to(SAMPLE_MODELS / "shapes-classifier")
    return folder


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


class KeyedServer(ServerProcess):
    """A server to which each request sends a key.

    Attributes:
        key: The key.
    """

    key = ""

    def request(
        self, method: str, path: str, body: bytes | str | None = None, headers: Any = None
    ) -> tuple[int, dict[str, str], bytes]:
        return super().request(method, path, body, {"X-API-Key": self.key, **(headers or {})})


class KeptStore:
    """A copy of a kept store, to be served by the tree under test.

    Attributes:
        store: Flags that name its data folder and its database.
        recorded: What 0.2.0 answered once it had moved the waiting records and done the waiting jobs.
        keys: Keys by their names.
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
            (self.data / "store.json").unlink()  # names the database where 0.2.0 had it
        self.store = ("--data", str(self.data), *self.database)
        recorded = json.loads(lzma.decompress((KEPT / f"{kind}.answers.json.xz").read_bytes()))
        self.recorded: list[dict[str, Any]] = recorded["answers"]
        self.waiting_jobs: list[str] = recorded["waiting_jobs"]
        self.keys: dict[str, str] = recorded["keys"]
        self.listed_keys: list[dict[str, Any]] = recorded["listed_keys"]
        self.audit: list[dict[str, Any]] = recorded["audit"]
        self.mute: dict[str, Any] = recorded["mute"]

    def server(self, models: Path, data: Path | None = None) -> KeyedServer:
        """Return a server of it, or of a copy of its data, not started yet."""
        server = KeyedServer(data or self.data, models, *FLAGS, *self.database, constants=CONSTANTS)
        server.key = self.keys["keeper"]
        return server

    def send_alerts_to(self, receiver: Receiver) -> None:
        """Change where the alerts go that wait: to whoever listens."""
        for folder in ("drift", "evaluation"):
            for path in (self.data / folder).rglob("*.json"):
                path.write_text(path.read_text().replace(WEBHOOK, receiver.address))

    def recorded_inferences(self) -> list[dict[str, Any]]:
        """Return all inferences, oldest first, as 0.2.0 answered them."""
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
def continued(kept_store, receiver, models) -> Iterator[KeyedServer]:
    """Serve a kept store, whose waiting jobs are done, and whose half of a pair of events is stored alone."""
    server = kept_store.server(models).start()
    for job_id in kept_store.waiting_jobs:
        server.ended(job_id)
    server.wait_until(lambda: server.query({"std.event_id": "half"}))
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def different(continued, kept_store) -> list[dict[str, Any]]:
    """Recorded requests that are answered otherwise, asked before any test adds to the store."""
    return [
        entry
        for entry in kept_store.recorded
        if not is_answered_alike(continued, entry, kept_store)
    ]


def is_answered_alike(server: ServerProcess, entry: dict[str, Any], kept: KeptStore) -> bool:
    """Ask a recorded request again: stored answers are the same, computed ones but for rounding."""
    body = json.dumps(entry["body"]) if "body" in entry else None
    headers = {"X-API-Key": kept.keys[entry.get("key", "keeper")]}
    status, _, answer = server.request(entry["method"], entry["path"], body, headers)
    if status != 200:
        return False
    if "sha256" in entry:
        digest: str = hashlib.sha256(answer).hexdigest()
        return digest == entry["sha256"]
    left_out = {*entry.get("without", []), *GONE}
    found = json.loads(answer)
    path, _, until = entry["path"].partition("?to=")
    if until and path.rpartition("/")[2] in {"drift", "evaluation"}:
        # The schedules go on: a window that began before that moment may have ended since, and one may be evaluated again.
        recorded = {(window["from"], window["to"]): window for window in entry["answer"]["windows"]}
        found["windows"] = [
            window if window["report"] == recorded[key]["report"] else recorded[key]
            for window in found["windows"]
            if (key := (window["from"], window["to"])) in recorded
        ]
        left_out.add("reference")
    if entry["path"].endswith("/traffic"):
        left_out.add("shadow")
    if entry["path"].rpartition("/")[2] in kept.waiting_jobs:
        left_out |= BETTER
        # Causes come first since, and signals that moved but cannot be judged have images, too.
        changed = [{change["signal"]: change for change in report.get("changed", [])}
                   for report in (entry["answer"], found)]  # fmt: skip
        entry["answer"]["changed"], found["changed"] = (
            [of_report[name] for name in sorted(changed[0]) if name in of_report]
            for of_report in changed
        )
    return is_same(entry["answer"], found, left_out)


def is_same(first: Any, second: Any, left_out: AbstractSet[str] = frozenset()) -> bool:
    """Tell whether a JSON value has all of another, but for what is left out and another processor's rounding."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() - left_out <= second.keys() and all(
            is_same(first[key], second[key], left_out) for key in first.keys() - left_out
        )
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(
            is_same(one, other, left_out) for one, other in zip(first, second, strict=True)
        )
    if isinstance(first, float) and isinstance(second, float):
        return first == pytest.approx(second, rel=1e-6, abs=1e-9)
    return first == second


def test_waiting_records_arrive(kept_store, continued) -> None:
    """What waited when the server ended in order, by exit status 75, and when it was killed."""
    for note in ("left in order", "waiting"):
        arrived = {record["id"] for record in continued.query({"meta.note": note})}
        recorded = [
            record
            for record in kept_store.recorded_inferences()
            if record["metadata"].get("note") == note
        ]
        assert arrived == {record["id"] for record in recorded}
        assert {record["task"] for record in recorded} == {
            "IMAGE_CLASSIFICATION",
            "ORIENTED_OBJECT_DETECTION",
            "IMAGE_SEGMENTATION",
            "IMAGE_TEXT_TO_TEXT",
            "TENSOR",
        }
        assert {record["status"] for record in recorded} == {200, 500}
    assert not (kept_store.data / "dead.jsonl").exists()
    assert not (kept_store.data / "dead").exists()


def test_answers_are_those_of_0_2_0(kept_store, different) -> None:
    assert len(kept_store.recorded) > 250
    assert [(entry["path"], entry.get("body")) for entry in different] == []


def test_a_rule_of_traffic_with_a_shadow_keeps_its_shares(continued) -> None:
    rule = continued.call("GET", "/api/models/shapes-classifier/traffic")[1]
    assert (rule["shares"], rule["sticky_by"]) == ({"1": 0.5, "2": 0.5}, "camera_id")
    warning = (
        "shapes-classifier: the shadow of its traffic rule, of release 0.2.0, sees nothing any more"
    )
    assert warning in continued.log.read_text()


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
        ("export", "succeeded"),
    ]
    assert [job["starts"] for job in done] == [2, 1, 1, 1, 1]  # the first was interrupted
    assert cancelled["state"] == "cancelled"


def test_saved_reports_open(kept_store, continued) -> None:
    listed = {report["id"] for report in continued.call("GET", "/api/reports")[1]["reports"]}
    jobs = continued.call("GET", "/api/jobs")[1]["jobs"]
    saved = [job["id"] for job in jobs if job["id"] < kept_store.waiting_jobs[0] and job["state"] == "succeeded"
             and job["kind"] in {"drift", "evaluation"}]  # fmt: skip
    assert len(saved) >= 8
    assert set(saved) <= listed
    for job_id in saved:
        status, headers, page = continued.request("GET", f"/api/reports/{job_id}/page")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert page.startswith(b"<!DOCTYPE html>")


def test_a_schedule_goes_on_with_its_history(kept_store, continued) -> None:
    for kind, verdicts, change in (
        ("drift", ["ok", "drift"], {"every": "5m", "alpha": 0.01}),
        ("evaluation", ["fall"], {"every": "1w", "at_least": 0.9}),
    ):
        (then,) = (entry for entry in kept_store.recorded if f"{DETECTOR}/{kind}?" in entry["path"])
        recorded = then["answer"]["windows"]
        assert [window["status"] for window in recorded] == verdicts
        path = f"{DETECTOR}/{kind}-schedule"

        def state(path=path) -> dict[str, Any]:
            return continued.call("GET", path)[1]

        continued.wait_until(lambda state=state: state()["next_at"] > datetime.now(UTC).isoformat())
        schedule = state()
        assert schedule["next"] >= recorded[-1]["to"]
        status, changed = continued.call("PUT", path, change)
        assert status == 200, changed
        assert changed["next"] >= schedule["next"]
        history = continued.call("GET", f"{DETECTOR}/{kind}")[1]["windows"][: len(recorded)]
        # With a new window the three before it are evaluated again, as truth comes late, and said in today's words.
        again = {"report", "evaluated_at", "reason"} if kind == "evaluation" else set()
        assert is_same(recorded, history, again)


def test_alerts_that_waited_are_delivered(continued, receiver) -> None:
    def kinds() -> set[str]:
        return {json.loads(body).get("event", "standard") for _, body in receiver.alerts}

    continued.wait_until(lambda: kinds() == {"drift", "fall", "standard"})
    for headers, body in receiver.alerts:
        alert = json.loads(body)
        if "event" not in alert:
            assert alert["type"] == "drift.alarm"
            continue
        signed = headers["quadriga-timestamp"].encode() + b"." + body
        expected = hmac.new(SECRET, signed, hashlib.sha256).hexdigest()
        assert headers["quadriga-signature"] == f"sha256={expected}"
        assert alert["model"] == "shapes-detector"
        assert continued.call("GET", alert["report"])[0] == 200
        if alert["event"] == "drift":
            assert "image.brightness" in {signal["name"] for signal in alert["signals"]}


def test_a_mute_holds_until_its_end(kept_store, continued) -> None:
    status, answer = continued.call("GET", f"{DETECTOR}/drift-mute")
    if kept_store.mute["until"] > datetime.now(UTC).isoformat():
        assert (status, answer) == (200, kept_store.mute)
    else:
        assert status == 404


def test_keys_go_on_with_their_limits(kept_store, continued) -> None:
    changing = {"used_at", "state"}

    def steady(keys: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {name: value for name, value in key.items() if name not in changing} for key in keys
        ]

    listed = json.loads(quadriga("keys", "list", "--json", *kept_store.store).stdout)
    assert steady(listed) == steady(kept_store.listed_keys)
    (limits,) = (set(key["limits"]) for key in listed if key["name"] == "line")
    assert limits >= {"requests=500/minute", "concurrency=4", "jobs=2"}
    headers = {"X-API-Key": kept_store.keys["line"]}
    status, answered, _ = continued.request("GET", "/v2/models/shapes-detector", None, headers)
    assert status == 200
    assert '"requests";q=500;w=60' in answered["ratelimit-policy"]
    (key_id,) = (key["id"] for key in listed if key["name"] == "line")
    retired = sorted(limit for limit in limits if "bytes=" in limit)
    assert [limit.partition("=")[0] for limit in retired] == [
        "bytes",
        "export-bytes",
        "stored-bytes",
    ]
    for limit in retired:
        assert (
            f"the key {key_id} has a limit that does not count, {limit}"
            in continued.log.read_text()
        )


def test_the_audit_log_goes_on(kept_store, continued) -> None:
    entries = continued.call("GET", "/api/audit?limit=1000")[1]["entries"]
    assert len(kept_store.audit) > 50
    assert [entry for entry in kept_store.audit if entry not in entries] == []


def test_an_erasure_that_waited_is_completed(continued) -> None:
    def erasures() -> list[dict[str, Any]]:
        return continued.call("GET", "/api/erasures")[1]["erasures"]

    continued.wait_until(lambda: [one["state"] for one in erasures()] == ["complete"])
    assert erasures()[0]["counts"]["inferences"] == 1


def test_new_inferences_are_found_among_the_kept(kept_store, continued, photo) -> None:
    newest = max(int(record["id"]) for record in kept_store.recorded_inferences())
    new = continued.infer("shapes-detector", photo, metadata={"batch": "to come", "new": True})
    inference_id = new["parameters"]["inference_id"]
    assert int(inference_id) > newest
    (inference,) = continued.query({"meta.new": True})
    assert inference["id"] == inference_id
    truth = inference["ground_truth"]  # stated before, for a classifier to come and for a detector
    assert truth == [{"label": "star", "xmin": 10, "ymin": 10, "xmax": 60, "ymax": 60}]
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
        assert quadriga("migrate", *store.store).stdout == expected


def test_a_kept_store_is_backed_up_first_and_restored(tmp_path: Path, models, request) -> None:
    """The way of an upgrade: stop, back up with the new version, migrate, start; and back, if it has to be."""
    store = KeptStore("sqlite", tmp_path, request)
    recorded = [record["id"] for record in store.recorded_inferences()]
    data, backups = store.data, tmp_path / "backups"
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    made = json.loads(quadriga("backup", backups, "--data", data, "--json").stdout)
    assert (made["revision"], made["missing_images"]) == (KEPT_REVISION, 0)
    assert made["journaled"] > 5
    assert {path: path.read_bytes() for path in before} == before  # 0.2.0 may still start on it
    target = tmp_path / "restored"
    quadriga("restore", backups, "--data", target)
    quadriga("migrate", "--check", "--data", target, code=int(REVISION != KEPT_REVISION))
    quadriga("migrate", "--data", target)
    quadriga("migrate", "--check", "--data", target)
    quadriga("check", "--data", target)
    with store.server(models) as there, store.server(models, target) as back:
        for server in (there, back):  # the half of a pair of events
            server.wait_until(lambda server=server: server.query({"std.event_id": "half"}))
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
