"""Keys on real servers: over HTTP and gRPC, made and ended by the command, for programs that know nothing of ours."""

import json
import os
import queue
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import get_args

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quadriga.proto.access import Role
from quadriga.proto.grpc.messages import SERVICE, message_class
from quadriga.proto.grpc.service import MAX_STRANGERS
from tests.grpc_client import Client
from tests.onnx_models import doubling
from tests.pages import blocks, shell
from tests.server_process import ROOT, SAMPLE_MODELS, ServerProcess, image_input, quadriga

REACHED_BY_OTHERS = "127.1"
"""This machine, in a form that the server does not know as such: it takes it for an address that others reach."""

INFER = "/v2/models/shapes-classifier/infer"


@pytest.fixture(scope="module")
def bulk_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bulk")
    image = next((SAMPLE_MODELS / "shapes-classifier").glob("samples/*.jpg"), None)
    (folder / "a.jpg").write_bytes((image or next(SAMPLE_MODELS.rglob("*.jpg"))).read_bytes())
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory, bulk_folder):
    """Yield a server that Chariot's variable binds to an address that others reach."""
    flags = ("--grpc-port", "0", "--bulk-folder", str(bulk_folder))
    server = ServerProcess(tmp_path_factory.mktemp("keys") / "data", SAMPLE_MODELS, *flags)
    os.environ["UVICORN_HOST"] = REACHED_BY_OTHERS
    try:
        server.start()
    finally:
        del os.environ["UVICORN_HOST"]
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def admin(server):
    file = server.data / "admin.key"
    server.wait_until(file.exists)
    return file.read_text().strip()


def send(server, method, path, key="", body=None, *, header="Authorization"):
    headers = {header: f"Bearer {key}" if header == "Authorization" else key} if key else {}
    text = None if body is None else json.dumps(body)
    status, received, answer = server.request(method, path, text, headers)
    return status, received, json.loads(answer) if answer.startswith(b"{") else answer


def new_key(server, *options):
    answer = quadriga("keys", "create", *options, "--json", "--data", server.data)
    key = json.loads(answer.stdout)
    server.wait_until(lambda: send(server, "GET", "/v2", key["key"])[0] != 401)
    return key


def test_the_first_key_lies_in_the_data_folder(server, admin):
    assert (server.data / "admin.key").stat().st_mode & 0o777 == 0o600
    log = server.log.read_text()
    assert str(server.data / "admin.key") in log
    assert admin not in log
    assert admin.partition(".")[2] not in log
    assert send(server, "GET", "/v2")[0] == 401
    status, headers, answer = send(server, "POST", INFER, body={"inputs": []})
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert answer == {"error": "expected a key in Authorization: Bearer or X-API-Key, got none"}
    assert send(server, "GET", "/v2", admin)[0] == 200
    assert send(server, "GET", "/v2", admin, header="X-API-Key")[0] == 200
    assert send(server, "GET", "/metrics", admin)[0] == 200
    assert send(server, "GET", "/v2/health/ready")[0] == 200
    assert send(server, "GET", "/v2/health/ready?verbose")[0] == 401
    assert "processes" in send(server, "GET", "/v2/health/ready?verbose", admin)[2]["process"]


def test_a_key_for_some_models_sees_no_others(server, admin, bulk_folder):
    key = new_key(server, "--role", "infer", "--models", "shapes-c*")["key"]
    image = (bulk_folder / "a.jpg").read_bytes()
    body = {"inputs": [image_input(image)]}
    assert send(server, "POST", INFER, key, body)[0] == 200
    assert send(server, "POST", INFER.replace("shapes-", "m-shapes-"), key, body)[0] == 200
    for path, request in (
        ("/v2/models/shapes-detector/infer", body),
        ("/v2/models/m-shapes-detector/infer", body),
        ("/v1/models/shapes-detector:predict", {"instances": [[1]]}),
        ("/v2/models/no-such-model/infer", body),
        (
            "/v2/models/shapes-image-text/generate",
            {"text_input": "?", "image": body["inputs"][0]["data"][0]},
        ),
        ("/api/inferences/bulk", {"model": "shapes-detector", "source": "."}),
        ("/v2/repository/models/shapes-classifier/load", {}),
        ("/api/inferences/query", {}),
    ):
        status, _, answer = send(server, "POST", path, key, request)
        assert status == 403, (path, status, answer)
        assert "is it" not in answer["error"]
    assert send(server, "GET", "/v2/models", key)[2] == {"models": ["shapes-classifier"]}
    index = send(server, "POST", "/v2/repository/index", key, {})[2]
    assert b"detector" not in index
    statistics = send(server, "GET", "/v2/models/stats", key)[2]["model_stats"]
    assert {row["name"] for row in statistics} == {"shapes-classifier"}


