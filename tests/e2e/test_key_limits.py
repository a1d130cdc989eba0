"""Limits of keys on a real server with two workers, over HTTP and gRPC, and what other keys notice of them."""

import json
import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from quadriga.proto.grpc.messages import SERVICE, message_class
from tests.grpc_client import Client
from tests.onnx_models import doubling
from tests.pages import blocks, shell
from tests.server_process import ServerProcess, quadriga

WORKERS = 2
INFER = "/v2/models/doubling/infer"
BODY = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limits")
    doubling(folder / "models" / "doubling" / "model.onnx")
    flags = ("--grpc-port", "0", "--workers", str(WORKERS), "--key-limits", "jobs=3")
    server = ServerProcess(folder / "data", folder / "models", *flags)
    key = json.loads(
        quadriga("keys", "create", "--role", "admin", "--name", "boss", "--limit", "none", "--json",
                 "--data", server.data).stdout
    )["key"]  # fmt: skip
    server.start(ready=False)
    server.admin = key
    server.wait_until(lambda: send(server, "GET", "/v2/health/ready", key)[0] == 200)
    yield server
    assert server.stop() == 0


def send(server, method, path, key, body=None):
    """Send a request on a connection of its own: any worker may answer it."""
    status, headers, answer = server.request(method, path, body, {"X-API-Key": key})
    return status, headers, answer


def new_key(server, *limits, name="", role="operate"):
    """Make a key, and wait until both workers know it; it has used nothing of its limits."""
    options = [option for limit in limits for option in ("--limit", limit)]
    made = quadriga(
        "keys", "create", "--role", role, "--name", name, *options, "--json", "--data", server.data
    )
    key = json.loads(made.stdout)
    time.sleep(2.5)  # each worker reads the keys every two seconds
    return key


def samples_of(server, key_id):
    """Return the metrics of a key by their name, and those with a limit by both."""
    status, _, text = send(server, "GET", "/metrics", server.admin)
    assert status == 200
    return {
        (sample.name.removeprefix("quadriga_key_"), *filter(None, [sample.labels.get("limit")])): (
            sample.value
        )
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.labels.get("key") == key_id
    }


def test_a_rate_holds_over_workers_and_protocols(server):
    """Half of the requests come over HTTP, each on a connection of its own, and half over gRPC."""
    limit = 40
    key = new_key(server, f"requests={limit}/minute", name="line 4")
    wait_for_the_beginning_of_a_minute()
    refusals, refused_calls, codes = [], [], []
    with Client(server.grpc) as first, Client(server.grpc) as second:
        rpcs = [
            client.channel.unary_unary(f"/{SERVICE}/ServerMetadata") for client in (first, second)
        ]
        for number in range(2 * limit):
            status, headers, answer = send(server, "GET", "/v2", key["key"])
            codes.append(status)
            if status == 429:
                refusals.append((headers, json.loads(answer)))
            try:
                rpcs[number % 2](b"", metadata=(("x-api-key", key["key"]),), timeout=60)
                codes.append(200)
            except grpc.RpcError as error:
                refused_calls.append(error)
                codes.append(429)
    assert codes[:limit] == [200] * limit
    assert limit <= codes.count(200) <= limit + WORKERS - 1
    for error in refused_calls:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "at most 40 requests a minute of the key 'line 4'" in error.details()
        trailer = dict(error.trailing_metadata())
        assert 1 <= int(trailer["retry-after"]) <= 60
        assert trailer["ratelimit-policy"] == '"requests";q=40;w=60'
    for headers, answer in refusals:
        text = answer["error"]
        assert re.fullmatch(
            r"expected at most 40 requests a minute of the key 'line 4', got more: "
            r"try again in [0-9.]+ s",
            text,
        )
        seconds = int(headers["retry-after"])
        assert 1 <= seconds <= 60
        assert headers["ratelimit-policy"] == '"requests";q=40;w=60'
        assert headers["ratelimit"] == f'"requests";r=0;t={seconds}'
        assert headers["x-request-id"]
    assert send(server, "GET", "/v2/health/ready", key["key"])[0] == 200
    assert send(server, "GET", "/ready", key["key"])[0] == 200
    samples = samples_of(server, key["id"])
    assert samples["requests_total",] == codes.count(200)
    assert samples["requests_refused_total", "requests"] == codes.count(429)
    log = server.log.read_text()
    assert re.search(r"refused by the limits of their keys: \d+ of 'line 4' \(requests\)", log)
    assert len(re.findall("limits of their keys", log)) < 30
    audit = quadriga("audit", "--json", "--key", "line 4", "--data", server.data).stdout
    statuses = {json.loads(line)["status"] for line in audit.splitlines()}
    assert {429, "RESOURCE_EXHAUSTED"} <= statuses
    assert key["key"].partition(".")[2] not in log + audit


