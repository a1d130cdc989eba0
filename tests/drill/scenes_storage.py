"""Scenes of what the store stands on: its database, its disk, the clock, and the bits of its files."""

import re
import shutil
import sqlite3
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from quadriga.store.records.ids import MAX_LEAD_MS, time_ms
from tests.drill.client import ACKNOWLEDGED, BUSY
from tests.drill.outcomes import Outcome, Result, count_lost_and_twice, stored_rows
from tests.drill.trial import Drill, Trial
from tests.server_process import ServerProcess

OUTAGES = 10
FULL_DISKS = 5
TMPFS_BYTES = 48 * 1024 * 1024
BIT_FLIPS = 5
CLOCK_JUMPS = (400 * 86_400, -3600, 7200, -400 * 86_400)
"""Seconds by which a clock is wrong for a moment."""


def database_outages(drill: Drill) -> Result:
    """Stop and start PostgreSQL under load, in order or as a crash; inferences go on."""
    url = drill.postgres.create(migrated=False)
    server = drill.server("outages", "--database", url)
    trial = Trial(drill, "outages of the database", [server], url=url).start()
    try:
        for number in range(OUTAGES):
            drill.postgres.stop("immediate" if number % 2 else "fast")
            try:
                trial.load.wait_for(20)
            finally:
                drill.postgres.start()
            trial.load.wait_for(5)
        return trial.finish(f"{OUTAGES} stops of PostgreSQL")
    except BaseException:
        trial.abandon()
        raise


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system on a folder; gives whether that is allowed here."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=False)


def full_disks(drill: Drill) -> Result:
    """Fill the disk of the data folder, and make room again; nothing that was acknowledged may go."""
    disk = drill.folder / "disk"
    with small_disk(disk) as mounted:
        if not mounted:
            return Result("full disk", "none", note="skipped: mounting a tmpfs is not allowed here")
        server = drill.server("disk/data")
        trial = Trial(drill, "full disk", [server]).start()
        try:
            for _ in range(FULL_DISKS):
                _fill(disk / "filler")
                time.sleep(2.0)
                (disk / "filler").unlink()
                trial.load.wait_for(10)
            outcomes = trial.load.outcomes()
            busy = sum(outcome.kind == BUSY for outcome in outcomes)
            trial.notes.append(f"{busy} refused with 503 meanwhile")
            return trial.finish(f"{FULL_DISKS} times full for 2 s")
        except BaseException:
            trial.abandon()
            raise


def _fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


def clock_jumps(drill: Drill) -> Result:
    """Set the clock of a server's processes forward and back under load; ids must not run ahead of the true time."""
    library, clock = drill.folder / "wrong-clock.so", drill.folder / "clock"
    source = Path(__file__).with_name("wrong_clock.c")
    try:
        command = ["cc", "-shared", "-fPIC", "-o", str(library), str(source)]
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        note = "skipped: needs a C compiler; tests/unit/store/test_clock.py sets a clock of its own"
        return Result("clock jumps", "none", note=note)
    clock.write_bytes(bytes(8))
    server = drill.server("clock-jumps")
    server.environment = {"LD_PRELOAD": str(library), "DRILL_CLOCK": str(clock)}
    trial = Trial(drill, "clock jumps", [server]).start()
    try:
        for jump in CLOCK_JUMPS:
            for wrong_by_s in (jump, 0):
                with clock.open("r+b", buffering=0) as file:
                    file.write(struct.pack("=q", wrong_by_s))
                trial.load.wait_for(30)
                time.sleep(1.0)
        metrics = server.request("GET", "/metrics")[2].decode()
        seen = re.search(r"^quadriga_store_clock_jumps_total (\S+)$", metrics, re.MULTILINE)
        jumps = float(seen[1]) if seen else 0.0
        trial.notes.append(f"{jumps:.0f} jumps seen by the server")

        def check(outcomes: list[Outcome]) -> str:
            given = [int(outcome.text) for outcome in outcomes if outcome.kind == ACKNOWLEDGED]
            lead_s = time_ms(max(given)) / 1000 - time.time()
            if lead_s > MAX_LEAD_MS / 1000:
                return f"ids are {lead_s:.0f} s ahead"
            return "" if jumps else "the server saw no jump"

        harm = f"{len(CLOCK_JUMPS)} times forward or back by up to 400 days"
        return trial.finish(harm, check=check)
    except BaseException:
        trial.abandon()
        raise