def test_a_job_of_bulk_inference_needs_no_key_of_its_own(server, admin):
    body = {"model": "shapes-classifier", "source": "."}
    status, _, job = send(server, "POST", "/api/inferences/bulk", admin, body)
    assert status == 202
    path = f"/api/jobs/{job['id']}"
    server.wait_until(lambda: send(server, "GET", path, admin)[2]["ended_at"])
    job = send(server, "GET", path, admin)[2]
    assert job["state"] == "succeeded", job
    assert send(server, "GET", path)[0] == 401


def test_a_revoked_key_is_refused_soon(server, admin):
    key = new_key(server, "--role", "read", "--name", "analyst", "--expires", "30d")
    assert send(server, "POST", "/api/inferences/query", key["key"], {})[0] == 200
    listed = quadriga("keys", "list", "--data", server.data).stdout
    assert key["id"] in listed
    assert key["key"].partition(".")[2] not in listed
    replaced = quadriga("keys", "rotate", key["id"], "--overlap", "1h", "--data", server.data)
    replacement = replaced.stdout.strip()
    server.wait_until(lambda: send(server, "GET", "/v2", replacement)[0] == 200)
    assert send(server, "GET", "/v2", key["key"])[0] == 200
    quadriga("keys", "revoke", key["id"], "--data", server.data)
    server.wait_until(lambda: send(server, "GET", "/v2", key["key"])[0] == 401)
    assert send(server, "GET", "/v2", replacement)[0] == 200


def test_a_revoked_key_ends_streams_that_are_open(server, admin):
    key = new_key(server, "--role", "infer")
    messages = queue.Queue()
    request = message_class("ModelInferRequest")(model_name="nothing")
    rpc = f"/{SERVICE}/ModelStreamInfer"
    with Client(server.grpc) as client:
        open_stream = client.channel.stream_stream(
            rpc, request.__class__.SerializeToString, lambda answer: answer
        )
        answers = open_stream(
            iter(messages.get, None),
            timeout=60,
            metadata=[("authorization", f"Bearer {key['key']}")],
        )
        messages.put(request)
        assert b"model not found" in next(answers)
        quadriga("keys", "revoke", key["id"], "--data", server.data)
        server.wait_until(lambda: send(server, "GET", "/v2", key["key"])[0] == 401)
        messages.put(request)
        with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
            next(answers)
        messages.put(None)


def test_strangers_watch_the_health_in_a_part_of_the_calls_alone(server, admin):
    with Client(server.grpc) as client, Client(server.grpc) as other:
        watch = client.channel.unary_stream("/grpc.health.v1.Health/Watch")
        watches = [watch(b"", timeout=60) for _ in range(MAX_STRANGERS)]
        assert all(next(states) for states in watches)
        with pytest.raises(grpc.RpcError, match="expected at most 64 watches without a key"):
            next(watch(b"", timeout=60))
        assert other.call("ServerLive").live
        for states in watches:
            states.cancel()
        server.wait_until(lambda: can_watch(watch))


def can_watch(watch):
    states = watch(b"", timeout=60)
    try:
        return bool(next(states))
    except grpc.RpcError:
        return False
    finally:
        states.cancel()


