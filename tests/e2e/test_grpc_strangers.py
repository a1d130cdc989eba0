"""Strangers who flood the gRPC port, or wait on it, cost others no time and the worker no memory."""

import http.client
import subprocess
import sys
import threading
import time

import grpc
import psutil
import pytest

from tests.grpc_attacks import FLOODS, LIVE, WAITS
from tests.server_process import ROOT, SAMPLE_MODELS, ServerProcess

KEY = "quadriga-strangers." + "a" * 43
SECONDS = 2.0
"""Length of each flood; others ask for half as long after it."""


class Probes:
    """Clients that ask over HTTP and gRPC again and again, each on a connection of its own, and on a new one at times."""

    def __init__(self, server):
        self._server = server
        self._stop = threading.Event()
        self.http_ms, self.grpc_ms = [], []
        self.failures = 0
        self._threads = [threading.Thread(target=work) for work in (self._ask_http, self._ask_grpc)]

    def _ask_http(self):
        connection = http.client.HTTPConnection(self._server.host, timeout=30)
        while not self._stop.wait(0.05):
            begun_s = time.perf_counter()
            try:
                connection.request("GET", "/v2/health/live")
                connection.getresponse().read()
            except OSError:
                self.failures += 1
                connection = http.client.HTTPConnection(self._server.host, timeout=30)
            self.http_ms.append((time.perf_counter() - begun_s) * 1000)
        connection.close()

    def _ask_grpc(self):
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

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("strangers") / "data"
    model = SAMPLE_MODELS / "shapes-classifier"
    server = ServerProcess(data, model, "--grpc-port", "0", "--no-store")
    server.environment["QUADRIGA_ADMIN_KEY"] = KEY
    with server:
        yield server


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", [*FLOODS, *WAITS])
def test_strangers_cost_others_little(server, kind):
    """Bounds are ten times what is promised: 100 ms over HTTP, 1 s over gRPC, tens of MiB."""
    worker = psutil.Process(server.child_pids()[1])
    host, port = server.grpc.split(":")
    command = [sys.executable, "-m", "tests.grpc_attacks", kind, host, port, str(SECONDS)]
    with Probes(server) as probes:
        time.sleep(0.5)
        memory = [worker.memory_info().rss]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT) as flood:
            while flood.poll() is None:
                memory.append(worker.memory_info().rss)
                time.sleep(0.05)
        assert flood.returncode == 0
        time.sleep(SECONDS / 2)
    memory.append(worker.memory_info().rss)
    assert probes.failures == 0
    assert max(probes.http_ms) < 1000
    assert max(probes.grpc_ms) < 10_000
    assert max(memory) - memory[0] < 100 * 2**20
