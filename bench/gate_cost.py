"""Cost of the gate on the way of a request: reading the key and deciding, with and without keys, in microseconds of CPU.

python bench/gate_cost.py
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from quadriga.engine.access.gate import KeyGate
from quadriga.engine.access.key_ring import KeyRing
from quadriga.engine.settings import Settings
from quadriga.proto.access import OpenGate, admit
from quadriga.store.access_keys import create_key
from quadriga.store.database import migrate, writer_engine

KEYS = 1000
CALLS = 50_000
ROUNDS = 7


def cpu_us(call: Callable[[], object]) -> float:
    """Return the CPU time of a call: the least of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time_ns()
        for _ in range(CALLS):
            call()
        best = min(best, (time.process_time_ns() - begun) / CALLS / 1000)
    return best


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data=str(Path(folder) / "data"))
        migrate(settings.database_url)
        with writer_engine(settings.database_url) as engine:
            texts = [create_key(engine, name=f"{n}", roles=["infer"])[1] for n in range(KEYS)]
        ring = KeyRing(settings)
        ring.refresh()
        # As a client sends them, the key last.
        headers = [(b"host", b"127.0.0.1:8080"), (b"user-agent", b"python-requests/2.32")]
        headers += [(b"accept-encoding", b"gzip, deflate"), (b"accept", b"*/*")]
        headers += [(b"content-length", b"12345"), (b"content-type", b"application/json")]
        headers += [(b"authorization", f"Bearer {texts[KEYS // 2]}".encode())]

        for name, gate in (("no keys needed", OpenGate()), (f"{KEYS} keys", KeyGate(ring))):

            def decide(gate: OpenGate | KeyGate = gate) -> None:
                admit(gate.identify(dict(headers).get), "infer")

            print(f"{name:16} {cpu_us(decide):6.2f} us a request")
        ring.close()


if __name__ == "__main__":
    main()
