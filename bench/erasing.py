"""Cost of erasing 1, 1,000 and 100,000 inferences of a store, in the writer's process, while it takes what comes.

The store is made by the real writer: detections of 200 cameras, with five metadata keys. A record comes every 20 ms while
the writer erases. Each erasure is timed from the search for the ids to its receipt, with the CPU time of this process and of
the process of PostgreSQL that serves it, the longest step, for which the journal waits, the longest time that a record
waited until it was committed, and the growth of the memory. The last line is an erasure that finds nothing: its fixed cost.

Flags: `--database sqlite postgresql`; `--records 200000`; `--counts 1 1000 100000 0`; `--images`: with an image each;
`--truth`: with a statement of ground truth on each request.
"""

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from store_records import Clock, databases, fill, record, records

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.changes.erasures import Erasures
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.journal.journal import Journal
from quadriga.store.maintenance.eraser import Eraser
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import InferenceRecord, JournaledChange, TruthStatement
from quadriga.store.writing.writer import Writer

APPEND_S = 0.02
"""Time between two records that come meanwhile."""


class TimedEraser:
    """An eraser that notes its longest step."""

    def __init__(self, eraser: Eraser) -> None:
        self._eraser = eraser
        self.longest_s = 0.0

    def is_due(self) -> bool:
        """See `Eraser`."""
        return self._eraser.is_due()

    def step(self, *arguments: Any) -> bool:
        """See `Eraser`."""
        began_s = time.perf_counter()
        is_pending = self._eraser.step(*arguments)
        self.longest_s = max(self.longest_s, time.perf_counter() - began_s)
        return is_pending


class Load(threading.Thread):
    """Appends records at a steady rate, and notes the longest time until the writer had committed one."""

    def __init__(self, journal: Journal, writer: Writer) -> None:
        super().__init__(daemon=True)
        self._journal, self._writer = journal, writer
        self._ids, self._chance = IdSource(1), random.Random(2)
        self._stop_event = threading.Event()
        self.longest_s = 0.0

    def run(self) -> None:
        """Append until `stop` is called, and wait until all are committed."""
        waiting: list[tuple[int, float]] = []
        count = self._writer.records_committed
        appended_s = 0.0
        while not (is_stopped := self._stop_event.wait(APPEND_S / 10)) or waiting:
            now_s = time.perf_counter()
            if now_s - appended_s >= APPEND_S and not is_stopped:
                appended_s, count = now_s, count + 1
                self._journal.append([record(self._ids.next(), self._chance)])
                waiting.append((count, now_s))
            while waiting and waiting[0][0] <= self._writer.records_committed:
                self.longest_s = max(self.longest_s, now_s - waiting.pop(0)[1])

    def stop(self) -> None:
        """End it."""
        self._stop_event.set()
        self.join()


def with_images(made: Iterator[InferenceRecord], blobs: FileBlobs) -> Iterator[InferenceRecord]:
    """Give each record an image of its own that is stored."""
    for entry in made:
        digest = blobs.put(b"image of " + entry.request_id.encode() * 32)
        reference = msgspec.structs.replace(entry.input, hash=digest, kept=True, bytes=1024)
        yield msgspec.structs.replace(entry, input=reference)


def statements(count: int) -> Iterator[JournaledChange]:
    """State a ground truth on each request."""
    ids = IdSource(2)
    for entry in records(count):
        statement = TruthStatement("request_id", entry.request_id, [{"label": "circle"}])
        yield JournaledChange(ids.next(), statement)


def memory_mb(*, is_peak: bool) -> float:
    """Return the memory of this process, or its peak since `forget_peak`."""
    name = "VmHWM:" if is_peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def forget_peak() -> None:
    """Begin to measure the peak anew."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    """Print a line for each number of inferences and each database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", nargs="*", default=["sqlite"])
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--counts", type=int, nargs="*", default=[1, 1000, 100_000, 0])
    parser.add_argument("--images", action="store_true")
    parser.add_argument("--truth", action="store_true")
    arguments = parser.parse_args()
    for kind in arguments.database:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            root.chmod(0o755)
            with databases(root, [kind]) as urls:
                measure(urls[kind], root / "data", arguments)


def measure(url: str, root: Path, arguments: argparse.Namespace) -> None:
    """Make a store and erase from it."""
    directory, blobs = root / "journal", FileBlobs(root / "blobs")
    erasures = Erasures(root / "erasures")
    eraser = TimedEraser(Eraser(erasures, directory, blobs, Jobs(root / "jobs"), upload_s=0.0))
    made = records(arguments.records)
    fill(directory, with_images(made, blobs) if arguments.images else made)
    if arguments.truth:
        fill(directory, statements(arguments.records), 500)  # type: ignore[arg-type] # a journal takes both
    writer = Writer(directory, url, eraser=eraser)  # type: ignore[arg-type] # it times the real one
    began_s, cpu_s = time.perf_counter(), time.process_time()
    writer.drain()
    print(
        f"{url.partition(':')[0]}: stored {arguments.records} in {time.perf_counter() - began_s:.1f} s,"
        f" CPU {time.process_time() - cpu_s:.1f} s",
        flush=True,
    )
    reader = InferenceReader(url, directory, blobs)
    clock, stop = Clock(url), threading.Event()
    clock.find()
    running = threading.Thread(target=writer.run, args=(stop,), daemon=True)
    running.start()
    for count in arguments.counts:
        erase(
            count,
            directory=directory,
            reader=reader,
            erasures=erasures,
            eraser=eraser,
            writer=writer,
            clock=clock,
        )
    stop.set()
    running.join()
    clock.close()
    writer.close()
    reader.close()


def erase(
    count: int,
    *,
    directory: Path,
    reader: InferenceReader,
    erasures: Erasures,
    eraser: TimedEraser,
    writer: Writer,
    clock: Clock,
) -> None:
    """Erase a number of inferences, and print what it took."""
    journal = Journal(directory, worker=1)
    load = Load(journal, writer)
    eraser.longest_s, before_mb = 0.0, memory_mb(is_peak=False)
    forget_peak()
    load.start()
    clock.start()
    began_s = time.perf_counter()
    ids: list[int] = []
    for batch in reader.matching_ids({"meta.altitude": {"ge": 0}}):
        ids += batch
        if len(ids) >= count:
            break
    erasure_id = erasures.submit(ids[:count], [], [])
    while erasures.read(erasure_id).state != "complete":
        time.sleep(0.02)
    wall_s = time.perf_counter() - began_s
    own_s, serving_s = clock.stop()
    load.stop()
    journal.close()
    print(
        f"erased {count}: {wall_s:.2f} s, CPU {own_s:.2f} s and {serving_s:.2f} s of the database,"
        f" longest step {eraser.longest_s:.2f} s, longest wait of a record {load.longest_s:.2f} s,"
        f" memory +{memory_mb(is_peak=True) - before_mb:.0f} MB, {erasures.read(erasure_id).counts}",
        flush=True,
    )


if __name__ == "__main__":
    main()