def wait_for_the_beginning_of_a_minute():
    """Wait until a period of a minute has just begun, so that a test lies within one."""
    rest_s = 60 - time.monotonic() % 60
    if rest_s < 25:
        time.sleep(rest_s + 0.1)


def test_what_is_left_stands_in_every_answer(server):
    key = new_key(server, "requests=1000/hour", "concurrency=5", "jobs=3")
    status, headers, _ = send(server, "POST", INFER, key["key"], BODY)
    assert status == 200
    assert headers["ratelimit-policy"] == (
        '"requests";q=1000;w=3600, "concurrency";q=5;qu="concurrent-requests", "jobs";q=3'
    )
    assert re.fullmatch(r'"requests";r=999;t=\d+', headers["ratelimit"])
    assert "ratelimit" not in send(server, "GET", "/v2", server.admin)[1]


def test_requests_at_once(server, tmp_path):
    """Bodies that do not end hold their requests; those of another key go on."""
    key = new_key(server, "concurrency=3")
    held = []
    for _ in range(3):
        connection = server.connect()
        connection.putrequest("POST", INFER)
        connection.putheader("X-API-Key", key["key"])
        connection.putheader("Content-Length", str(len(BODY)))
        connection.endheaders()
        held.append(connection)
    running = lambda: samples_of(server, key["id"]).get(("requests_running",), 0)  # noqa: E731
    server.wait_until(lambda: running() == 3)
    status, headers, answer = send(server, "POST", INFER, key["key"], BODY)
    assert (status, headers["retry-after"]) == (429, "1")
    assert b"at most 3 requests at once" in answer
    assert headers["ratelimit"] == '"concurrency";r=0;t=1'
    with Client(server.grpc) as client:
        rpc = client.channel.unary_unary(f"/{SERVICE}/ModelMetadata")
        with pytest.raises(grpc.RpcError) as refusal:
            rpc(b"\n\x08doubling", metadata=(("x-api-key", key["key"]),), timeout=60)
    assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert send(server, "POST", INFER, server.admin, BODY)[0] == 200
    held.pop().close()  # a client that leaves gives back its place
    server.wait_until(lambda: running() == 2)
    assert send(server, "POST", INFER, key["key"], BODY)[0] == 200
    for connection in held:
        connection.send(BODY.encode())
        assert connection.getresponse().status == 200
        connection.close()
    server.wait_until(lambda: running() == 0)


def test_each_message_of_a_stream_counts(server):
    key = new_key(server, "requests=3/day")
    request = message_class("ModelInferRequest")(model_name="doubling")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 3])
    request.raw_input_contents.append(bytes(12))
    message = request.SerializeToString()
    with Client(server.grpc) as client:
        rpc = client.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        answers = [*rpc(iter([message] * 5), metadata=(("x-api-key", key["key"]),), timeout=60)]
    read = message_class("ModelStreamInferResponse").FromString
    errors = [read(answer).error_message for answer in answers]
    assert errors[:3] == [""] * 3
    assert all("at most 3 requests a day" in error for error in errors[3:])
    assert len(errors) == 5
    audit = quadriga("audit", "--json", "--key", key["id"], "--data", server.data).stdout
    (line,) = map(json.loads, audit.splitlines())
    assert (line["status"], line["times"]) == ("RESOURCE_EXHAUSTED", 2)


def test_jobs(server):
    assert send(server, "POST", INFER, server.admin, BODY)[0] == 200
    key = new_key(server, name="with the default")

    def submit(key):
        status, headers, answer = send(server, "POST", "/api/exports", key["key"], "{}")
        return status, headers, json.loads(answer)

    status, _, job = submit(key)
    assert (status, job["key_id"]) == (202, key["id"])
    path = f"/api/jobs/{job['id']}"
    server.wait_until(lambda: json.loads(send(server, "GET", path, key["key"])[2])["ended_at"])

    # The default of the server: three jobs at once. A stopped process of jobs ends none.
    pid = server.child_pid("jobs")
    os.kill(pid, 19)
    try:
        codes = [submit(key)[0] for _ in range(4)]
        assert codes == [202, 202, 202, 429]
        _, headers, answer = submit(key)
        assert headers["retry-after"] == "30"
        assert "at most 3 jobs that wait or run" in answer["error"]
        assert submit({"key": server.admin})[0] == 202
    finally:
        os.kill(pid, 18)
    server.wait_until(lambda: submit(key)[0] == 202)


def test_a_runaway_script_does_not_hinder_another_key(server):
    runaway = new_key(server, "requests=20/minute", "concurrency=2")
    stop = threading.Event()

    def run():
        codes = []
        while not stop.is_set():
            codes.append(send(server, "POST", INFER, runaway["key"], BODY)[0])
        return codes

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(run) for _ in range(4)]
        codes = [send(server, "POST", INFER, server.admin, BODY)[0] for _ in range(100)]
        stop.set()
        refused = [code for future in running for code in future.result()]
    assert codes == [200] * 100
    assert set(refused) <= {200, 429}
    assert refused.count(200) <= 40 + WORKERS - 1
    assert refused.count(429) > 0


