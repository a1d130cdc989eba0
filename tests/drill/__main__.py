"""Run the drill: `python -m tests.drill`, or `make drill`; status 1 if anything acknowledged was lost or stored twice.

The full drill takes less than 40 minutes on two cores.
"""

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.drill import scenes_kills, scenes_requests, scenes_storage
from tests.drill.outcomes import Result, table
from tests.drill.trial import Drill

SCENES: dict[str, Callable[[Drill], Result]] = {
    "kills-of-children": scenes_kills.kills_of_children,
    "kills-of-groups": scenes_kills.kills_of_groups,
    "kills-of-supervisors": scenes_kills.kills_of_supervisors,
    "kills-of-two-replicas": scenes_kills.kills_of_two_replicas,
    "kills-of-three-replicas": scenes_kills.kills_of_three_replicas,
    "rolling-restarts": scenes_kills.rolling_restarts,
    "database-outages": scenes_storage.database_outages,
    "full-disks": scenes_storage.full_disks,
    "clock-jumps": scenes_storage.clock_jumps,
    "flipped-journal-bits": scenes_storage.flipped_journal_bits,
    "flipped-database-bits": scenes_storage.flipped_database_bits,
    "slow-bodies": scenes_requests.slow_bodies,
    "overload": scenes_requests.overload,
    "endless-model": scenes_requests.endless_model,
    "eating-model": scenes_requests.eating_model,
    "poison-images": scenes_requests.poison_images,
}


def run_scene(name: str, drill: Drill) -> tuple[Result, bool]:
    """Run a scene; gives its row, and whether it could be run to its end."""
    try:
        return SCENES[name](drill), True
    except Exception as error:  # noqa: BLE001 - the other scenes go on
        traceback.print_exc()
        text = " ".join(str(error).split())[:200].replace("|", "/")
        return Result(name, "", broken=f"not run to its end: {type(error).__name__}: {text}"), False


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen scenes and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.drill", description=__doc__)
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--kills", type=int, default=300, help="SIGKILLs in all scenes together")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of scenes of load")
    parser.add_argument("--folder", type=Path, help="folder that keeps logs; default: a new one")
    options = parser.parse_args(arguments)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="quadriga-drill-"))
    drill = Drill(folder, options.kills, options.seconds)
    results, complete, begun_s = [], True, time.monotonic()
    try:
        for name in options.scenes:
            scene_begun_s = time.monotonic()
            result, ended = run_scene(name, drill)
            results.append(result)
            complete = complete and ended
            seconds = time.monotonic() - scene_begun_s
            print(f"{name}: {seconds:.0f} s, {result.acknowledged} acknowledged, {result.lost} lost,",
                  f"{result.twice} twice {result.broken}", file=sys.stderr, flush=True)  # fmt: skip
    except KeyboardInterrupt:  # the table has the scenes before
        complete = False
    finally:
        drill.close()
    print(table(results))
    unsafe = [result.scene for result in results if result.lost or result.twice]
    print(f"\n{time.monotonic() - begun_s:.0f} s; logs in {folder}")
    print(
        f"LOST OR STORED TWICE in: {', '.join(unsafe)}"
        if unsafe
        else "Nothing was lost, nothing stored twice."
    )
    return 1 if unsafe or not complete else 0


if __name__ == "__main__":
    sys.exit(main())