def test_rpcs_have_the_same_keys(server, admin, bulk_folder):
    key = new_key(server, "--role", "infer", "--models", "shapes-c*")["key"]
    with Client(server.grpc) as client:
        assert client.call("ServerLive").live
        assert client.call("ServerReady").ready
        stub = health_pb2_grpc.HealthStub(client.channel)
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=60).status == 1
        for call in (
            lambda: client.call("ServerMetadata"),
            lambda: client.call("ModelMetadata", name="shapes-classifier"),
            lambda: client.call("RepositoryModelUnload", model_name="shapes-classifier"),
            lambda: list(client.stream(iter([]))),
            lambda: stub.List(health_pb2.HealthListRequest(), timeout=60),
        ):
            with pytest.raises(grpc.RpcError) as refusal:
                call()
            assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
        service = health_pb2.HealthCheckRequest(service="shapes-classifier")
        with pytest.raises(grpc.RpcError) as refusal:
            stub.Check(service, timeout=60)
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
        metadata = (("authorization", f"Bearer {key}"),)
        assert stub.Check(service, metadata=metadata, timeout=60).status == 1
        rpc = client.channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")
        assert rpc(b"\n\x11shapes-classifier", metadata=metadata, timeout=60)
        for name, code in ((b"\n\x0fshapes-detector", "PERMISSION_DENIED"),):
            with pytest.raises(grpc.RpcError) as refusal:
                rpc(name, metadata=metadata, timeout=60)
            assert refusal.value.code() is grpc.StatusCode[code]
        unload = client.channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelUnload")
        with pytest.raises(grpc.RpcError) as refusal:
            unload(b"", metadata=(("x-api-key", key),), timeout=60)
        assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_commands_send_the_key_of_the_environment(server, admin):
    url = f"http://{server.host}"
    assert "got none (401)" in quadriga("models", "--server", url, code=2).stderr
    answer = subprocess.run(
        [sys.executable, "-m", "quadriga.engine.cli", "models", "--server", url],
        env={**os.environ, "QUADRIGA_API_KEY": admin},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "shapes-classifier" in answer.stdout


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--role", "boss"], "boss"),
        ([], "--role"),
        (["--role", "read", "--team", "a b"], "expected a team"),
        (["--role", "read", "--team", "default"], "and is not 'default'"),
        (["--role", "infer", "--models", "a,b"], "to be a pattern"),
        (["--role", "infer", "--expires", "soon"], "such as 90d"),
        (["--role", "infer", "--expires", "99999999999d"], "at most"),
        (["--role", "infer", "--name", "a\nb"], "printable"),
    ],
)
def test_wrong_options_are_explained(tmp_path, options, text):
    answer = quadriga("keys", "create", *options, "--data", tmp_path, code=2)
    assert text in " ".join(answer.stderr.replace("│", "").split())


def test_whoever_says_insecure_needs_no_key(tmp_path):
    doubling(tmp_path / "models" / "doubling" / "model.onnx")
    flags = ("--host", REACHED_BY_OTHERS, "--insecure", "--no-store")
    with ServerProcess(tmp_path / "data", tmp_path / "models", *flags) as server:
        assert server.call("GET", "/v2")[0] == 200
        assert not (tmp_path / "data" / "admin.key").exists()


