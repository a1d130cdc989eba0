"""What nobody else may see: passwords anywhere, files by other users, and this machine in answers."""

import json
import os
import re
import shutil
import socket
import stat
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres_server import PostgresServer
from tests.server_process import SAMPLE_MODELS, ServerProcess, free_port, quadriga

PASSWORD, TOKEN = "canary-7f3a-password", "canary-7f3a-token"
CANARY = "canary-7f3a"
TENSORS = '{"inputs": [{"name": "a", "shape": [1], "datatype": "BYTES", "data": ["AAAA"]}]}'


class RefusingDatabase:
    """A server that speaks PostgreSQL, takes no password, and repeats it in its refusal."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.passwords: list[str] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._refuse, args=(connection,), daemon=True).start()

    def _refuse(self, connection: socket.socket) -> None:
        with connection:
            while True:
                size, code = struct.unpack("!II", connection.recv(8, socket.MSG_WAITALL))
                if (
                    code == 196608
                ):  # the startup message; before it, a client may ask for encryption
                    break
                connection.sendall(b"N")
            connection.recv(size - 8, socket.MSG_WAITALL)
            connection.sendall(b"R" + struct.pack("!II", 8, 3))  # wants a password as it is
            _, size = struct.unpack("!cI", connection.recv(5, socket.MSG_WAITALL))
            password = connection.recv(size - 4, socket.MSG_WAITALL).rstrip(b"\0")
            self.passwords.append(password.decode())
            fields = b"SFATAL\0C28P01\0Mpassword " + password + b" is wrong\0\0"
            connection.sendall(b"E" + struct.pack("!I", len(fields) + 4) + fields)


@pytest.fixture
def refusing() -> Iterator[RefusingDatabase]:
    """A database that takes no password."""
    database = RefusingDatabase()
    yield database
    database.close()


def modes(folder: Path) -> dict[str, str]:
    """Return files and folders that others than their user may use."""
    paths = [folder, *folder.rglob("*")]
    return {
        str(path): oct(path.lstat().st_mode)
        for path in paths
        if stat.S_IMODE(path.lstat().st_mode) & 0o077
    }


def files_with(folder: Path, text: str) -> list[Path]:
    return [
        path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()
    ]


def test_no_secret_is_printed_logged_answered_or_written(
    refusing, data, tmp_path, monkeypatch, shape
):
    address = f"127.0.0.1:{refusing.port}"
    (tmp_path / "url").write_text(f"postgresql://quadriga:{PASSWORD}@{address}/store\n")
    away = free_port()
    (tmp_path / "clickhouse").write_text(f"http://u:{PASSWORD}@127.0.0.1:{away}/db?token={TOKEN}")
    monkeypatch.setenv("QUADRIGA_DATABASE_FILE", str(tmp_path / "url"))
    monkeypatch.setenv("QUADRIGA_CLICKHOUSE_FILE", str(tmp_path / "clickhouse"))
    # Without keys, which would be in the database that refuses.
    server = ServerProcess(data, SAMPLE_MODELS, "--insecure").start(ready=False)
    try:
        server.wait_until(lambda: "is wrong" in server.log.read_text())
        answers = [
            server.request("GET", "/api/inferences?limit=1", headers={"X-Request-ID": "trace-1"}),
            server.request("GET", "/api/inferences", headers={"X-Request-ID": "a b"}),
            server.request("POST", "/api/inferences/query", "{}"),
            server.request("GET", "/v2/health/ready?verbose"),
            server.request("GET", "/metrics"),
            server.request("GET", "/api/models"),
            server.request("POST", "/v2/repository/index", "{}"),
            server.request("POST", "/api/exports", "{}"),
        ]
        job = json.loads(answers[-1][2])
        server.wait_until(lambda: "ended_at" not in job or (data / "jobs").is_dir())
        if "id" in job:
            server.ended(job["id"])
            answers.append(server.request("GET", f"/api/jobs/{job['id']}"))
        for status, headers, body in answers:
            text = f"{headers} {body.decode()}"
            for secret in (CANARY, address, str(refusing.port), str(tmp_path)):
                assert secret not in text, (status, text)
        assert answers[0][0] == 503
        assert answers[0][1]["x-request-id"] == "trace-1"
        assert json.loads(answers[0][2]) == {"error": "the database does not answer"}
        assert (
            "request trace-1 was answered 503: the database does not answer"
            in server.log.read_text()
        )
        assert len(answers[1][1]["x-request-id"]) == 36
        for pid in server.child_pids():
            for name in ("cmdline", "environ"):
                assert CANARY.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    finally:
        server.stop()
    assert PASSWORD in refusing.passwords
    log = server.log.read_text()
    assert str(refusing.port) in log  # who runs the server has the whole text
    assert files_with(data, CANARY) == []
    assert CANARY not in log
    assert modes(data) == {}


def test_a_server_that_works_writes_its_password_nowhere(data, tmp_path, monkeypatch, shape):
    postgres = PostgresServer()
    url = postgres.create(migrated=False).replace("postgres@", f"postgres:{PASSWORD}@")
    (tmp_path / "url").write_text(url)
    monkeypatch.setenv("QUADRIGA_DATABASE_FILE", str(tmp_path / "url"))
    models = tmp_path / "models"
    shutil.copytree(SAMPLE_MODELS / "shapes-classifier", models / "shapes-classifier")
    try:
        with ServerProcess(data, models) as server:
            for _ in range(3):
                server.store("shapes-classifier", shape[0])
            server.wait_until(lambda: len(server.query({})) == 3)
            window = {"from": "-1h", "to": "now"}
            answers = []
            for path, body in (
                ("/api/exports", {"format": "jsonl"}),
                ("/api/evaluations", {"model": "shapes-classifier"}),
                (
                    "/api/drift",
                    {"model": "shapes-classifier", "current": window, "baseline": window},
                ),
            ):
                answers.append(server.call("POST", path, body))
                if answers[-1][0] == 202:
                    answers.append(server.ended(answers[-1][1]["id"]))
            answers.append(server.request("GET", "/metrics"))
            answers.append(server.call("GET", "/v2/health/ready?verbose"))
            postgres.stop()
            answers.append(server.call("GET", "/api/inferences"))
            assert answers[-1] == (503, {"error": "the database does not answer"})
            for pid in server.child_pids():
                assert CANARY.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
            postgres.start()
            server.wait_until(lambda: server.call("GET", "/api/inferences")[0] == 200)
        assert [answer for answer in answers if CANARY in str(answer)] == []
        assert any(answer[0] == 202 for answer in answers if isinstance(answer, tuple))
    finally:
        postgres.close()
    assert files_with(data, CANARY) == []
    assert CANARY not in server.log.read_text()
    assert modes(data) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serve", "--database", f"mysql://u:{PASSWORD}@h/db"), "got 'mysql://h/db'"),
        (("migrate", "--database", f"postgresql://u:{PASSWORD}@h:port/db"), "'postgresql://…'"),
        (("query", "--database", f"postgresql://u:{CANARY}@x@h/db"), "to be written %40"),
        (("migrate", "--database", f"postgresql://u:{PASSWORD}@127.0.0.1:PORT/db"), "PORT"),
        (("query", "--database", f"postgresql://u:{PASSWORD}@127.0.0.1:PORT/db"), "does not answer (con"),
        (("store", "copy", "sqlite:////a.db", f"http://u:{PASSWORD}@h:x/db"), "'http://…'"),
    ],
)  # fmt: skip
def test_commands_that_fail_show_no_password(refusing, tmp_path, arguments, message):
    port = str(refusing.port)
    words = [word.replace("PORT", port) for word in arguments]
    ended = quadriga(*words, code=2, cwd=tmp_path)
    assert CANARY not in ended.stdout + ended.stderr
    assert message.replace("PORT", port) in ended.stderr


def test_files_are_private_and_answers_name_no_folder(data, tmp_path, shape):
    models = tmp_path / "models"
    shutil.copytree(SAMPLE_MODELS / "shapes-classifier", models / "shapes-classifier")
    (models / "broken").mkdir()
    (models / "broken" / "model.onnx").write_bytes(b"no model")
    shutil.copytree(models / "shapes-classifier", models / "outsider")
    written = (models / "outsider" / "model.toml").read_text()
    written = re.sub("^task = .*", 'task = "json:nothing"', written, flags=re.MULTILINE)
    (models / "outsider" / "model.toml").write_text(written)
    data.mkdir(mode=0o755)
    (data / "journal").mkdir(mode=0o755)
    data.chmod(0o755)
    server = ServerProcess(data, models, "--no-strict-readiness", "--max-body-bytes", "200000")
    here = os.umask(0o022)
    try:
        server.start()
        server.store("shapes-classifier", shape[0])
        server.wait_until(lambda: server.query({}))
        status, job = server.call("POST", "/api/exports", {"format": "chariot"})
        assert status == 202
        assert server.ended(job["id"])["state"] == "succeeded"
        folder = "/api/models/shapes-classifier/baseline"
        server.call("PUT", folder, {})
        assert modes(data) == {}
        (data / "store.db").rename(tmp_path / "aside.db")
        requests = [
            ("GET", "/api/inferences", None, 503),
            ("GET", "/v2/models/broken", None, 503),
            ("GET", "/v2/models/broken/ready", None, 400),
            ("POST", "/v2/models/broken/infer", TENSORS, 503),
            ("POST", "/v1/models/broken:predict", '{"instances": [1]}', 503),
            ("POST", "/v2/repository/models/broken/load", "{}", 400),
            ("POST", "/v2/models/outsider/infer", TENSORS, 503),
            ("POST", "/v2/repository/models/outsider/load", "{}", 400),
            ("POST", "/v2/repository/index", "{}", 200),
            ("GET", "/v2/health/ready?verbose", None, 200),
            ("POST", "/v2/models/shapes-classifier/infer", "x" * 300_000, 413),
            ("POST", "/v2/models/shapes-classifier/infer", TENSORS, 400),
            ("GET", "/nowhere", None, 404),
            ("DELETE", "/ready", None, 405),
            ("GET", "/api/jobs/none", None, 404),
        ]  # fmt: skip
        for method, path, body, expected in requests:
            status, headers, answer = server.request(method, path, body)
            assert status == expected, (path, answer)
            assert str(tmp_path) not in answer.decode(), path
            assert sys.base_prefix not in answer.decode(), path
            assert "site-packages" not in answer.decode(), path
            if expected >= 500:
                assert (
                    headers["x-request-id"] in server.log.read_text() or path != "/api/inferences"
                )
        assert "<module 'json' from '__init__.py'>" in str(
            server.call("POST", "/v2/repository/index", {})
        )
        assert f"<module 'json' from '{json.__file__}'>" in server.log.read_text()
        (tmp_path / "aside.db").rename(data / "store.db")
    finally:
        os.umask(here)
        server.stop()
    assert "could be read by others" in server.log.read_text()
    assert modes(data) == {}
    quadriga("migrate", "--data", tmp_path / "other")
    assert modes(tmp_path / "other") == {}
    target = tmp_path / "export.jsonl"
    here = os.umask(0o022)
    try:
        quadriga("export", "--data", data, "--output", target)
    finally:
        os.umask(here)
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
