"""CPU time of a server with all of its processes, and of everything else on the machine, as the kernel counts it.

Whatever a server starts stays below this process: one that loses its parent becomes a child of it.
"""

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
CPU_CLOCK = 2
"""Kind of a process's clock that counts its time on processors, of ended threads too."""
TICKS = os.sysconf("SC_CLK_TCK")


def adopt_orphans() -> None:
    """Become the parent of each process below this one that loses its own."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Return the processes below this one."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended since it was listed
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    pids, parents = [], [os.getpid()]
    while parents:
        below = children.get(parents.pop(), [])
        pids += below
        parents += below
    return pids


def process_cpu_ns(pid: int) -> int:
    """Return the CPU time of a process, 0 if it has ended."""
    with suppress(OSError):
        return time.clock_gettime_ns(((~pid) << 3) | CPU_CLOCK)
    return 0


class CpuMeter:
    """CPU time since its beginning, of the processes below this one, of this one, and of the rest of the machine."""

    def __init__(self) -> None:
        self._begun = {pid: process_cpu_ns(pid) for pid in descendants()}
        self._own_begun_s, self._begun_s = time.process_time(), time.perf_counter()
        self._machine_begun_s = machine_cpu_s()

    def server_s(self) -> float:
        """Return the CPU seconds of the processes below; each new process counts from its start."""
        return sum(process_cpu_ns(pid) - self._begun.get(pid, 0) for pid in descendants()) / 1e9

    def own_s(self) -> float:
        """Return the CPU seconds of this process."""
        return time.process_time() - self._own_begun_s

    def neighbour_cores(self) -> float:
        """Return how many cores were busy with neither of them."""
        used_s = machine_cpu_s() - self._machine_begun_s - self.server_s() - self.own_s()
        return max(0.0, used_s / (time.perf_counter() - self._begun_s))


def machine_cpu_s() -> float:
    """Return the CPU seconds of all processes of the machine, and what its host took away.

    Interrupts are left out: those of the network are for the server and its client.
    """
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _wait, _interrupts, _soft_interrupts, stolen = map(int, fields)
    return (user + nice + system + stolen) / TICKS


def settle(limit_s: float) -> None:
    """Wait until the processes below use less than a fiftieth of a core, as when all is stored."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        meter = CpuMeter()
        time.sleep(0.1)
        if meter.server_s() < 0.002:
            return


def end_all(wait_s: float = 10) -> None:
    """End every process below this one: asked first, then at once."""
    for signal_, limit_s in ((signal.SIGTERM, wait_s), (signal.SIGKILL, wait_s)):
        for pid in descendants():
            with suppress(ProcessLookupError):
                os.kill(pid, signal_)
        until_s = time.monotonic() + limit_s
        while descendants() and time.monotonic() < until_s:
            with suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            time.sleep(0.05)
