"""Nothing acknowledged is lost, and nothing in flight is cut."""

import os
import signal
import socket
import sqlite3
import time
from contextlib import closing

import pytest

from tests.clients import PATH, Clients
from tests.server_process import SAMPLE_MODELS, ServerProcess, image_input, quadriga


def test_killing_the_writer_alone_loses_nothing_and_stops_nothing(data, shape):
    with ServerProcess(data) as server:
        clients = Clients(server, shape[0])
        for _ in range(3):
            count_before = len(clients.acknowledged)
            server.wait_until(
                lambda count_before=count_before: len(clients.acknowledged) > count_before + 50
            )
            server.kill_child("writer")
        clients.finish()
        assert clients.failed == []
        server.wait_until(lambda: len(server.query({})) >= len(clients.acknowledged))
        stored = [record["id"] for record in server.query({})]
    assert sorted(stored) == sorted(clients.acknowledged)


def test_nothing_acknowledged_after_the_database_was_deleted_is_lost(data, shape):
    with ServerProcess(data) as server:
        clients = Clients(server, shape[0])
        server.wait_until(lambda: len(clients.acknowledged) > 100)
        server.wait_until(lambda: len(server.query({})) > 50)
        (data / "store.db").unlink()
        ids_before = set(clients.acknowledged)
        server.wait_until(lambda: len(clients.acknowledged) > len(ids_before) + 100)
        clients.finish()
        ids_after = set(clients.acknowledged) - ids_before
        assert clients.failed == []
        # A query is answered with 503 until the new database is there.
        server.wait_until(lambda: server.call("POST", "/api/inferences/query", {})[0] == 200)
        server.wait_until(lambda: ids_after <= {record["id"] for record in server.query({})})


def test_a_worker_that_dies_is_started_again(data, shape):
    with ServerProcess(data) as server:
        body = {"inputs": [image_input(shape[0])]}
        assert server.call("POST", PATH, body)[0] == 200
        server.kill_child("worker")
        status, _ = server.call("POST", PATH, body)  # waits in the listener's queue meanwhile
        assert status in (200, 503)
        server.wait_until(lambda: server.call("POST", PATH, body)[0] == 200)
        stored = [record["id"] for record in server.query({})]
        assert len(stored) == len(set(stored)) >= 2


@pytest.mark.parametrize("whole_group", [False, True], ids=["supervisor", "group"])
def test_sigterm_fails_no_request_in_flight(data, shape, whole_group):
    server = ServerProcess(data).start()
    clients = Clients(server, shape[0])
    server.wait_until(lambda: len(clients.acknowledged) > 50)
    if whole_group:
        os.killpg(server.process.pid, signal.SIGTERM)
    assert server.stop() == 0
    clients.finish()
    assert clients.failed == []
    assert clients.refused, "the listener should be closed at the end"
    with server:
        stored = {record["id"] for record in server.query({})}
    assert stored == set(clients.acknowledged)


def test_the_server_is_not_ready_while_it_drains(data, shape):
    server = ServerProcess(data, SAMPLE_MODELS, "--drain-s", "2").start()
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    status, answer = server.call("GET", "/v2/health/ready")
    assert status == 400
    assert "shutting down" in answer["error"]
    assert server.call("POST", PATH, {"inputs": [image_input(shape[0])]})[0] == 200
    assert server.stop() == 0


def test_a_client_that_never_sends_its_body_does_not_spoil_the_end(data):
    server = ServerProcess(data, SAMPLE_MODELS, "--exit-timeout-s", "6").start()
    host, port = server.host.split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(
            f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{{".encode()
        )
        time.sleep(0.2)
        assert server.stop() == 0
    assert "is killed" not in server.log.read_text()


def test_two_servers_on_one_data_folder_are_refused(data):
    with ServerProcess(data) as server:
        second = ServerProcess(data)
        with pytest.raises(AssertionError, match="no address"):
            second.start()
        assert second.process.wait(10) == 2
        second.process.stdout.close()
        assert "in use" in server.log.read_text()


def test_children_end_when_their_supervisor_is_killed(data):
    server = ServerProcess(data).start()
    children = server.child_pids()[1:]
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    server.process.stdout.close()
    until = time.monotonic() + 60
    while any(_alive(pid) for pid in children):
        assert time.monotonic() < until, "a child outlived its supervisor"
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_database_of_another_version_stops_the_server_and_is_left_alone(data):
    data.mkdir()
    with closing(sqlite3.connect(data / "store.db")) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num TEXT)")
        database.execute("INSERT INTO alembic_version VALUES ('0001')")
    model = SAMPLE_MODELS / "shapes-classifier"
    ended = quadriga("serve", model, "--data", data, "--port", "0", "--grpc-port", "-1", code=2)
    assert "cannot read the database: it is at revision 0001" in ended.stderr
    assert "quadriga restore" in ended.stderr
    with closing(sqlite3.connect(data / "store.db")) as database:
        assert database.execute("SELECT name FROM sqlite_schema").fetchall() == [
            ("alembic_version",)
        ]


def test_a_database_with_other_tables_of_the_same_revision_stops_the_server(data):
    quadriga("migrate", "--data", data)
    with closing(sqlite3.connect(data / "store.db")) as database, database:
        database.execute("ALTER TABLE inference RENAME COLUMN action TO verb")
    model = SAMPLE_MODELS / "shapes-classifier"
    ended = quadriga("serve", model, "--data", data, "--port", "0", "--grpc-port", "-1", code=2)
    assert "missing inference.action TEXT not null" in ended.stderr
    assert quadriga("query", "--data", data, code=2).stdout == ""
