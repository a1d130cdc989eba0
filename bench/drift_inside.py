"""Changes that begin inside the window: how often they raise an alarm, or are named as too uncertain to judge.

Steps of 1, 2 and 4 standard deviations begin at 10, 30, 50, 70 and 90 % of the window; beside them a ramp, a bump, a new
label, and a value that goes missing. Counted are windows whose changed part alone is beyond doubt: `ks_2samp` of it
against the baseline has p below 1e-6. `named` means that the report is insufficient, and says which signal moved and where.
`place` is how far off the named row is, as a share of the window: the median.

With `--stored N` so many windows of 1,000 rows of each world are compared three times: as files, as inferences in a
SQLite store, and by a schedule of that store, whose baseline is saved. `alike` are those of which all three say the same:
status, p-values, effect, and where the change began.

Flags: `--repeats N` of each step and onset (10), `--baseline N` (2,000), `--only NAME` for some of the worlds.
"""

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, NamedTuple

import drift_worlds as worlds
import msgspec
import numpy as np
from msgspec.structs import replace
from scipy import stats
from store_records import build, record

from quadriga.monitor.drift.baselines import BaselineRequest
from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.files.compare_files import ColumnOptions, compare_files
from quadriga.monitor.drift.job import BaselineJob, run_baseline, run_drift
from quadriga.monitor.drift.metadata import PRESENCE_SUFFIX, with_presence
from quadriga.monitor.drift.parameters import DriftParameters, StoredWindow
from quadriga.monitor.drift.row_signals import METADATA_PREFIX
from quadriga.monitor.drift.significance.decision import ComparisonSettings
from quadriga.monitor.drift.stored import compare_stored
from quadriga.monitor.drift.watch.schedules import DriftSchedule, drift_schedules
from quadriga.monitor.report.schema import Report
from quadriga.monitor.watch.schedules import Scheduler
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.jobs.jobs import Job, Jobs
from quadriga.store.jobs.runner import JobRun
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import ModelReference, timestamp_text

MODEL, KEY = ModelReference("detector", "1", "a" * 64), "x"
DAY_S, DAY_MS, ROW_MS = 86_400, 86_400_000, 40_000
FIRST_DAY, CHANGED_DAY = 20_450, 20_452
"""Days since 1970 of the baseline and of the window."""
ONSETS, STEPS, SIZES = (0.1, 0.3, 0.5, 0.7, 0.9), (1.0, 2.0, 4.0), (300, 1_000, 5_000)
MAX_P = 1e-6
ROW = "| {:34} | {:>5} | {:>12} | {:>15} | {:>13} | {:>8} | {:>7} |"
World = Callable[[np.random.Generator, int], Any]


class Outcome(NamedTuple):
    """What a comparison said about a change."""

    is_beyond_doubt: bool
    is_alarm: bool
    is_named: bool
    place: float | None
    """Distance of the named row from the true one, as a share of the window."""


def step(values: Any, start: int, height: float) -> Any:
    """Raise all values from a row on."""
    values[start:] += height
    return values


def ramp(values: Any, start: int, height: float) -> Any:
    """Raise values from a row on, more and more."""
    values[start:] += np.linspace(0, height, len(values) - start)
    return values


