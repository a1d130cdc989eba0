"""The header traceparent: read strictly, as anybody may send anything."""

import pytest

from quadriga.proto.request import RequestContext, TraceContext, parse_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        (f"00-{TRACE}-{SPAN}-01", 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-ff", 255),
        (f"01-{TRACE}-{SPAN}-01", 1),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", 1),
    ],
)
def test_a_valid_context_is_read(value, flags):
    context = parse_traceparent(value.encode())
    assert context == parse_traceparent(value) == TraceContext(TRACE, SPAN, flags)
    assert context.traceparent == f"00-{TRACE}-{SPAN}-0{flags & 1}"


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01-",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"cc-{TRACE}-{SPAN}-01-{'a' * 600}",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0g",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-01\r\nset-cookie: a",
        f"00-{TRACE}-{SPAN}-\u0661\u0661",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
    ],
)
def test_any_other_context_counts_as_absent(value):
    assert parse_traceparent(value) is None


def test_an_event_continues_its_trace_unless_a_header_does():
    restarted = []
    facts = RequestContext(id="r", method="POST", path="/", restart=restarted.append)
    facts.continue_trace("nonsense")
    assert (facts.trace, restarted) == (None, [])
    facts.continue_trace(f"00-{TRACE}-{SPAN}-01")
    assert facts.trace == facts.parent == TraceContext(TRACE, SPAN, 1)
    facts.continue_trace(f"00-{'c' * 32}-{SPAN}-01")
    assert facts.trace.trace_id == TRACE
    assert restarted == [facts]