@pytest.mark.parametrize("other", ["wrong", ""])
@pytest.mark.parametrize("name", ["x-api-key", "authorization"])
def test_two_keys_are_none(server, admin, name, other):
    scheme = "Bearer " if name == "authorization" else ""
    values = [scheme + (other or admin), scheme + admin]
    connection = server.connect()
    with closing(connection):
        connection.putrequest("GET", "/v2")
        for value in values:
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 401
    with Client(server.grpc) as client:
        rpc = client.channel.unary_unary(f"/{SERVICE}/ServerMetadata")
        with pytest.raises(grpc.RpcError) as refusal:
            rpc(b"", timeout=60, metadata=tuple((name, value) for value in values))
        assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_the_audit_log_says_who_did_what(server, admin, bulk_folder):
    operator = new_key(server, "--role", "operate", "--name", "oncall")
    infer = new_key(server, "--role", "infer", "--models", "shapes-c*", "--name", "robot")
    path = "/api/inferences/delete"
    body = {"where": {"model": "shapes-classifier"}}
    image = (bulk_folder / "a.jpg").read_bytes()
    for _ in range(2):
        assert send(server, "POST", INFER, infer["key"], {"inputs": [image_input(image)]})[0] == 200
    assert send(server, "POST", path, infer["key"], body)[0] == 403
    server.wait_until(
        lambda: send(server, "POST", path, operator["key"], body | {"dry_run": True})[2]["count"]
    )
    status, headers, deleted = send(server, "POST", path, operator["key"], body)
    assert status == 200
    server.kill_child("worker")  # what was answered is in the log
    server.wait_until(lambda: send_or_none(server, "GET", "/v2", admin) == 200)
    with Client(server.grpc) as client:
        unload = client.channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelUnload")
        server.wait_until(
            lambda: (
                code_of(unload, b"\x12\x08no-model", operator["key"])
                is not grpc.StatusCode.UNAVAILABLE
            )
        )
        metadata_rpc = client.channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")
        for key in (infer["key"], "wrong"):
            assert code_of(metadata_rpc, b"\n\x0fshapes-detector", key)
    quadriga("keys", "revoke", operator["id"], "--data", server.data)

    printed = quadriga("audit", "--json", "--limit", "100000", "--data", server.data).stdout
    lines = [json.loads(line) for line in printed.splitlines()]
    (deletion,) = [
        line
        for line in lines
        if line["action"] == f"POST {path}" and line["status"] == 200 and "target" not in line
    ]
    assert deletion["number"] == deleted["count"] > 0
    assert (deletion["key_id"], deletion["name"]) == (operator["id"], "oncall")
    assert deletion["request_id"] == headers["x-request-id"]
    assert deletion["address"].startswith("127.")
    actions = {
        (line["action"].rpartition("/")[2], line["status"], line.get("name")) for line in lines
    }
    assert ("first key", "done", None) in actions
    assert ("delete", 403, "robot") in actions
    assert ("ModelMetadata", "PERMISSION_DENIED", "robot") in actions
    assert ("ModelMetadata", "UNAUTHENTICATED", "nobody") in actions
    (unloaded, *_) = [
        line for line in lines if "Unload" in line["action"] and line.get("name") == "oncall"
    ]
    assert unloaded["status"] == "NOT_FOUND"
    assert (unloaded["target"], unloaded["address"]) == ("no-model", "127.0.0.1")
    keys = {
        (line["action"], line.get("target")) for line in lines if line["action"].startswith("keys ")
    }
    made = f"{operator['id']}: roles {'+'.join(operator['roles'])}"
    assert {("keys create", made), ("keys revoke", operator["id"])} <= keys
    assert not any(line["action"] == f"POST {INFER}" and line["status"] == 200 for line in lines)
    for secret in (operator["key"], infer["key"], admin):
        assert secret.partition(".")[2] not in printed
    for file in (server.data / "audit").iterdir():
        assert file.stat().st_mode & 0o777 == 0o600

    pages, cursor = [], ""
    while cursor is not None:
        status, _, page = send(
            server, "GET", f"/api/audit?key=oncall&limit=1&cursor={cursor}", admin
        )
        assert status == 200
        pages += page["entries"]
        cursor = page["cursor"]
    assert pages == [line for line in lines if line.get("name") == "oncall"]
    assert send(server, "GET", "/api/audit?since=soon", admin)[0] == 400
    assert send(server, "GET", "/api/audit?limit=0", admin)[0] == 400
    assert send(server, "GET", "/api/audit", infer["key"])[0] == 403


def code_of(rpc, message, key):
    """Return the code of a refused call."""
    try:
        rpc(message, metadata=(("x-api-key", key),), timeout=60)
    except grpc.RpcError as error:
        return error.code()
    return None


def send_or_none(server, *arguments):
    """Return the status of a request; None while the worker is away."""
    try:
        return send(server, *arguments)[0]
    except OSError:
        return None


