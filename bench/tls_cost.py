"""Cost of TLS: CPU time of a worker for a request on a kept connection, and for a new connection, with and without it.

Two servers are asked by turns, so that a machine that changes its speed changes it for both.

PYTHONPATH=. python bench/tls_cost.py
"""

import argparse
import ssl
import statistics
import tempfile
from http.client import HTTPConnection
from pathlib import Path

from bench.request_cost import cpu_s
from tests.certificates import Authority
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess

MODEL = "shapes-detector"


def send(connection: HTTPConnection, method: str, path: str, body: bytes | None) -> None:
    """Send a request, and read the response."""
    connection.request(method, path, body, {"Content-Type": "image/jpeg"})
    response = connection.getresponse()
    content = response.read()
    assert response.status == 200, content


def kept_ms(server: ServerProcess, path: str, body: bytes | None, requests: int) -> float:
    """Return the worker's CPU milliseconds for a request on one connection."""
    connection, pids = server.connect(), [server.child_pid("worker")]
    method = "GET" if body is None else "POST"
    send(connection, method, path, body)
    begun_s = cpu_s(pids)
    for _ in range(requests):
        send(connection, method, path, body)
    used_s = cpu_s(pids) - begun_s
    connection.close()
    return used_s / requests * 1000


def new_ms(server: ServerProcess, path: str, body: bytes | None, requests: int) -> float:
    """Return the worker's CPU milliseconds for a connection with one request."""
    pids, method = [server.child_pid("worker")], "GET" if body is None else "POST"
    begun_s = cpu_s(pids)
    for _ in range(requests):
        connection = server.connect()
        send(connection, method, path, body)
        connection.close()
    return (cpu_s(pids) - begun_s) / requests * 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = Authority(folder / "authority")
        certificate = str(authority.sign("server"))
        models, flags = SAMPLE_MODELS / MODEL, ("--no-store",)
        plain = ServerProcess(folder / "plain", models, *flags)
        tls = ServerProcess(folder / "tls", models, *flags, "--tls-certificate", certificate)
        tls.tls = ssl.create_default_context(cafile=authority.certificate)
        image = next((IMAGES / "detection").glob("*.jpg")).read_bytes()
        live, infer = "/v2/health/live", f"/api/serve/serve-model-{MODEL}-pred/infer"
        with plain, tls:
            for title, measure, path, body, requests in (
                ("a request for nothing", kept_ms, live, None, 2000),
                (f"a detection, {len(image) >> 10} KiB", kept_ms, infer, image, 100),
                ("a new connection", new_ms, live, None, 300),
            ):
                pairs = [
                    (measure(plain, path, body, requests), measure(tls, path, body, requests))
                    for _ in range(arguments.rounds)
                ]
                without, with_tls = (statistics.median(side) for side in zip(*pairs, strict=True))
                ratio = statistics.median(b / a for a, b in pairs)
                print(f"{title:28} {without:7.3f} ms  TLS {with_tls:7.3f} ms  ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
