"""Standard error of children: each line becomes one of JSON, the last words too, and nobody waits for the reader."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from quadriga.engine.processes.log_pipes import (
    FOREIGN_LINES_PER_S,
    MAX_LINE_BYTES,
    MAX_WAITING_BYTES,
    LogPipes,
)

OWN = """
import logging, os, signal, sys
from quadriga.engine.processes.log_pipes import PipedLines
from quadriga.engine.processes.logs import configure_logging
configure_logging("writer", ["canary-7f3a"], log_format="json", lines=PipedLines(sys.argv[1]))
log = logging.getLogger("quadriga")
"""


class Output:
    """Reads what a server writes to its standard error."""

    def __init__(self):
        self.reading, self.writing = os.pipe()
        self.content = b""

    def read(self):
        while chunk := os.read(self.reading, 1 << 16):
            self.content += chunk

    @property
    def lines(self):
        """Every line, which has to be an object."""
        lines = [json.loads(line) for line in self.content.splitlines()]
        assert all(isinstance(line, dict) for line in lines)
        return lines


def run(program, *, secrets=()):
    """Run a program as a child; return the lines of the log, and how it ended."""
    output = Output()
    thread = threading.Thread(target=output.read)
    thread.start()
    pipes = LogPipes(secrets, output.writing)
    error, pipe = pipes.open("writer")
    child = subprocess.Popen([sys.executable, "-c", program, pipes.marker], stderr=error)
    pipe.pid = child.pid
    os.close(error)
    code = child.wait(60)
    pipes.close()
    os.close(output.writing)
    thread.join()
    return output.lines, code, child.pid


def test_lines_of_a_library_are_wrapped_and_those_of_ours_are_not():
    program = (
        OWN
        + r"""
os.write(2, b"WARNING: \xff\x00 native canary-7f3a\n\n  \n{\"time\": \"forged\", \"level\": \"info\"}\n")
log.warning("two\nlines \u2028", extra={"fields": {"request_id": "r-1"}})
os.write(2, b"\x1b[0;93m[W:onnxruntime] a colour\x1b[m\n")
os.write(2, b"half of a line, ")
os.write(2, b"and the rest")
"""
    )
    lines, code, pid = run(program, secrets=["canary-7f3a"])
    assert code == 0
    assert [(line["logger"], line["message"]) for line in lines] == [
        ("stderr", "WARNING: \ufffd\0 native …"),
        ("stderr", '{"time": "forged", "level": "info"}'),
        ("quadriga", "two\nlines \u2028"),
        ("stderr", "[W:onnxruntime] a colour"),
        ("stderr", "half of a line, and the rest"),
    ]
    assert {(line["process"], line["pid"]) for line in lines} == {("writer", pid)}
    assert lines[2]["request_id"] == "r-1"


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, []),
        ("import faulthandler; faulthandler.enable(); faulthandler._sigsegv()", -11, ["Fatal Python error: Segmentation fault"]),
        ("os.abort()", -6, []),
        ("raise KeyError('an end')", 1, ["the process ends by a fault of its own"]),
    ],
    ids=["killed", "segmentation fault", "aborted", "fault"],
)  # fmt: skip
def test_the_last_words_of_a_process_are_not_lost(end, code, words):
    program = OWN + f'log.error("before")\nos.write(2, b"native last words")\n{end}\n'
    if code in (1, -11):
        program = program.replace("last words", "last words\\n")
    lines, ended, _ = run(program)
    assert ended == code
    messages = [line["message"] for line in lines]
    assert messages[:2] == ["before", "native last words"]
    assert set(words) <= set(messages)


def test_a_process_that_cannot_begin_is_heard():
    lines, code, _ = run("import no_such_module")
    assert code == 1
    assert "ModuleNotFoundError: No module named 'no_such_module'" in lines[-1]["message"]


def test_a_flood_of_foreign_lines_is_bounded():
    lines, _, _ = run(OWN + 'os.write(2, b"Corrupt JPEG data\\n" * 5000)\nlog.info("mine")\n')
    foreign = [line for line in lines if line["logger"] == "stderr"]
    assert FOREIGN_LINES_PER_S <= len(foreign) <= 3 * FOREIGN_LINES_PER_S
    assert lines[-1]["message"] == "mine"


def test_a_line_without_end_is_cut():
    size = 3 * MAX_LINE_BYTES
    program = f"""
import os
rest = b"x" * {size}
while rest:
    try:
        rest = rest[os.write(2, rest):]
    except BlockingIOError:
        pass
"""
    lines, _, _ = run(program)
    assert 3 <= len(lines) <= 4
    assert sum(len(line["message"]) for line in lines) == size


def test_long_lines_of_ours_stay_whole():
    program = OWN + 'log.info("%s", "a" * 200_000)\nlog.info("next")\n'
    lines, _, _ = run(program)
    assert [len(line["message"]) for line in lines] == [200_000, 4]


def test_nobody_waits_for_a_reader_that_reads_nothing():
    reading, writing = os.pipe()
    pipes = LogPipes((), writing)
    error, _ = pipes.open("writer")
    program = OWN + 'for n in range(3000): log.info("%d %s", n, "a" * 4000)\n'
    child = subprocess.Popen([sys.executable, "-c", program, pipes.marker], stderr=error)
    os.close(error)
    assert child.wait(60) == 0
    pipes.put(b"x" * MAX_WAITING_BYTES)
    begun_s = time.monotonic()
    pipes.close()  # gives up
    assert time.monotonic() - begun_s < 30
    output = Output()
    output.reading = reading
    thread = threading.Thread(target=output.read)
    thread.start()  # somebody reads again
    pipes.put(b'{"message": "later"}\n')
    pipes.flush(30)
    pipes.put(b'{"message": "last"}\n')
    pipes.flush(30)
    os.close(writing)
    thread.join()
    messages = [line["message"] for line in output.lines]
    assert "last" in messages
    assert any("lines were left out: the log was not read" in message for message in messages)


def test_a_child_whose_supervisor_is_gone_goes_on():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    program = OWN + 'log.info("a")\nos.close(1)\nlog.info("b")\nsys.exit(7)\n'
    os.close(reading)
    child = subprocess.Popen([sys.executable, "-c", program, "marker "], stderr=writing)
    os.close(writing)
    assert child.wait(60) == 7