def test_the_end_of_a_worker_forgets_nothing_and_holds_nothing(server):
    key = new_key(server, "requests=20/day", "concurrency=2")
    codes = [send(server, "GET", "/v2", key["key"])[0] for _ in range(15)]
    assert codes == [200] * 15
    held = []
    for _ in range(2):
        connection = server.connect()
        connection.putrequest("POST", INFER)
        connection.putheader("X-API-Key", key["key"])
        connection.putheader("Content-Length", "100")
        connection.endheaders()
        held.append(connection)
    server.wait_until(lambda: samples_of(server, key["id"])["requests_running",] == 2)
    for number in range(WORKERS):
        server.kill_child(f"worker-{number}")

    def code():
        try:
            return send(server, "GET", "/v2", key["key"])[0]
        except OSError:
            return None

    server.wait_until(lambda: code() == 200)
    codes = [code() for _ in range(10)]
    assert codes.count(200) <= 20 - 15 - 2 - 1 + WORKERS - 1
    assert codes.count(429) > 0
    for connection in held:
        connection.close()


def test_limits_are_listed_changed_and_kept_by_a_rotation(server):
    key = new_key(server, "requests=5/second", "jobs=1", name="team a")

    def listed():
        keys = json.loads(quadriga("keys", "list", "--json", "--data", server.data).stdout)
        return {row["id"]: row["limits"] for row in keys}

    assert listed()[key["id"]] == ["requests=5/second", "jobs=1"] == key["limits"]
    said = quadriga("keys", "limit", key["id"], "--limit", "requests=9/hour", "--data", server.data)  # fmt: skip
    assert said.stdout == f"limits of {key['id']}: requests=9/hour\n"
    rotated = json.loads(
        quadriga("keys", "rotate", key["id"], "--json", "--data", server.data).stdout
    )
    assert listed()[rotated["id"]] == ["requests=9/hour"]
    said = quadriga("keys", "limit", rotated["id"], "--data", server.data)
    assert said.stdout == f"limits of {rotated['id']}: default\n"
    assert listed()[rotated["id"]] == []
    assert "none" in quadriga("keys", "list", "--data", server.data).stdout
    missing = quadriga("keys", "limit", "nobody", "--limit", "none", "--data", server.data, code=2)
    assert "key not found: 'nobody'" in missing.stderr


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (["requests=1"], "requests=1/second"),
        (["none", "jobs=1"], "expected --limit none alone"),
        (["jobs=1", "jobs=2"], "expected one limit of jobs"),
        (
            ["bytes=1GB/hour"],
            "a name of requests, concurrency, jobs, got 'bytes=1GB/hour', a limit that no longer exists",
        ),
    ],
)
def test_wrong_limits_are_explained(tmp_path, limits, text):
    options = [option for limit in limits for option in ("--limit", limit)]
    for command in (("create", "--role", "infer"), ("limit", "x")):
        answer = quadriga("keys", *command, *options, "--data", tmp_path, code=2)
        assert text in " ".join(answer.stderr.replace("│", "").split())
    assert not (tmp_path / "store.db").exists()


def test_a_wrong_default_is_explained(tmp_path):
    doubling(tmp_path / "models" / "doubling" / "model.onnx")
    answer = quadriga("serve", tmp_path / "models", "--key-limits", "requests=1", code=2)
    assert "key_limits" in answer.stderr.replace("-", "_")
    assert "requests=1/second" in answer.stderr


def test_the_page_shows_the_commands_and_an_answer_of_the_server(server, tmp_path, monkeypatch):
    commands, answer = (
        block.text
        for block in blocks("docs/security.md")
        if "keys limit" in block.text or "429" in block.text
    )
    (tmp_path / "data").symlink_to(server.data)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    lines = commands.splitlines()
    key = shell(lines[0], tmp_path).splitlines()[0]
    key_id = key.removeprefix("quadriga-").partition(".")[0]
    shown = shell("\n".join(lines[1:]).replace("ID", key_id), tmp_path).splitlines()
    assert shown == [
        f"limits of {key_id}: requests=500/minute, jobs=2", f"limits of {key_id}: none",
    ]  # fmt: skip
    key = new_key(server, "requests=1/second", "concurrency=8", name="line 4")["key"]
    shown = answer.replace("q=100", "q=1").replace("100 requests", "1 request")
    head, _, body = shown.partition("\n\n")
    expected = dict(line.split(": ", 1) for line in head.splitlines()[1:])
    with ThreadPoolExecutor(4) as pool:
        answers = [*pool.map(lambda _: send(server, "GET", "/v2", key), range(40))]
    headers, text = next((headers, text) for status, headers, text in answers if status == 429)
    assert {name: headers[name] for name in expected} == expected
    number = re.compile(r"[0-9.]+ s")
    assert number.sub("", text.decode()) == number.sub("", body.strip())
