"""Cost of the gate and of the audit log on the way of a request, in microseconds of CPU.

The gate reads the key and decides, with and without keys; limits are counted for two workers. The audit log looks at each answer, writes the line of a
change, and sums refusals.

python bench/gate_cost.py
"""

import logging
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from quadriga.engine.access.key_ring import KeyGate, KeyRing
from quadriga.engine.access.quotas import KeyQuota, RefusalLog
from quadriga.engine.access.sessions import SESSION_COOKIE
from quadriga.engine.config.settings import Settings
from quadriga.engine.measures.accounting import AuditTrail
from quadriga.engine.measures.shared_counts import SharedCounts
from quadriga.extras.sign_on.sign_on import SignOn
from quadriga.proto.access import Caller, Need, OpenGate, admit
from quadriga.proto.errors import LimitReached
from quadriga.proto.request import Accounting, RequestContext
from quadriga.store.audit.log import AuditLog
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import create_key
from quadriga.store.keys.key_limits import parse_limits, split_limits

KEYS = 1000
WORKERS = 2
CALLS = 50_000
ROUNDS = 7

Headers = list[tuple[bytes, bytes]]


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

        people = msgspec.structs.replace(
            settings,
            extras={
                "sign_on": {
                    "issuer": "https://login.invalid",
                    "client_id": "x",
                    "roles": "a:b=infer",
                }
            },
        )
        sign_on = SignOn(people, ring)
        caller = Caller(name="mara", key_id="oidc-1")
        cookie = f"{SESSION_COOKIE}={sign_on.new_session(caller, ['infer'])[1]}".encode()
        with_session = [*headers[:-1], (b"sec-fetch-site", b"same-origin"), (b"cookie", cookie)]
        for name, gate, sent in (
            ("no keys needed", OpenGate(), headers),
            (f"{KEYS} keys", KeyGate(ring), headers),
            (
                "beside log-in",
                KeyGate(ring, sign_on.caller_of_cookies, sign_on.caller_of_token),
                headers,
            ),
            (
                "a session",
                KeyGate(ring, sign_on.caller_of_cookies, sign_on.caller_of_token),
                with_session,
            ),
        ):

            def decide(gate: OpenGate | KeyGate = gate, sent: Headers = sent) -> None:
                admit(gate.identify(dict(sent).get), "infer")

            print(f"{name:16} {cpu_us(decide):6.2f} us a request")
        ring.close()
        measure_limits()
        measure_audit(Path(folder) / "audit")


def measure_limits() -> None:
    """Measure and print what the limits of a key add to a request that is admitted, and to one that is refused."""
    counts, refusals = SharedCounts(WORKERS), RefusalLog()
    logging.getLogger("quadriga.limits").setLevel(logging.ERROR)
    cases = {
        "no limits": "",
        "concurrency": "concurrency=8",
        "requests": "requests=999999999/second",
        "all": "requests=999999999/second,concurrency=8,jobs=4",
        "refused": "requests=1/day",
    }
    for name, text in cases.items():
        limits = parse_limits(split_limits(text))
        quota = KeyQuota(counts, refusals, key_id=name, name=name, limits=limits)

        def count(quota: KeyQuota = quota) -> None:
            with suppress(LimitReached):
                quota.begin()
                quota.end()

        print(f"limits: {name:16} {cpu_us(count):6.2f} us a request")


def measure_audit(folder: Path) -> None:
    """Measure and print what the accounting with the audit log adds to an inference, to a change and to a refusal in a flood."""
    log = AuditLog(folder, "bench", 1)
    accounting = Accounting(audit=AuditTrail(log))

    def answer(need: Need, status: int) -> None:
        request = RequestContext(method="POST", path="/v2/models/x/infer", need=need)
        accounting.answer(request, status)
        accounting.end(request)

    for name, need, status in (
        ("audit: inference", "infer", 200),
        ("audit: change", "operate", 200),
        ("audit: refusal", "infer", 401),
    ):
        print(f"{name:16} {cpu_us(partial(answer, need, status)):6.2f} us a request")
    log.close()


if __name__ == "__main__":
    main()