def flipped_journal_bits(drill: Drill) -> Result:
    """Flip bits in a journal that waits for its database: only the records that they are in may be lost."""
    url = drill.postgres.create(migrated=False)
    server = drill.server("journal-bits", "--database", url)
    trial = Trial(drill, "flipped bits of the journal", [server], url=url).start()
    try:
        drill.postgres.stop()
        try:
            trial.load.wait_for(100)
            trial.load.finish()
            server.kill()
            flips = sum(_flip_bits(drill, path, BIT_FLIPS) for path in _segments(server.data))
        finally:
            drill.postgres.start()
        server.start()
        server.query({"id": "1"})  # waits for the journal
        result = trial.finish(f"{flips} bits flipped")
    except BaseException:
        trial.abandon()
        raise
    note = f"{result.lost} records with flipped bits are gone, the others are stored"
    dead = [*(server.data / "journal" / "dead").glob("*"), *(server.data / "dead").glob("*")]
    broken = "" if dead or not flips else "no damaged part was kept in dead/"
    return result._replace(
        lost=max(0, result.lost - flips), note=note, broken=result.broken or broken
    )


def _segments(data: Path) -> list[Path]:
    return [path for path in (data / "journal").glob("*.journal") if path.stat().st_size > 4096]


def _flip_bits(drill: Drill, path: Path, count: int) -> int:
    """Flip bits at places that are far from each other; gives how many."""
    content = bytearray(path.read_bytes())
    part = len(content) // count
    for number in range(count):
        place = number * part + drill.chance.randrange(part // 2)
        content[place] ^= 1 << drill.chance.randrange(8)
    path.write_bytes(content)
    return count


def flipped_database_bits(drill: Drill) -> Result:
    """Flip bits in SQLite's file: inferences go on, and with the file of before everything is there again."""
    server = drill.server("database-bits")
    trial = Trial(drill, "flipped bits of SQLite", [server]).start()
    try:
        trial.load.wait_for(100)
        outcomes = trial.load.finish()
        assert server.stop() == 0
        acknowledged = [int(outcome.text) for outcome in outcomes if outcome.kind == ACKNOWLEDGED]
        database = server.data / "store.db"
        with closing(sqlite3.connect(database)) as connection:  # moves the log into the file
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
        shutil.copy(database, server.data / "store.saved")
        flips = _flip_bits(drill, database, 40)
        server.start(ready=False)
        statuses = _statuses_with_damage(server)
        server.kill()
        for path in server.data.glob("store.db*"):
            path.unlink()
        (server.data / "store.saved").rename(database)
        server.start()
        assert server.stop() == 0
        lost, twice = count_lost_and_twice(acknowledged, stored_rows(trial.url))
        wrong = {status for status in statuses if status not in (200, 503)}
        return Result(
            trial.scene,
            f"{flips} bits flipped",
            len(acknowledged),
            lost,
            twice,
            note=f"queries answered {sorted(statuses)} meanwhile; counted with the file of before",
            broken=f"queries of a damaged file answered {sorted(wrong)}" if wrong else "",
        )
    except BaseException:
        trial.abandon()
        raise


def _statuses_with_damage(server: ServerProcess) -> set[int]:
    statuses = set()
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        try:
            # Stored texts are passed on as they are: an answer may be broken where a bit was flipped.
            body = b'{"limit": 100}'
            statuses.add(server.request("POST", "/api/inferences/query", body)[0])
        except OSError:  # it is not up yet, or starts again
            assert server.process is not None
            if server.process.poll() is not None:
                break
        time.sleep(0.2)
    return statuses
