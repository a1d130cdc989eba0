"""The faults of the drill, in the order in which they are played, a few at a time."""

import sys
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from tests.prometheus_drill import faults_monitoring, faults_serving, faults_store
from tests.prometheus_drill.stage import Stage
from tests.prometheus_drill.watch import Alarm, Watch

Fault = Callable[[Stage, Watch], None]

FAULTS: dict[str, tuple[Fault, tuple[str, ...]]] = {
    "growing files": (faults_store.growing_disk, ("QuadrigaDiskFillsUp",)),
    "stuck writer": (faults_store.stuck_writer, ("QuadrigaStoreBehind",)),
    "database stopped": (
        faults_store.lost_database,
        ("QuadrigaStoreBehind", "QuadrigaJournalFillsUp", "QuadrigaNotStored"),
    ),
    "failed job": (faults_monitoring.failed_job, ("QuadrigaJobsFail",)),
    "worker killed 3 times": (faults_serving.killed_workers, ("QuadrigaProcessRestarts",)),
    "worker stopped 3 times": (faults_serving.hanging_worker, ("QuadrigaProcessRestarts",)),
    "poisonous image": (faults_serving.poisonous_image, ("QuadrigaModelRefused",)),
    "all processes killed": (faults_serving.stopped_replica, ("QuadrigaDown",)),
    "all workers stopped": (faults_serving.hung_workers, ("QuadrigaDown",)),
    "model fails to load": (faults_serving.damaged_model, ("QuadrigaNotReady",)),
    "model fails on images": (faults_serving.failing_model, ("QuadrigaRequestsFail",)),
    "overload": (faults_serving.overload, ("QuadrigaRequestsRefused",)),
    "long queue": (faults_serving.long_queue, ("QuadrigaQueueLong",)),
    "damaged journal": (faults_store.damaged_segment, ("QuadrigaRecordsSetAside",)),
    "disk full": (
        faults_store.full_disk,
        ("QuadrigaDiskFillsUp", "QuadrigaNotStored", "QuadrigaAuditFails"),
    ),
    "clock an hour ahead": (faults_store.wrong_clock, ("QuadrigaClockWrong",)),
    "images at night": (faults_monitoring.changed_images, ("QuadrigaDrift",)),
    "certificate of a day": (
        faults_monitoring.ending_certificate,
        ("QuadrigaCertificateEnds",),
    ),
    "key of a day": (faults_monitoring.ending_key, ("QuadrigaKeyEnds",)),
    "keys tried": (faults_monitoring.tried_keys, ("QuadrigaKeysTried",)),
}
"""Each fault with the alerts that have to fire."""


def play(stage: Stage, name: str) -> list[Alarm]:
    """Play a fault; give a row for each of its alerts."""
    run, alerts = FAULTS[name]
    watch, begun_s = Watch(stage, name), time.monotonic()
    broken = ""
    try:
        run(stage, watch)
    except Exception as error:  # noqa: BLE001 - the other faults go on
        traceback.print_exc()
        broken = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".replace("|", "/")
    sys.stderr.write(f"{name}: {time.monotonic() - begun_s:.0f} s {broken}\n")
    sys.stderr.flush()
    seen = {alarm.alert for alarm in watch.alarms}
    missing = [
        Alarm(alert, name, None, None, broken=broken) for alert in alerts if alert not in seen
    ]
    return [*watch.alarms, *missing]


def play_all(stage: Stage, names: Iterable[str], at_once: int) -> list[Alarm]:
    """Play faults, a few at a time, each on a server of its own."""
    with ThreadPoolExecutor(at_once) as pool:
        rows = pool.map(lambda name: play(stage, name), names)
        return [alarm for alarms in rows for alarm in alarms]
