"""Faults of what the store stands on: database, disk, files and clock, by the alerts that have to fire."""

import os
import signal
import struct
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path

from tests.drill.trial import MODEL
from tests.postgres_server import PostgresServer
from tests.prometheus_drill.faults_serving import send
from tests.prometheus_drill.models import image_body
from tests.prometheus_drill.stage import Stage, small_disk
from tests.prometheus_drill.watch import Watch, repeating
from tests.server_process import ROOT, ServerProcess

SMALL_JOURNAL_BYTES = 200_000
DISK_BYTES = 2_200_000_000
"""Size of a disk on which little more than the 2 GB are free below which an alert fires."""

LARGE_DISK_BYTES = 12_000_000_000
GROWTH_BYTES_PER_S = 6_000_000
WRONG_BY_S = 3600
BROKEN_BYTES = 64


def usual_requests(server: ServerProcess, pause_s: float = 0.1) -> AbstractContextManager[None]:
    """Send requests to the usual model until the end of the block."""
    body = image_body(brightness=100)
    return repeating(lambda: send(server, MODEL.name, body), pause_s)


def lost_database(stage: Stage, watch: Watch) -> None:
    """Stop a PostgreSQL until the journal is full, and start it again."""
    postgres = PostgresServer()
    try:
        url = postgres.create(migrated=False)
        flags = ("--database", url, "--journal-hard-bytes", str(SMALL_JOURNAL_BYTES))
        with (
            stage.running(stage.server("lost-database", *flags)) as server,
            usual_requests(server),
        ):
            watch.begin(server)
            postgres.stop()
            try:
                watch.fires("QuadrigaJournalFillsUp", "QuadrigaNotStored", "QuadrigaStoreBehind")
            finally:
                postgres.start()
            watch.mended()
    finally:
        postgres.close()


def stuck_writer(stage: Stage, watch: Watch) -> None:
    """Stop the writer by SIGSTOP, on a server that does not end it."""
    with (
        stage.running(stage.server("stuck-writer", hang_timeout_s=3600)) as server,
        usual_requests(server, 0.5),
    ):
        pid = server.child_pid("writer")
        watch.begin(server)
        os.kill(pid, signal.SIGSTOP)
        watch.fires("QuadrigaStoreBehind")
        os.kill(pid, signal.SIGCONT)
        watch.mended()


def damaged_segment(stage: Stage, watch: Watch) -> None:
    """Overwrite bytes in the middle of a journal that waits for its database; later move away what was set aside."""
    postgres = PostgresServer()
    try:
        url = postgres.create(migrated=False)
        with stage.running(stage.server("damaged-segment", "--database", url)) as server:
            watch.begin(server)
            postgres.stop()
            try:
                with usual_requests(server, 0.02):
                    time.sleep(5)
                server.kill()
                _damage(server.data / "journal")
            finally:
                postgres.start()
            server.start()
            watch.fires("QuadrigaRecordsSetAside")
            (server.data / "dead").rename(stage.folder / "dead-parts")
            watch.mended()
    finally:
        postgres.close()


def _damage(journal: Path) -> None:
    """Overwrite a part of the largest segment."""
    segment = max(journal.glob("*.journal"), key=lambda path: path.stat().st_size)
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size // 2)
        file.write(b"\xff" * BROKEN_BYTES)


def full_disk(stage: Stage, watch: Watch) -> None:
    """Fill the disk of the data folder, and make room again."""
    with small_disk(stage.folder / "small-disk", DISK_BYTES) as mounted:
        assert mounted, "mounting a file system is not allowed here"
        filler = stage.folder / "small-disk" / "filler"
        with (
            stage.running(stage.server("small-disk/data")) as server,
            usual_requests(server),
            repeating(lambda: server.call("POST", "/api/exports", {"where": {"meta.no": 1}}), 1.0),
        ):
            watch.begin(server)
            _fill(filler)
            watch.fires("QuadrigaDiskFillsUp", "QuadrigaNotStored", "QuadrigaAuditFails")
            filler.unlink()
            watch.mended()


def _fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 24, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


def growing_disk(stage: Stage, watch: Watch) -> None:
    """Fill a disk steadily, so that it would be full within a day of the rules."""
    with small_disk(stage.folder / "large-disk", LARGE_DISK_BYTES) as mounted:
        assert mounted, "mounting a file system is not allowed here"
        folder = stage.folder / "large-disk" / "growth"
        folder.mkdir()
        begun_s = time.monotonic()

        def grow() -> None:
            due_bytes = (time.monotonic() - begun_s) * GROWTH_BYTES_PER_S
            with (folder / "file").open("ab") as file:
                file.write(b"\0" * max(0, int(due_bytes) - file.tell()))

        with stage.running(stage.server("large-disk/data")) as server:
            watch.begin(server)
            with repeating(grow, 0.5):
                watch.fires("QuadrigaDiskFillsUp", timeout_s=5400 / stage.factor + 120)
            (folder / "file").unlink()
            watch.mended()


def wrong_clock(stage: Stage, watch: Watch) -> None:
    """Set the clock of a server's processes an hour ahead, and right again."""
    library, clock = stage.folder / "wrong-clock.so", stage.folder / "clock"
    source = ROOT / "tests" / "drill" / "wrong_clock.c"
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    clock.write_bytes(bytes(8))
    server = stage.server("wrong-clock")
    server.environment = {"LD_PRELOAD": str(library), "DRILL_CLOCK": str(clock)}
    with stage.running(server), usual_requests(server):
        watch.begin(server)
        _set_clock(clock, WRONG_BY_S)
        watch.fires("QuadrigaClockWrong")
        _set_clock(clock, 0)
        watch.mended()


def _set_clock(path: Path, wrong_by_s: int) -> None:
    with path.open("r+b", buffering=0) as file:
        file.write(struct.pack("=q", wrong_by_s))
