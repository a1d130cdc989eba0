"""Run the drill with a real Prometheus: `python -m tests.prometheus_drill`, or `make prometheus-drill`.

Three parts: `counts` compares what Prometheus counts with what clients counted, through kills and restarts; `alerts` fires
each released alert by its fault, its times divided by `--factor`; `soak` shows that all are silent under a usual load. The
status is 1 if anything does not agree, an alert does not fire or does not end, or one fires in the soak.

The full drill takes about half an hour on two cores. It needs the program `prometheus`. On a machine that is busy with other work
a scrape may take longer than its second, and QuadrigaDown may fire in the soak: `--interval-s 2` gives it two.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.prometheus_drill import counting, watch
from tests.prometheus_drill.faults import FAULTS, play_all
from tests.prometheus_drill.prometheus import Prometheus
from tests.prometheus_drill.scaled_rules import write_scaled_rules
from tests.prometheus_drill.soak import SoakResult, soak
from tests.prometheus_drill.stage import Stage

PARTS = ("counts", "alerts", "soak")


def soak_text(result: SoakResult, alerts: int, factor: float) -> str:
    """Write what a soak came to, as a sentence."""
    minutes = result.seconds / 60
    fired = f"FIRED: {', '.join(result.fired)}" if result.fired else "all were silent"
    pending = f"; true for a moment: {', '.join(result.pending)}" if result.pending else ""
    return (
        f"Soak: {alerts} alerts, {minutes:.0f} minutes, as {minutes * factor / 60:.1f} hours of the released times; "
        f"{result.acknowledged:,} requests answered, {result.failed} not; {fired}{pending}."
    )


def run(stage: Stage, options: argparse.Namespace, alerts: list[str]) -> bool:
    """Run the chosen parts and print their tables; return whether all is as it should be."""
    is_right = True
    if "counts" in options.parts:
        comparisons = counting.compare_counts(stage, options.seconds)
        print(counting.table(comparisons), flush=True)
        is_right = not any(row.problems() for row in comparisons)
    if "alerts" in options.parts:
        alarms = play_all(stage, options.faults, options.at_once)
        print(watch.table(alarms, options.factor), flush=True)
        is_right = is_right and all(alarm.is_right() for alarm in alarms)
        if options.faults == list(FAULTS):
            unfired = set(alerts) - {alarm.alert for alarm in alarms if alarm.fired_s is not None}
            print(f"Alerts that no fault has fired: {', '.join(sorted(unfired)) or 'none'}")
            is_right = is_right and not unfired
    if "soak" in options.parts:
        result = soak(stage, options.soak_minutes * 60)
        print(soak_text(result, len(alerts), options.factor), flush=True)
        is_right = is_right and not result.fired
    errors = stage.prometheus.rule_errors()
    print("\n".join(errors) if errors else "All expressions could be evaluated.")
    return is_right and not errors


def main(arguments: list[str] | None = None) -> int:
    """Run the drill."""
    parser = argparse.ArgumentParser(prog="python -m tests.prometheus_drill", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--factor", type=float, default=20.0, help="divides the times of alerts")
    parser.add_argument(
        "--interval-s", type=float, default=1.0, help="between scrapes, and their limit"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of a scene of counts")
    parser.add_argument("--soak-minutes", type=float, default=10.0)
    parser.add_argument("--at-once", type=int, default=3, help="faults that are played at a time")
    parser.add_argument("--folder", type=Path, help="folder that keeps logs; default: a new one")
    options = parser.parse_args(arguments)
    if not Prometheus.is_installed():
        print("prometheus is not there: install it first, as by `apt-get install prometheus`")
        return 2
    folder = options.folder or Path(tempfile.mkdtemp(prefix="quadriga-prometheus-"))
    begun_s = time.monotonic()
    alerts = write_scaled_rules(folder / "rules.yml", options.factor)
    rules = folder / "rules.yml"
    with Prometheus(folder / "prometheus", rules, options.interval_s) as prometheus:
        stage = Stage(folder, prometheus, options.factor)
        try:
            is_right = run(stage, options, alerts)
        finally:
            stage.close()
    print(f"{time.monotonic() - begun_s:.0f} s; {os.cpu_count()} cores; logs in {folder}")
    print("All is as it should be." if is_right else "NOT AS IT SHOULD BE, see above.")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
