"""Faults of the disk, the data folder, the database and the processes: what probes say, and that all of it heals."""

import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from tests.clients import PATH, Clients
from tests.server_process import ROOT, SAMPLE_MODELS, ServerProcess, image_input

MODEL = SAMPLE_MODELS / "shapes-classifier"
QUICK_TO_HANG = {"engine.processes.watchdog": {"HANG_TIMEOUT_S": 2}}


class SmallDisk:
    """A file system of some megabytes, which can be filled up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(1024))

    def free(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Mount an ext4 file system, where even a folder needs room; a tmpfs has none for files alone."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    try:
        subprocess.run(
            ["mkfs.ext4", "-q", "-N", "2000", str(image)], check=True, capture_output=True
        )
        subprocess.run(
            ["mount", "-o", "loop", str(image), str(folder)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system may be mounted here")
    yield SmallDisk(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


def verbose(server: ServerProcess):
    return server.call("GET", "/v2/health/ready?verbose")[1]


def process(server: ServerProcess, name: str):
    return next(one for one in verbose(server)["process"]["processes"] if one["name"] == name)


def is_ready(server: ServerProcess) -> bool:
    return server.call("GET", "/v2/health/ready")[0] == 200


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_start_on_a_full_disk_heals_by_itself(disk, shape, workers):
    data = disk.folder / "data"
    data.mkdir()
    disk.fill()
    server = ServerProcess(data, MODEL, "--workers", workers)
    server.log = disk.folder.parent / "server.log"
    server.start(ready=False)
    try:
        reason = "No space left on device"
        server.wait_until(lambda: reason in str(verbose(server)))
        assert server.call("GET", "/v2/health/live")[0] == 200
        disk.free()
        server.wait_until(lambda: is_ready(server))
        server.store("shapes-classifier", shape[0])
        assert len(server.query({})) == 1
    finally:
        assert server.stop() == 0
    log = server.log.read_text()
    assert reason in log
    assert "ended with status" not in log


def test_a_worker_started_again_on_a_full_disk_heals_by_itself(disk, shape):
    data = disk.folder / "data"
    server = ServerProcess(data, MODEL, "--workers", "2")
    server.log = disk.folder.parent / "server.log"
    with server:
        server.store("shapes-classifier", shape[0])
        disk.fill()
        shutil.rmtree(data / "run")
        disk.fill()  # so that the worker cannot make that folder again
        server.kill_child("worker-1")
        server.wait_until(lambda: "No space left" in str(process(server, "worker 1")["reason"]))
        disk.free()
        server.wait_until(lambda: process(server, "worker 1")["state"] == "ready")
        server.wait_until(lambda: is_ready(server))
        server.store("shapes-classifier", shape[0])


def test_an_archive_that_finds_no_room_is_loaded_once_there_is_some(disk, tmp_path):
    models, data = tmp_path / "models", tmp_path / "data"
    models.mkdir()
    data.mkdir()
    shutil.make_archive(str(models / "packed"), "zip", MODEL)
    (disk.folder / "archives").mkdir()
    (data / "archives").symlink_to(disk.folder / "archives")
    disk.fill()
    server = ServerProcess(data, models)
    server.start(ready=False)
    try:
        reason = "cannot load the models yet: No space left on device"
        server.wait_until(lambda: reason in str(process(server, "worker 0")["reason"]))
        disk.free()
        server.wait_until(lambda: is_ready(server))
        assert server.call("GET", "/v2/models/packed/ready")[0] == 200
    finally:
        assert server.stop() == 0


def test_a_stopped_worker_is_replaced_while_others_go_on(data, shape):
    quick = {"engine.processes.watchdog": {"HANG_TIMEOUT_S": 3}}
    with ServerProcess(data, MODEL, "--workers", "2", constants=quick) as server:
        clients = Clients(server, shape[0])
        server.wait_until(lambda: len(clients.acknowledged) > 50)
        pid = server.child_pid("worker")
        name = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2].decode()
        os.kill(pid, signal.SIGSTOP)
        server.wait_until(lambda: server.child_pid(name) not in (0, pid))
        server.wait_until(lambda: process(server, name.replace("-", " "))["state"] == "ready")
        assert process(server, name.replace("-", " "))["hangs"] == 1
        count = len(clients.acknowledged)
        server.wait_until(lambda: len(clients.acknowledged) > count + 50)
        clients.finish()
        # The requests that the stopped worker held, one of each connection at most.
        assert len(clients.failed) <= 6, clients.failed
        assert not any(failure.startswith(("4", "5")) for failure in clients.failed)
        metrics = server.request("GET", "/metrics")[2].decode()
        assert f'quadriga_process_hangs_total{{process="{name}"}} 1.0' in metrics
        server.wait_until(lambda: len(server.query({})) >= len(clients.acknowledged))
        stored = [record["id"] for record in server.query({})]
        assert len(stored) == len(set(stored))
        assert set(clients.acknowledged) <= set(stored)
        assert len(stored) - len(clients.acknowledged) <= len(clients.failed)
    assert "shows no sign of life" in server.log.read_text()


@pytest.mark.parametrize("role", ["writer", "jobs"])
def test_a_stopped_writer_and_stopped_jobs_are_replaced(data, shape, role):
    with ServerProcess(data, MODEL, constants=QUICK_TO_HANG) as server:
        server.store("shapes-classifier", shape[0])
        server.wait_until(lambda: process(server, role)["state"] == "ready")
        pid = server.child_pid(role)
        os.kill(pid, signal.SIGSTOP)
        server.wait_until(lambda: server.child_pid(role) not in (0, pid))
        server.store("shapes-classifier", shape[0])
        assert len(server.query({})) == 2
        server.wait_until(lambda: process(server, role)["hangs"] == 1)


def test_a_stopped_supervisor_takes_nobody_for_hung(data):
    with ServerProcess(data, MODEL, constants=QUICK_TO_HANG) as server:
        children = server.child_pids()
        for pid in children:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(5)  # as while the machine sleeps
        for pid in children:
            os.kill(pid, signal.SIGCONT)
        time.sleep(2)
        assert server.child_pids() == children


def test_a_worker_started_again_takes_no_requests_before_it_can_answer(data, shape):
    with ServerProcess(data, SAMPLE_MODELS, "--workers", "2") as server:
        pid = server.child_pid("worker")
        os.kill(pid, signal.SIGKILL)
        body = {"inputs": [image_input(shape[0])]}
        until, answers = time.monotonic() + 60, []
        while time.monotonic() < until:
            answers.append(server.call("POST", PATH, body)[0])
            answers.append(server.call("GET", "/v2/health/ready")[0])
            states = [one["state"] for one in verbose(server)["process"]["processes"][:2]]
            if len(answers) > 20 and states == ["ready", "ready"]:
                break
        assert set(answers) == {200}
        assert states == ["ready", "ready"]


def test_a_hang_up_ends_no_process(data):
    with ServerProcess(data, MODEL) as server:
        children = server.child_pids()
        os.killpg(server.process.pid, signal.SIGHUP)
        time.sleep(1)
        assert server.child_pids() == children
        assert is_ready(server)


@pytest.mark.parametrize("seconds", [0.9, 1.2, 1.3, 1.4])
def test_a_server_may_be_stopped_while_it_starts(data, seconds):
    server = ServerProcess(data, SAMPLE_MODELS, "--grpc-port", "0", "--workers", "2")
    server.start(ready=False)
    time.sleep(seconds)
    assert server.stop() == 0
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "terminate called" not in log


def test_a_removed_data_folder_is_made_again_and_stays_locked(data, shape):
    with ServerProcess(data, MODEL) as server:
        server.store("shapes-classifier", shape[0])
        # Moved first, since the server may write into a folder while it is removed.
        shutil.rmtree(data.rename(data.with_name("gone")))
        server.wait_until((data / "server.lock").exists)
        second = ServerProcess(data, MODEL)
        with pytest.raises(AssertionError, match="no address"):
            second.start()
        assert second.process.wait(10) == 2
        second.process.stdout.close()
        body = {"inputs": [image_input(shape[0])]}
        server.wait_until(lambda: server.call("POST", PATH, body)[0] == 200)
        server.wait_until(lambda: is_ready(server))
        server.wait_until(lambda: server.call("POST", "/api/inferences/query", {})[0] == 200)
        assert server.query({})
    assert "made again" in server.log.read_text()


def test_a_damaged_database_is_set_aside_while_images_are_answered(data, shape):
    with ServerProcess(data, MODEL) as server:
        for _ in range(5):
            server.store("shapes-classifier", shape[0])
        server.query({})
    with closing(sqlite3.connect(data / "store.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = (data / "store.db").read_bytes()
    (data / "store.db").write_bytes(content.replace(b"CREATE TABLE ", b"CREATE TABLE \xff"))
    with ServerProcess(data, MODEL) as server:
        stored = {server.store("shapes-classifier", shape[0]) for _ in range(5)}
        server.wait_until(lambda: list(data.glob("store.db.damaged-*")))
        server.wait_until(lambda: server.call("POST", "/api/inferences/query", {})[0] == 200)
        server.wait_until(lambda: stored <= {record["id"] for record in server.query({})})
        metrics = server.request("GET", "/metrics")[2].decode()
        assert "quadriga_store_damaged_databases 1.0" in metrics
    log = server.log.read_text()
    assert "THE DATABASE IS DAMAGED" in log
    assert "ended with status" not in log


def test_the_end_says_how_many_records_wait(data, shape):
    server = ServerProcess(data, MODEL).start()
    server.store("shapes-classifier", shape[0])
    server.query({})
    with closing(sqlite3.connect(data / "store.db")) as database:
        database.execute("BEGIN IMMEDIATE")  # nobody else may write
        for _ in range(3):
            server.store("shapes-classifier", shape[0])
        assert server.stop() == 75
    last = server.log.read_text().splitlines()[-1]
    assert " 3 inferences and " in last
    assert "wait in the journal" in last
    with ServerProcess(data, MODEL) as server:
        assert len(server.query({})) == 4
    assert server.process.returncode == 0


PAGE = ROOT / "docs" / "serving.md"


def documented_faults() -> dict[str, tuple[list[int], str]]:
    """Read the table of faults: status of live, ready, the model's ready and an image, and the part."""
    rows = PAGE.read_text().partition("<!-- faults:")[2].partition("\n\n")[0].splitlines()[3:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {row[0]: ([int(cell) for cell in row[1:5]], row[5]) for row in cells}


def probe(server: ServerProcess, image: bytes) -> tuple[list[int], str]:
    """Ask what the table says of a fault; the image goes first, as a full disk is known from it."""
    body = {"inputs": [image_input(image)]}
    answered = server.call("POST", PATH, body)[0]
    paths = "/v2/health/live", "/v2/health/ready", "/v2/models/shapes-classifier/ready"
    statuses = [server.call("GET", path)[0] for path in paths]
    report = verbose(server)
    wrong = [
        f"{part} {report[part]['state']}"
        for part in ("process", "store", "models")
        if report[part]["state"] != "ready"
    ]
    assert all(report[part]["reason"] for part in ("process", "store", "models") if part in wrong)
    assert str(server.data) not in json.dumps(report)
    return [*statuses, answered], ", ".join(wrong) or "all ready"


@contextmanager
def slow_model(models: Path) -> Iterator[None]:
    """Put a model in the other's place whose module takes long to import."""
    shutil.rmtree(models / "shapes-classifier")
    shutil.copytree(SAMPLE_MODELS / "shapes-detector", models / "shapes-classifier")
    toml = models / "shapes-classifier" / "model.toml"
    toml.write_text(toml.read_text().replace('"ultralytics"', '"slow_decoding:decode"'))
    (models.parent / "extensions").mkdir()
    module = models.parent / "extensions" / "slow_decoding.py"
    module.write_text("import time\ntime.sleep(30)\n")
    yield


@contextmanager
def failed_model(models: Path) -> Iterator[None]:
    (models / "shapes-classifier" / "model.onnx").write_bytes(b"no model")
    yield


@contextmanager
def full_disk(server: ServerProcess) -> Iterator[None]:
    """Let the processes write no more bytes to files."""
    for pid in server.child_pids()[1:]:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    yield
    for pid in server.child_pids()[1:]:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


@contextmanager
def full_journal(server: ServerProcess) -> Iterator[None]:
    writer = server.child_pid("writer")
    os.kill(writer, signal.SIGSTOP)
    yield
    os.kill(writer, signal.SIGCONT)


@contextmanager
def locked_database(server: ServerProcess) -> Iterator[None]:
    server.wait_until(lambda: server.call("POST", "/api/inferences/query", {})[0] == 200)
    with closing(sqlite3.connect(server.data / "store.db", timeout=30)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.rollback()


@contextmanager
def dead_worker(server: ServerProcess) -> Iterator[None]:
    os.kill(server.child_pid("worker"), signal.SIGKILL)
    yield


@contextmanager
def end(server: ServerProcess) -> Iterator[None]:
    server.process.send_signal(signal.SIGTERM)
    yield


BEFORE_START = {"models are loading": slow_model, "the model failed to load": failed_model}
WHILE_RUNNING = {
    "nothing is wrong": nullcontext,
    "the disk is full": full_disk,
    "the disk is full, and `journal_full` is `shed`": full_disk,
    "the journal is full": full_journal,
    "the database is away": locked_database,
    "the database is away, and `durability` is `database`": locked_database,
    "one of two workers has died": dead_worker,
    "the server is shutting down": end,
}
FLAGS = {
    "models are loading": ("--extensions", "{folder}/extensions"),
    "the disk is full, and `journal_full` is `shed`": ("--journal-full", "shed"),
    "the journal is full": ("--journal-hard-bytes", "3000"),
    "the database is away, and `durability` is `database`": ("--durability", "database"),
    "one of two workers has died": ("--workers", "2"),
    "the server is shutting down": ("--drain-s", "8"),
}


def test_every_fault_of_the_table_is_produced():
    assert set(documented_faults()) == BEFORE_START.keys() | WHILE_RUNNING.keys()


@pytest.mark.parametrize("fault", [*BEFORE_START, *WHILE_RUNNING])
def test_probes_say_what_the_table_says(fault, tmp_path, shape):
    models = tmp_path / "models"
    shutil.copytree(MODEL, models / "shapes-classifier")
    flags = [flag.format(folder=tmp_path) for flag in FLAGS.get(fault, ())]
    server = ServerProcess(tmp_path / "data", models, *flags)
    expected = documented_faults()[fault]
    with ExitStack() as stack:
        if fault in BEFORE_START:
            stack.enter_context(BEFORE_START[fault](models))
            server.start(ready=False)
            stack.callback(server.stop)
        else:
            server.start()
            stack.callback(server.stop)
            server.store("shapes-classifier", shape[0])
            produce = WHILE_RUNNING[fault]
            stack.enter_context(produce() if produce is nullcontext else produce(server))
        probes = []

        def is_as_expected() -> bool:
            probes.append(probe(server, shape[0]))
            return probes[-1] == expected

        try:
            server.wait_until(is_as_expected)
        except AssertionError:
            assert probes[-1] == expected
            raise
