"""What is sent again, and what is not."""

import random
import time

import pytest

from quadriga.client import Client, ServerBusy, ServerFault, Unreachable
from quadriga.client.transport import retries
from tests.unit.client.conftest import inferred, json_response, response

IMAGE = b"an image"
KNOWS_KEYS = json_response({"name": "quadriga", "extensions": ["idempotency_key"]})
OLD = json_response({"name": "quadriga", "extensions": ["statistics"]})
BUSY = json_response({"error": "busy"}, 503, "Retry-After: 1")


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that the client would make, which it does not."""
    made: list[float] = []
    monkeypatch.setattr(retries.send_repeatedly, "__kwdefaults__", {"sleep": made.append})
    return made


def path(request: bytes) -> str:
    return request.split(b" ")[1].decode()


def keys(server) -> list[str]:
    lines = [line for request in server.requests for line in request.split(b"\r\n")]
    return [line.decode()[17:] for line in lines if line.startswith(b"Idempotency-Key: ")]


def scripted(server, metadata: bytes, *answers: bytes) -> None:
    """Answer `/v2` by metadata and other paths in turn; an empty answer cuts the connection."""
    left = list(answers)

    def answer(sock, request, _):
        data = metadata if path(request) == "/v2" else left.pop(0)
        sock.sendall(data)
        return None if data else "close"

    server.script = answer


def test_a_connection_that_is_cut_is_tried_again_under_the_same_key(server, pauses):
    scripted(server, KNOWS_KEYS, b"", b"", inferred())
    assert Client(server.url, key="").infer("m", IMAGE).id == "17"
    assert len(set(keys(server))) == 1
    assert len(keys(server)) == 3
    assert len(pauses) == 2


def test_two_calls_have_two_keys_and_one_may_be_chosen(server):
    with Client(server.url, key="") as client:
        client.infer("m", IMAGE)
        client.infer("m", IMAGE)
        client.infer("m", IMAGE, idempotency_key="mine")
    first, second, third = keys(server)
    assert first != second
    assert third == "mine"


def test_an_old_server_gets_an_inference_once_if_it_may_have_it(server, pauses):
    scripted(server, OLD, b"", inferred())
    with pytest.raises(Unreachable) as raised:
        Client(server.url, key="").infer("m", IMAGE)
    assert [path(request) for request in server.requests] == ["/v2/models/m/infer", "/v2"]
    assert "knows no idempotency keys" in raised.value.__notes__[0]


def test_an_old_server_that_refuses_by_a_limit_is_asked_again(server, pauses):
    limited = json_response({"error": "too many"}, 429, "Retry-After: 2")
    scripted(server, OLD, limited, inferred())
    assert Client(server.url, key="").infer("m", IMAGE).ok
    assert pauses[0] >= 2


def test_retry_after_is_kept_and_pauses_grow(server, pauses):
    scripted(server, KNOWS_KEYS, BUSY, b"", b"", b"", inferred())
    Client(server.url, key="").infer("m", IMAGE)
    assert pauses[0] >= 1
    assert pauses[1] <= 0.2 < 0.2 + pauses[3]
    assert pauses[1] < pauses[3]


@pytest.mark.parametrize("value", ["-1", "soon", "Wed, 21 Oct 2026 07:28:00 GMT", "9" * 30, "1.5"])
def test_a_retry_after_that_is_no_number_is_passed_over(server, pauses, value):
    scripted(
        server, KNOWS_KEYS, json_response({"error": "x"}, 503, f"Retry-After: {value}"), inferred()
    )
    assert Client(server.url, key="").infer("m", IMAGE).ok
    assert pauses[0] <= 0.1


def test_a_retry_after_beyond_the_deadline_is_an_error_at_once(server, pauses):
    server.answers(json_response({"error": "busy"}, 503, "Retry-After: 3600"))
    with pytest.raises(ServerBusy) as raised:
        Client(server.url, key="", total_timeout=10).infer("m", IMAGE)
    assert raised.value.retry_after_s == 3600
    assert len(server.requests) == 1
    assert not pauses


def test_the_number_of_retries_is_limited_and_may_be_none(server, pauses):
    scripted(server, KNOWS_KEYS, *[b""] * 10)
    with pytest.raises(Unreachable):
        Client(server.url, key="", retries=3).infer("m", IMAGE)
    assert len(keys(server)) == 4
    with pytest.raises(Unreachable):
        Client(server.url, key="", retries=0).infer("m", IMAGE)
    assert len(keys(server)) == 5


def test_the_total_time_is_limited(server):
    server.answers(BUSY)
    with pytest.raises(ServerBusy):
        Client(server.url, key="", retries=1000, total_timeout=3).infer("m", IMAGE)
    assert len(server.requests) < 6


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 500, 501])
def test_errors_that_stay_are_not_tried_again(server, pauses, status):
    server.answers(json_response({"error": "no"}, status))
    with pytest.raises(Exception, match="no"):
        Client(server.url, key="").infer("m", IMAGE)
    assert len(server.requests) == 1


def test_what_begins_a_job_is_not_sent_twice(server, pauses):
    scripted(server, KNOWS_KEYS, b"", json_response({"id": "1"}))
    with pytest.raises(Unreachable):
        Client(server.url, key="").evaluate("m", wait=False)
    scripted(server, KNOWS_KEYS, BUSY, json_response({"id": "1"}))
    with pytest.raises(ServerBusy):
        Client(server.url, key="").evaluate("m", wait=False)
    assert len(server.requests) == 2


def test_what_reads_is_sent_again_to_any_server(server, pauses):
    scripted(server, OLD, b"", response(502, b"x"), json_response({"models": ["a"]}))
    assert Client(server.url, key="").models.names() == ["a"]


def test_a_statement_about_a_revision_is_not_sent_twice(server, pauses):
    scripted(server, OLD, b"", json_response({}))
    with pytest.raises(Unreachable):
        Client(server.url, key="").truth.state("1", [], revision="5")
    scripted(server, OLD, b"", json_response({"id": "1"}))
    assert Client(server.url, key="").truth.state("1", []).id == "1"


def test_a_server_that_is_not_there_is_tried_again_by_everything(server, pauses):
    url = server.url
    server.close()
    with pytest.raises(Unreachable, match="refused") as raised:
        Client(url, key="", retries=3).evaluate("m", wait=False)
    assert not raised.value.was_sent
    assert len(pauses) == 3


def test_an_idle_connection_that_the_server_closed_is_not_used(server):
    with Client(server.url, key="", retries=0) as client:
        server.script = lambda sock, *_: sock.sendall(inferred()) or "close"
        for _ in range(3):
            client.infer("m", IMAGE)
            time.sleep(0.05)  # the end of the connection arrives
    assert server.connections == 3


def test_fault_after_a_cut_does_not_hide_the_cause(server, pauses):
    scripted(server, KNOWS_KEYS, b"", json_response({"error": "model failed"}, 500))
    with pytest.raises(ServerFault, match="model failed"):
        Client(server.url, key="").infer("m", IMAGE)


def test_pauses_are_random():
    error = Unreachable("x", was_sent=False)
    random.seed(1)
    assert len({retries._pause_s(3, error) for _ in range(20)}) == 20
    assert max(retries._pause_s(100, error) for _ in range(20)) <= retries.MAX_PAUSE_S
