"""Cost of a drift report on a million stored inferences, on each database.

The store is made once, by the real writer, in a folder that is kept: one model, detections by 200 cameras, spread
evenly over 30 days. Two reports are timed, from the parameters to the report's JSON, without its page: all
inferences against a frozen baseline of the first three days, and the second half against the first. Beside the
time of the wall stands the CPU time of this process.

Flags: `--records 1000000`, with a `--folder` for each size (1 M takes 2 GB on each database and some minutes);
`--database sqlite` or `postgresql` for one of them; `--repeats 3`.
"""

import argparse
import time
from pathlib import Path

import msgspec
from store_records import build, databases, records

from quadriga.monitor.drift.baselines import Baseline, BaselineRequest, BaselineStore
from quadriga.monitor.drift.parameters import DriftParameters, StoredWindow
from quadriga.monitor.drift.stored import BASELINE_ROWS, compare_stored, current_window_query
from quadriga.monitor.drift.windows import WindowSummary, read_window
from quadriga.monitor.executors import LocalExecutor
from quadriga.monitor.report.schema import Report
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.records import ModelReference

KINDS = ("sqlite", "postgresql")
MODEL = ModelReference("detector", "1", "a" * 64)
EARLY, MIDDLE = "2026-01-06T00:00:00Z", "2026-01-18T00:00:00Z"


def prepare(url: str, kind: str, arguments: argparse.Namespace) -> None:
    """Fill the store, unless an earlier run did."""
    folder = arguments.folder / f"{kind}-{arguments.records}"
    if folder.exists():
        return
    started_s = time.perf_counter()
    renamed = (
        msgspec.structs.replace(record, model=MODEL) for record in records(arguments.records)
    )
    build(url, arguments.folder / f"{kind}-writer", renamed)
    print(f"{kind}: {arguments.records} records stored in {time.perf_counter() - started_s:.0f} s")
    folder.touch()


def frozen(inferences: InferenceReader, folder: Path) -> WindowSummary:
    """Save a baseline of the first days, and read its summary."""
    window = StoredWindow(end=EARLY)
    query = current_window_query(inferences, DriftParameters(MODEL.name))
    query = msgspec.structs.replace(query, window=window, max_rows=BASELINE_ROWS)
    summary = read_window(inferences, query, lambda *_: None, LocalExecutor(inferences))
    baselines = BaselineStore(folder / "baselines")
    name = BaselineRequest().name
    baselines.save_ready(Baseline(name, MODEL.name, "building", created=""), summary)
    return baselines.read_summary(MODEL.name, name)


def timed(
    name: str,
    inferences: InferenceReader,
    parameters: DriftParameters,
    baseline: WindowSummary | None,
) -> None:
    """Print what one report takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    report: Report = compare_stored(inferences, parameters, baseline)
    size = len(msgspec.json.encode(report))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    counts = report.data.current.n, report.data.baseline.n if report.data.baseline else 0
    alarms = sum(signal.alarm for signal in report.signals)
    print(
        f"  {name:20}{counts[0]:10,}{counts[1]:10,}{len(report.signals):9}{alarms:8}"
        f"{wall:9.2f}{cpu:9.2f}{size:10,}",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("bench-data/drift"))
    parser.add_argument("--database", action="append", choices=KINDS)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with databases(arguments.folder, arguments.database or KINDS) as urls:
        for kind, url in urls.items():
            prepare(url, kind, arguments)
            blobs = FileBlobs(arguments.folder / "blobs")
            journal = arguments.folder / f"{kind}-writer" / "journal"
            inferences = InferenceReader(url, journal, blobs, timeout_s=60)
            baseline = frozen(inferences, arguments.folder / kind)
            print(f"{kind}:{'n':>24}{'baseline':>10}{'signals':>9}{'alarms':>8}"
                  f"{'wall s':>9}{'CPU s':>9}{'bytes':>10}")  # fmt: skip
            for _ in range(arguments.repeats):
                timed("frozen baseline", inferences, DriftParameters(MODEL.name), baseline)
            window = StoredWindow(end=MIDDLE)
            halves = DriftParameters(MODEL.name, start=MIDDLE, baseline=window)
            for _ in range(arguments.repeats):
                timed("two windows", inferences, halves, None)
            inferences.close()


if __name__ == "__main__":
    main()
