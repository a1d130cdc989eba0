"""The log of requests: which have a line, what it says, and how many there are at most."""

import asyncio
import logging

import pytest

from quadriga.engine.measures.accounting import (
    FAILURES_PER_S,
    LINES_PER_S,
    MAX_IDS,
    MAX_PATH,
    RequestLog,
)
from quadriga.proto.access import Caller
from quadriga.proto.request import (
    Accounting,
    Audit,
    ModelRun,
    RequestContext,
    TraceContext,
    current_caller,
    identify_again,
    set_current_request,
)


def facts(status=200, outcome="success", duration_ms=3.0, **fields):
    values = {"id": "r-1", "method": "POST", "path": "/v2/models/a/infer", "protocol": "v2"}
    return RequestContext(
        status=status, outcome=outcome, ended_ns=int(duration_ms * 1e6), **(values | fields)
    )


def written(caplog):
    return [record.fields for record in caplog.records if record.name == "quadriga.access"]


@pytest.fixture(autouse=True)
def _level(caplog):
    caplog.set_level(logging.INFO, "quadriga.access")


ALL, FEW = 1.0, 1e-9


@pytest.mark.parametrize(
    ("share", "request_facts", "has_line"),
    [
        (ALL, facts(), True),
        (ALL, facts(404, "client_error"), True),
        (ALL, facts(protocol="state"), False),
        (FEW, facts(duration_ms=1e6), False),
        *(
            (share, facts(status, outcome, protocol=protocol), True)
            for share in (ALL, FEW)
            for protocol in ("v2", "state")
            for status, outcome in [
                (503, "refused"),
                (503, "deadline"),
                (500, "model_failure"),
                (500, "server_error"),
                (401, "client_error"),
                (403, "client_error"),
                (429, "refused"),
                ("PERMISSION_DENIED", "client_error"),
            ]
        ),
    ],
)
def test_the_settings_choose_and_what_fails_has_a_line(caplog, share, request_facts, has_line):
    RequestLog(share).write(request_facts)
    assert len(written(caplog)) == has_line


def test_a_share_of_the_requests_is_drawn(caplog):
    log = RequestLog(0.5)
    for _ in range(400):
        log.write(facts())
    assert 100 < len(written(caplog)) < 300


def test_a_line_says_what_the_request_was(caplog):
    run = ModelRun(
        "a", "2", begun_ns=0, stages_ms={"infer": 1.5}, duration_ms=2.0, inferences=100,
        inference_ids=[str(number) for number in range(100)],
    )  # fmt: skip
    long_path = "/v2/models/" + "a" * 1000
    trace = TraceContext("4" * 32, "0" * 15 + "7", 1)
    request = facts(
        path=long_path,
        trace=trace,
        caller=Caller(name="k", key_id="k1"),
        bytes_in=10,
        bytes_out=20,
        run=run,
    )
    RequestLog(ALL).write(request)
    assert written(caplog) == [
        {
            "request_id": "r-1",
            "trace_id": "4" * 32,
            "span_id": "0" * 15 + "7",
            "protocol": "v2",
            "method": "POST",
            "path": long_path[:MAX_PATH],
            "model": "a",
            "version": "2",
            "status": 200,
            "outcome": "success",
            "duration_ms": 3.0,
            "bytes_in": 10,
            "bytes_out": 20,
            "key_id": "k1",
            "stages_ms": {"infer": 1.5},
            "inferences": 100,
            "inference_ids": [str(number) for number in range(MAX_IDS)],
        }
    ]


def test_a_path_makes_no_lines_of_its_own(caplog):
    RequestLog(ALL).write(facts(path='/a\n2026 "forged"\u2028\x1b[31m'))
    (record,) = caplog.records
    assert not {"\n", "\x1b", "\u2028"} & set(record.getMessage())


