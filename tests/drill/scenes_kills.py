"""Scenes of SIGKILL: each child, the group of all processes, replicas; and rolling restarts by SIGTERM."""

import os
import signal
import time
from pathlib import Path

from tests.drill.outcomes import Result
from tests.drill.trial import Drill, Trial

CHILDREN = ("worker-0", "writer", "worker-1", "jobs")
ROUND_S = 5.5
"""Time between two kills of the same child: one that died within 5 s is started again more slowly each time."""

ACKNOWLEDGEMENTS = 20
"""Requests that have to succeed after harm before the next is done."""


def kills_of_children(drill: Drill) -> Result:
    """Kill worker, writer and jobs in turns, and submit exports, which have to be done."""
    kills = max(len(CHILDREN), drill.kills * 3 // 5)
    server = drill.server("children", "--workers", "2")
    trial = Trial(drill, "kills of children", [server]).start()
    try:
        exports = []
        for number in range(kills):
            begun_s = time.monotonic()
            server.kill_child(CHILDREN[number % len(CHILDREN)])
            if number % 12 == 0:
                status, job = server.call("POST", "/api/exports", {"where": {"meta.no": 1}})
                exports += [job["id"]] if status == 202 else []
            trial.load.wait_for(1)
            time.sleep(max(0.0, begun_s + ROUND_S / len(CHILDREN) - time.monotonic()))
        trial.load.wait_for(ACKNOWLEDGEMENTS)
        states = [server.ended(job_id)["state"] for job_id in exports]
        trial.notes.append(f"{states.count('succeeded')} of {len(states)} exports done")
        unfinished = "" if set(states) <= {"succeeded"} else f"exports ended as {states}"
        return trial.finish(f"{kills} SIGKILLs of a child", check=lambda _: unfinished)
    except BaseException:
        trial.abandon()
        raise


def kills_of_groups(drill: Drill) -> Result:
    """Kill the supervisor with all its children at once, and start them again."""
    kills = max(1, drill.kills // 6)
    server = drill.server("group")
    trial = Trial(drill, "kills of all processes", [server]).start()
    try:
        for _ in range(kills):
            trial.load.wait_for(drill.chance.randrange(1, ACKNOWLEDGEMENTS))
            time.sleep(drill.chance.uniform(0, 0.2))
            server.kill()
            trial.restart(server)
        trial.load.wait_for(ACKNOWLEDGEMENTS)
        return trial.finish(f"{kills} SIGKILLs of the process group")
    except BaseException:
        trial.abandon()
        raise


def kills_of_supervisors(drill: Drill) -> Result:
    """Kill the supervisor alone: its children have to end by themselves, and the next has to start."""
    kills = max(1, drill.kills // 30)
    server = drill.server("supervisor")
    trial = Trial(drill, "kills of the supervisor", [server]).start()
    try:
        for _ in range(kills):
            trial.load.wait_for(5)
            children = server.child_pids()[1:]
            assert server.process is not None
            server.process.kill()
            server.process.wait()
            until_s = time.monotonic() + 60
            while any(map(_is_running, children)):
                assert time.monotonic() < until_s, "children outlived their supervisor for 60 s"
                time.sleep(0.05)
            trial.restart(server)
        trial.load.wait_for(ACKNOWLEDGEMENTS)
        return trial.finish(f"{kills} SIGKILLs of the supervisor")
    except BaseException:
        trial.abandon()
        raise


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def _kills_of_replicas(drill: Drill, count: int) -> Result:
    kills = max(1, drill.kills // 10)
    url = drill.postgres.create(migrated=False)
    servers = [drill.server(f"replica-{count}-{name}", "--database", url) for name in "abc"[:count]]
    trial = Trial(drill, f"kills among {count} replicas", servers, url=url).start()
    try:
        for number in range(kills):
            trial.load.wait_for(5)
            victim = servers[number % count]
            victim.kill()
            trial.restart(victim, ready=True)
        trial.load.wait_for(ACKNOWLEDGEMENTS)
        return trial.finish(f"{kills} SIGKILLs of a replica")
    except BaseException:
        trial.abandon()
        raise


def kills_of_two_replicas(drill: Drill) -> Result:
    """Kill one of two servers on one PostgreSQL after the other."""
    return _kills_of_replicas(drill, 2)


def kills_of_three_replicas(drill: Drill) -> Result:
    """Kill one of three servers on one PostgreSQL after the other."""
    return _kills_of_replicas(drill, 3)


def rolling_restarts(drill: Drill) -> Result:
    """Restart two replicas by SIGTERM, one after the other, as a deployment does.

    The flags let gRPC clients move before the end, as docs/serving.md says.
    """
    restarts = max(2, drill.kills // 30)
    url = drill.postgres.create(migrated=False)
    flags = ("--database", url, "--grpc-connection-age-s", "1", "--drain-s", "3")
    servers = [drill.server(f"rolling-{name}", *flags) for name in "ab"]
    trial = Trial(drill, "rolling restarts", servers, url=url).start()
    try:
        for number in range(restarts):
            trial.load.wait_for(ACKNOWLEDGEMENTS)
            old = servers[number % 2]
            assert old.process is not None
            trial.load.point_at([server for server in servers if server is not old])
            old.process.send_signal(signal.SIGTERM)
            old.process.wait(60)
            trial.restart(old, ready=True)
        trial.load.wait_for(ACKNOWLEDGEMENTS)
        return trial.finish(f"{restarts} restarts by SIGTERM", orderly=True)
    except BaseException:
        trial.abandon()
        raise
