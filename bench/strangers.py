"""What strangers who flood the gRPC port cost others: the slowest answers over HTTP and gRPC, and the worker's memory and CPU.

Each kind of `tests.grpc_attacks` lasts for some seconds, and the measurement for half as long after it.
"""

import argparse
import http.client
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import grpc
import msgspec

from tests.grpc_attacks import FLOODS, LIVE, WAITS
from tests.server_process import ROOT, SAMPLE_MODELS, ServerProcess

KEY = "quadriga-strangers." + "a" * 43


class Measured(msgspec.Struct):
    """What one kind has cost."""

    http_ms: float
    """Slowest answer over HTTP."""
    grpc_ms: float
    """Slowest ServerLive of another client."""
    failures: int
    cpu_share: float
    """Seconds of CPU of the worker, a second of the flood."""
    before_mib: float
    worst_mib: float
    after_mib: float
    sent_mib: float
    opened: int


def memory_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


class Probes:
    """Clients that ask over HTTP and gRPC again and again, each on a connection of its own, and on a new one at times."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._stop = threading.Event()
        self.http_ms: list[float] = []
        self.grpc_ms: list[float] = []
        self.failures = 0
        self._threads = [threading.Thread(target=work) for work in (self._ask_http, self._ask_grpc)]

    def _ask_http(self) -> None:
        connection = http.client.HTTPConnection(self._server.host, timeout=30)
        while not self._stop.wait(0.05):
            begun_s = time.perf_counter()
            try:
                connection.request("GET", "/v2/health/live")
                self.failures += connection.getresponse().read() is None
            except OSError:
                self.failures += 1
                connection = http.client.HTTPConnection(self._server.host, timeout=30)
            self.http_ms.append((time.perf_counter() - begun_s) * 1000)
        connection.close()

    def _ask_grpc(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        while not self._stop.is_set():
            with grpc.insecure_channel(self._server.grpc, options) as channel:
                live = channel.unary_unary(LIVE)
                for _ in range(20):
                    begun_s = time.perf_counter()
                    try:
                        live(b"", timeout=30)
                    except grpc.RpcError:
                        self.failures += 1
                    self.grpc_ms.append((time.perf_counter() - begun_s) * 1000)
                    if self._stop.wait(0.05):
                        return

    def start(self) -> None:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def measure(server: ServerProcess, kind: str, seconds: float) -> Measured:
    """Flood a server, and ask meanwhile and after."""
    worker = server.child_pids()[1]
    probes = Probes(server)
    probes.start()
    time.sleep(0.5)
    before_mib, begun_cpu_s = memory_mib(worker), cpu_s(worker)
    worst_mib = before_mib
    host, port = server.grpc.split(":")
    command = [sys.executable, "-m", "tests.grpc_attacks", kind, host, port, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as flood:
        begun_s = time.monotonic()
        while flood.poll() is None:
            worst_mib = max(worst_mib, memory_mib(worker))
            time.sleep(0.05)
        cpu_share = (cpu_s(worker) - begun_cpu_s) / (time.monotonic() - begun_s)
        assert flood.stdout is not None
        sent, opened = flood.stdout.read().split()
    time.sleep(seconds / 2)
    probes.stop()
    after_mib = memory_mib(worker)
    return Measured(
        max(probes.http_ms), max(probes.grpc_ms), probes.failures, cpu_share, before_mib,
        max(worst_mib, after_mib), after_mib, int(sent) / 2**20, int(opened),
    )  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument(
        "--open", action="store_true", help="a server without keys: all are callers"
    )
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--only", action="append", help="a kind, again for others")
    arguments = parser.parse_args()
    print(f"{'kind':22}{'HTTP ms':>9}{'gRPC ms':>9}{'failed':>8}{'CPU':>7}", end="")
    print(f"{'MiB before':>12}{'worst':>8}{'after':>8}{'sent':>8}{'opened':>8}")
    rows: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = SAMPLE_MODELS / "shapes-classifier"
        server = ServerProcess(Path(folder) / "data", model, "--grpc-port", "0", "--no-store")
        if not arguments.open:
            server.environment["QUADRIGA_ADMIN_KEY"] = KEY
        with server:
            for kind in arguments.only or (*FLOODS, *WAITS):
                row = rows[kind] = measure(server, kind, arguments.seconds)
                print(f"{kind:22}{row.http_ms:9.0f}{row.grpc_ms:9.0f}{row.failures:8}", end="")
                print(f"{row.cpu_share:7.2f}{row.before_mib:12.0f}{row.worst_mib:8.0f}", end="")
                print(f"{row.after_mib:8.0f}{row.sent_mib:8.1f}{row.opened:8}", flush=True)
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.encode(rows))


if __name__ == "__main__":
    main()