def bump(values: Any, start: int, height: float) -> Any:
    """Raise a fifth of the values, from a row on."""
    values[start : start + len(values) // 5] += height
    return values


def new_label(values: Any, start: int, share: float) -> Any:
    """Replace a share of the labels by a new one, from a row on."""
    changed = np.arange(len(values)) >= start
    changed &= np.random.default_rng(start).random(len(values)) < share
    return np.where(changed, "new", values)


def missing(values: Any, start: int, _: float) -> Any:
    """Drop all values from a row on."""
    return [*values[:start].tolist(), *[None] * (len(values) - start)]


def draw(
    world: World,
    change: Callable[..., Any],
    baseline_n: int,
    cell: tuple[int, float, float],
    seed: int,
) -> tuple[list[Any], int]:
    """Draw a baseline and a window of the same world in which a change begins, and the row where it does."""
    n, onset, height = cell
    rng = np.random.default_rng(seed)
    start = round(onset * n)
    drawn = [world(rng, baseline_n), world(rng, n)]
    values, *sources = drawn[1] if isinstance(drawn[1], tuple) else (drawn[1],)
    if change in (step, ramp):
        height *= float(np.std(worlds.values_of(drawn[0])))
    changed = change(values.copy(), start, height)
    return [drawn[0], (changed, *sources) if sources else changed], start


def compare_once(
    world: World,
    change: Callable[..., Any],
    baseline_n: int,
    cell: tuple[int, float, float],
    seed: int,
) -> Outcome:
    """Compare a window, in which a change begins, with a baseline of the same world."""
    drawn, start = draw(world, change, baseline_n, cell, seed)
    settings = ComparisonSettings(seed=seed)
    sides = worlds.sides(drawn, settings)
    report = compare(*with_presence(*sides, names=["x"]), settings)
    name = "x" + PRESENCE_SUFFIX * (change is missing)
    signal = next(signal for signal in report.signals if signal.name == name)
    before, after = map(worlds.values_of, drawn)
    is_beyond = change not in (step, ramp, bump) or bool(
        stats.ks_2samp(before, after[start:], method="asymp").pvalue < MAX_P
    )
    place = None if signal.began is None else abs(signal.began.row - start) / len(after)
    is_named = report.status == "insufficient" and signal.moved is True and place is not None
    return Outcome(is_beyond, report.status == "drift", is_named, place)


def stored_once(
    world: World,
    change: Callable[..., Any],
    baseline_n: int,
    cell: tuple[int, float, float],
    seed: int,
) -> tuple[str, str, str]:
    """Return what is said of a change in files, in stored windows, and by a schedule."""
    drawn, _ = draw(world, change, baseline_n, cell, seed)
    with TemporaryDirectory() as name:
        folder, records, paths = Path(name), [], []
        for day, side in zip((FIRST_DAY, CHANGED_DAY), drawn, strict=True):
            values, sources = side if isinstance(side, tuple) else (side, None)
            rows = []
            for at, value in enumerate(np.asarray(values, object).tolist()):
                made = record(smallest_id_at(day * DAY_MS + at * ROW_MS), Random(at))
                row = {} if value is None else {KEY: value}
                row |= {} if sources is None else {"camera_id": sources[at]}
                records.append(replace(made, model=MODEL, metadata=row))
                time = timestamp_text(day * DAY_MS + at * ROW_MS)
                fields = {METADATA_PREFIX + key: value for key, value in row.items()}
                rows.append({"created_at": time, **fields})
            paths.append(folder / f"{day}.jsonl")
            paths[-1].write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
        url = f"sqlite:///{folder / 'store.db'}"
        build(url, folder / "writer", iter(records))
        blobs = FileBlobs(folder / "blobs")
        reader = InferenceReader(url, folder / "writer" / "journal", blobs, timeout_s=60)
        times = [timestamp_text(day * DAY_MS) for day in (FIRST_DAY, CHANGED_DAY, CHANGED_DAY + 1)]
        names = [METADATA_PREFIX + KEY]
        window = StoredWindow(times[0], times[1])
        stored = DriftParameters(
            MODEL.name, start=times[1], end=times[2], baseline=window, signals=names
        )
        jobs, schedules = Jobs(folder / "jobs"), drift_schedules(folder / "drift")

        def run(work: Callable[[JobRun], str], job: Job) -> Path:
            directory = jobs.directory / job.id
            return directory / work(JobRun(job, directory, reader, blobs, Event()))

        request = BaselineRequest(start=times[0], end=times[1])
        run(run_baseline, jobs.submit("baseline", BaselineJob(MODEL.name, request)))
        schedules.put(MODEL.name, DriftSchedule("1d", signals=names), CHANGED_DAY * DAY_S)
        Scheduler(schedules, jobs).step((CHANGED_DAY + 1) * DAY_S + 60)
        (scheduled,) = (job for job in jobs.all() if job.kind == "drift")
        options = ColumnOptions(
            source_key=None if sources is None else METADATA_PREFIX + "camera_id"
        )
        reports = (
            compare_files(paths[0], paths[1], options),
            compare_stored(reader, stored),
            msgspec.json.decode(run(run_drift, scheduled).read_bytes(), type=Report),
        )
        reader.close()
    verdicts = [verdict(report) for report in reports]
    return verdicts[0], verdicts[1], verdicts[2]


def verdict(report: Report) -> str:
    """Return what a report says of its signals, as text."""
    parts: list[str] = [report.status]
    for signal in report.signals:
        place = signal.began and (signal.began.row, signal.began.end)
        numbers = (signal.p, signal.p_part, signal.p_adjusted, signal.effect.value)
        parts.append(
            f"{signal.name} {signal.status} {signal.alarm} {signal.moved} {place} {numbers}"
        )
    return "; ".join(parts)


def print_stored(name: str, verdicts: list[tuple[str, str, str]]) -> None:
    """Print how many windows are judged alike in all three ways."""
    alike = sum(len(set(texts)) == 1 for texts in verdicts)
    alarms = [sum(texts[way].startswith("drift") for texts in verdicts) for way in range(3)]
    named = [
        sum(texts[way].startswith("insufficient") and " True (" in texts[way] for texts in verdicts)
        for way in range(3)
    ]
    print(f"| {name:34} | {len(verdicts):5} | {alike:5} | {alarms} | {named} |", flush=True)


def print_row(name: str, n: int, outcomes: list[Outcome]) -> None:
    """Print how many changes beyond doubt were seen."""
    counted = [outcome for outcome in outcomes if outcome.is_beyond_doubt]
    alarms = sum(outcome.is_alarm for outcome in counted)
    named = sum(outcome.is_named and not outcome.is_alarm for outcome in counted)
    places = [outcome.place for outcome in counted if outcome.place is not None]
    place = f"{100 * float(np.median(places)):.1f} %" if places else "-"
    total = max(len(counted), 1)
    share = f"{100 * (alarms + named) / total:.1f} %"
    silent = len(counted) - alarms - named
    print(ROW.format(name, n, len(counted), alarms, named, silent, f"{share}, {place}"), flush=True)


WORLDS: dict[str, World] = {
    "normal": worlds.normal,
    "skewed: lognormal": worlds.lognormal,
    "tied: scores of two digits": worlds.rounded,
    "AR(0.9), no source key": worlds.unkeyed,
    "AR(0.9), 4 cameras on both sides": worlds.cameras,
    "AR(0.9), recordings of 25 frames": worlds.recordings,
    "each frame 5 times, one camera": worlds.copies_of_a_camera,
    "8 cameras by turns, key": worlds.turns,
    "8 cameras by turns, no key": worlds.without_key(worlds.turns),
    "8 cameras at random, no key": worlds.without_key(worlds.random_turns),
}
OTHERS: dict[str, tuple[World, Callable[..., Any], float]] = {
    "ramp to 2 sd": (worlds.normal, ramp, 2.0),
    "ramp to 4 sd": (worlds.normal, ramp, 4.0),
    "bump of 2 sd": (worlds.normal, bump, 2.0),
    "new label in 60 % of rows": (worlds.labels, new_label, 0.6),
    "value that goes missing": (worlds.normal, missing, 0.0),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--baseline", type=int, default=2000)
    parser.add_argument("--only", default="")
    parser.add_argument("--stored", type=int, default=0)
    arguments = parser.parse_args()
    if not arguments.stored:
        print(
            ROW.format(
                "step inside", "n", "beyond doubt", "alarm", "named", "silent", "said, place"
            )
        )
    studies = {name: (world, step, STEPS) for name, world in WORLDS.items()}
    studies |= {name: (world, change, (by,)) for name, (world, change, by) in OTHERS.items()}
    for name, (world, change, heights) in studies.items():
        if arguments.stored and arguments.only in name:
            cells = list(product(ONSETS, heights))
            verdicts = [
                stored_once(world, change, arguments.baseline, (1_000, *cells[at % len(cells)]), at)
                for at in range(arguments.stored)
            ]
            print_stored(name, verdicts)
            continue
        for n in SIZES if arguments.only in name else ():
            outcomes = []
            for onset, height in product(ONSETS, heights):
                once = partial(compare_once, world, change, arguments.baseline, (n, onset, height))
                outcomes += worlds.repeat(once, f"{name} {n} {onset} {height}", arguments.repeats)
            print_row(name, n, outcomes)


if __name__ == "__main__":
    main()
