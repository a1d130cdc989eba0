"""The log of a process: without secrets, and bounded."""

import json
import subprocess
import sys
from datetime import datetime

PROGRAM = """
import logging, threading
from quadriga.engine.config.settings import Settings
from quadriga.engine.processes.logs import FAULTS_PER_S, configure_logging
configure_logging("worker-0", Settings(database="postgresql://u:canary-7f3a@host/db"))
logging.getLogger("a").error("cannot open %s", "postgresql://u:canary-7f3a@host/db")
try:
    raise ValueError("canary-7f3a")
except ValueError:
    logging.getLogger("a").exception("failed")
for number in range(FAULTS_PER_S * 3):
    logging.getLogger("quadriga.http").error("fault %d", number)
    logging.getLogger("uvicorn.error").warning("no HTTP %d", number)
    logging.getLogger("quadriga.proto.grpc.http2").error("defect %d", number)
logging.getLogger("uvicorn.error").error("an end within uvicorn")
thread = threading.Thread(target=lambda: {}["canary-7f3a"])
thread.start()
thread.join()
raise KeyError("canary-7f3a")
"""


def test_no_line_has_a_secret_and_faults_are_bounded():
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "canary" not in ended.stdout + ended.stderr
    assert "worker-0" in ended.stderr
    assert "cannot open postgresql://host/db" in ended.stderr
    assert "ValueError: …" in ended.stderr
    assert "a thread ended by a fault of its own" in ended.stderr
    assert "the process ends by a fault of its own" in ended.stderr
    assert 20 <= ended.stderr.count("fault ") <= 44  # a second may have ended in between
    assert 1 <= ended.stderr.count("no HTTP ") <= 3
    assert 20 <= ended.stderr.count("defect ") <= 44
    assert "an end within uvicorn" in ended.stderr


IN_JSON = """
import logging, threading
from quadriga.engine.config.settings import Settings
from quadriga.engine.processes.logs import configure_logging
configure_logging("writer", Settings(session_key="canary-7f3a", log_format="json", log_level="warning"))
log = logging.getLogger("a")
log.info("not shown")
log.warning("two\\nlines of %s, and a quote \\" of canary-7f3a", "\\u2028text", extra={"fields": {"request_id": "r-1", "ms": 4.2}})
try:
    raise ValueError("canary-7f3a")
except ValueError:
    log.exception("failed")
thread = threading.Thread(target=lambda: {}["key"])
thread.start()
thread.join()
raise KeyError("end")
"""


def test_each_line_is_an_object_of_json_whatever_its_text():
    ended = subprocess.run(
        [sys.executable, "-c", IN_JSON], capture_output=True, text=True, timeout=60, check=False
    )
    assert "canary" not in ended.stderr
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["level"] for line in lines] == ["warning", "error", "error", "critical"]
    first = lines[0]
    assert (first["process"], first["logger"], first["request_id"], first["ms"]) == (
        "writer",
        "a",
        "r-1",
        4.2,
    )
    assert first["message"].startswith("two\nlines of \u2028text")
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert "ValueError" in lines[1]["exception"]
    assert "KeyError" in lines[3]["exception"]