def test_the_commands_of_the_page_do_what_it_says(server, admin, tmp_path, monkeypatch):
    made, sent, replaced = (
        block.text
        for block in blocks("docs/security.md")
        if ("quadriga keys" in block.text or "$KEY" in block.text)
        and "keys limit" not in block.text
    )
    (tmp_path / "data").symlink_to(server.data)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    printed = shell(made, tmp_path)
    assert "line 4" in printed
    assert "analysts" in printed
    infer_key, read_key = (line for line in printed.splitlines() if line.startswith("quadriga-"))
    for key, is_refused in ((infer_key, False), (read_key, True)):
        server.wait_until(lambda key=key: send(server, "GET", "/v2", key)[0] == 200)
        image = {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["aGk="]}]}
        assert (send(server, "POST", INFER, key, image)[0] == 403) is is_refused
    monkeypatch.setenv("KEY", infer_key)
    answers = shell(sent.replace("localhost:8080", server.host), tmp_path)
    assert answers.count('"shapes-classifier"') == 2
    assert "ships" not in answers
    key_id = infer_key.removeprefix("quadriga-").partition(".")[0]
    new_key_text, revoked = shell(replaced.replace("ID", key_id), tmp_path).splitlines()
    assert revoked == f"revoked {key_id}"
    server.wait_until(lambda: send(server, "GET", "/v2", new_key_text)[0] == 200)
    server.wait_until(lambda: send(server, "GET", "/v2", infer_key)[0] == 401)


def test_the_roles_of_the_page_are_those_of_the_server():
    page = (ROOT / "docs" / "security.md").read_text()
    section = page.partition("\n## Keys and roles")[2].partition("\n## ")[0]
    table = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert table == [*get_args(Role)]


def test_a_database_of_another_version_is_left_as_it_is(tmp_path):
    quadriga("keys", "create", "--role", "read", "--data", tmp_path)
    with closing(sqlite3.connect(tmp_path / "store.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '2027.02'")
    answer = quadriga("keys", "list", "--data", tmp_path, code=2)
    assert "2027.02 (quadriga migrate)" in answer.stderr
    assert (tmp_path / "store.db").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("trusted", ["127.0.0.1", "192.0.2.0/24"])
def test_a_session_behind_a_proxy_that_ends_tls(tmp_path, trusted):
    """The socket is of IPv6, as with --host ::, so the proxy comes from ::ffff:127.0.0.1."""
    flags = ("--host", "::ffff:127.0.0.1", "--trusted-proxies", trusted)
    flags += ("--allowed-hosts", "models.example.org")
    server = ServerProcess(tmp_path / "data", SAMPLE_MODELS / "shapes-classifier", *flags)
    server.start(ready=False)
    server.host = server.host.replace("[::ffff:127.0.0.1]", "127.0.0.1")
    try:
        file = server.data / "admin.key"
        server.wait_until(file.exists)
        key = file.read_text().strip()
        server.wait_until(lambda: send(server, "GET", "/v2", key)[0] == 200)
        of_proxy = {
            "Host": "models.example.org",
            "X-Forwarded-Proto": "https",
            "X-Forwarded-For": "198.51.100.1, 203.0.113.9",
            "Sec-Fetch-Site": "same-origin",
        }
        form = {**of_proxy, "Content-Type": "application/x-www-form-urlencoded"}
        status, headers, _ = server.request("POST", "/console/login", f"key={key}", form)
        assert status == 303
        cookie = headers["set-cookie"]
        assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= {
            p.strip() for p in cookie.split(";")
        }
        sent = {**of_proxy, "Cookie": cookie.partition(";")[0]}
        assert server.request("GET", "/console/you", None, sent)[0] == 200
        assert server.request("GET", "/api/models", None, {**sent, "Sec-Fetch-Site": "cross-site"})[
            0
        ] in (401, 403)
        entries = send(server, "GET", "/api/audit?limit=100", key)[2]["entries"]
        (address,) = [entry["address"] for entry in entries if entry["action"] == "log-in"]
        assert address == ("203.0.113.9" if trusted == "127.0.0.1" else "127.0.0.1")
    finally:
        server.stop()
