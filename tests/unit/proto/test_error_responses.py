"""What a client gets of an error, and what only the log has."""

import json

import pytest

from quadriga.proto.errors import InternalError, InvalidRequest, ModelNotReady
from quadriga.proto.http.asgi import error_request_id, error_response
from quadriga.store.records.errors import NotAppliedError, NotReadyError, StoreError

GENERIC = "Internal Server Error: the server's log has the reason"


@pytest.mark.parametrize(
    ("error", "status", "text", "logged"),
    [
        (InvalidRequest("expected a, got b"), 400, "expected a, got b", ""),
        (ModelNotReady("loading"), 503, "loading", ""),
        (InternalError("model 'm' failed"), 500, "model 'm' failed", "answered 500: model 'm' failed"),
        (NotReadyError("away", detail="host 10.0.0.1"), 503, "away", "answered 503: away (host 10.0.0.1)"),
        (StoreError("no table /srv/store.db"), 500, GENERIC, "no table /srv/store.db"),
        (OSError(2, "No such file", "/srv/a"), 500, GENERIC, "/srv/a"),
    ],
)  # fmt: skip
def test_the_log_has_what_the_client_does_not_get(error, status, text, logged, caplog):
    answered, body, headers = error_response(error, "trace-1")
    assert (answered, json.loads(body)["error"]) == (status, text)
    assert dict(headers)[b"x-request-id"] == b"trace-1"
    assert logged in caplog.text
    assert ("request trace-1" in caplog.text) == bool(logged)


def test_a_change_that_will_be_applied_is_not_to_be_sent_again():
    status, body, headers = error_response(NotAppliedError("later"), "trace-1")
    assert (status, json.loads(body)) == (503, {"error": "later", "journaled": True})
    assert dict(headers) == {b"x-request-id": b"trace-1", b"quadriga-stored": b"journal"}
    assert dict(error_response(NotReadyError("away"))[2])[b"retry-after"] == b"1"


@pytest.mark.parametrize("sound", ["a", "0f8c-1", "a" * 128])
def test_a_sound_request_id_is_kept(sound):
    assert error_request_id(sound) == error_request_id(sound.encode()) == sound


@pytest.mark.parametrize("unsound", [None, "", "a b", "a\nb", "\xe4", "a" * 129])
def test_any_other_request_id_is_replaced(unsound):
    first, second = error_request_id(unsound), error_request_id(unsound)
    assert first != second
    assert len(first) == 36