def test_a_flood_of_refusals_is_bounded_and_hides_no_other_request(caplog):
    log = RequestLog(ALL)
    for _ in range(10 * FAILURES_PER_S):
        log.write(facts(401, "client_error"))
    refused = len(written(caplog))
    assert FAILURES_PER_S <= refused <= 3 * FAILURES_PER_S  # a second may have ended in between
    log.write(facts())
    assert len(written(caplog)) == refused + 1
    log._failed._second = 0  # the next second
    log.write(facts(401, "client_error"))
    left_out = [fields.get("left_out", 0) for fields in written(caplog)]
    assert sum(left_out) + refused == 10 * FAILURES_PER_S
    for _ in range(3 * LINES_PER_S):
        log.write(facts())
    assert len(written(caplog)) < refused + 2 + 3 * LINES_PER_S


@pytest.mark.parametrize(
    ("traceparent", "continues"),
    [(None, False), ("00-nonsense", False), (f"00-{'4' * 32}-{'7' * 16}-01", True)],
)
def test_a_request_continues_the_trace_of_its_client_without_a_log(caplog, traceparent, continues):
    accounting, request = Accounting(), RequestContext(method="POST", path="/")
    accounting.begin(request, None if traceparent is None else traceparent.encode())
    assert (request.trace.traceparent if request.trace else None) == (
        traceparent if continues else None
    )
    request.status = 500
    accounting.end(request, KeyError())
    assert request.outcome == "server_error"
    assert request.duration_ms > 0
    assert written(caplog) == []


@pytest.mark.parametrize(
    ("now", "kept"),
    [
        (Caller(name="line", key_id="1", rights=frozenset({"read"})), {"read"}),
        (Caller(name="nobody"), {"infer"}),
    ],
    ids=["other rights", "ended"],
)
def test_a_long_request_whose_key_ends_is_noted_as_that_of_its_key(now, kept):
    before = Caller(name="line", key_id="1", rights=frozenset({"infer"}))
    request = RequestContext(caller=before, identify=lambda: now)
    set_current_request(request)
    assert current_caller() is before
    assert identify_again() is now
    assert (request.caller.key_id, request.caller.rights) == ("1", kept)


@pytest.mark.parametrize(
    ("noted", "error", "outcome"),
    [
        ("", None, "gone"),
        ("", asyncio.CancelledError(), "gone"),
        ("", KeyError(), "server_error"),
        ("deadline", KeyError(), "deadline"),
    ],
)
def test_the_end_of_a_request_is_counted_once(noted, error, outcome):
    counts = []
    accounting = Accounting(lambda *count: counts.append(count))
    request = RequestContext(protocol="v2", outcome=noted)
    accounting.end(request, error)
    accounting.count(request, "success")
    assert counts == [("v2", outcome)]


class Lines(Audit):
    """An audit log in memory."""

    def __init__(self):
        self.lines = []

    def write(self, request, status, action=""):
        self.lines.append((request.path, status))

    def refuse(self, request, status, action=""):
        self.lines.append((request.path, "refused", status))


@pytest.mark.parametrize(
    ("fields", "status", "lines"),
    [
        ({"need": "infer"}, 200, []),
        ({"need": "infer"}, 401, [("/", "refused", 401)]),
        ({"need": "operate"}, 200, [("/", 200)]),
        ({"need": "operate", "method": "GET"}, 200, []),
        ({"need": "read", "takes_data": True, "method": "GET"}, 200, [("/", 200)]),
        ({"need": "admin", "method": "RPC"}, "OK", [("/", "OK")]),
        ({"need": "infer", "method": "RPC"}, "PERMISSION_DENIED", [("/", "refused", "PERMISSION_DENIED")]),
        ({"need": "infer", "method": "RPC", "refusals": 2}, "OK", [("/", "refused", "PERMISSION_DENIED")]),
        ({"need": "operate"}, None, [("/", "no answer")]),
        ({"need": "infer"}, None, []),
    ],
)  # fmt: skip
def test_changes_and_refusals_are_written_to_the_audit_log(fields, status, lines):
    audit = Lines()
    accounting = Accounting(audit=audit)
    request = RequestContext(**{"method": "POST", "path": "/"} | fields)
    if status is not None:
        accounting.answer(request, status)
    accounting.end(request)
    assert audit.lines == lines
