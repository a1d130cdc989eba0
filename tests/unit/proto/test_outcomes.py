import pytest

from quadriga.proto import errors
from quadriga.proto.http.operations import PROTOCOLS, WireOptions, all_operations
from quadriga.proto.request import (
    OTHER_WIRES,
    OUTCOMES,
    WIRE_PROTOCOLS,
    outcome_of_error,
    outcome_of_status,
    wire_protocol,
)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errors.InvalidRequest("a"), "client_error"),
        (errors.Unauthenticated("a"), "client_error"),
        (errors.Forbidden("a"), "client_error"),
        (errors.NotFound("a"), "client_error"),
        (errors.MethodNotAllowed("a", "GET"), "client_error"),
        (errors.Unsupported("a"), "client_error"),
        (errors.TooSlow("a"), "client_error"),
        (errors.TooLarge("a"), "client_error"),
        (errors.UnsupportedMediaType("a"), "client_error"),
        (errors.KeyReused("a"), "client_error"),
        (errors.LimitReached("a", 1), "refused"),
        (errors.KeysNotRead("a"), "refused"),
        (errors.ModelNotReady("a"), "refused"),
        (errors.Overloaded("a"), "refused"),
        (errors.WaitTooLong("a", 1), "refused"),
        (errors.TooManyCalls("a"), "refused"),
        (errors.IntakeFull("a"), "refused"),
        (errors.DeadlineExceeded("a"), "deadline"),
        (errors.ClientLeft("a"), "gone"),
        (errors.ModelFailed("a"), "model_failure"),
        (errors.InternalError("a"), "server_error"),
        (RecursionError(), "client_error"),
        (KeyError("a"), "server_error"),
    ],
)
def test_each_error_has_an_outcome(error, outcome):
    assert outcome_of_error(error) == outcome


def test_no_error_of_the_wire_is_left_out():
    tested = {type(row[0]) for row in test_each_error_has_an_outcome.pytestmark[0].args[1]}
    kinds = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.ProtocolError)
    }
    assert kinds - tested == {errors.ProtocolError}


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((status, "success") for status in (200, 204, 207, 303, 304)),
        *(
            (status, "client_error")
            for status in (400, 401, 403, 404, 405, 408, 409, 413, 415, 431)
        ),
        *((status, "refused") for status in (429, 503)),
        (504, "deadline"),
        *((status, "server_error") for status in (500, 501, 502, 599)),
    ],
)
def test_each_status_has_an_outcome(status, outcome):
    assert outcome_of_status(status) == outcome
    assert outcome in OUTCOMES


@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        ("v2", "v2"), ("chariot", "v2"), ("v2-cloudevents", "v2"), ("v2-extensions", "v2"),
        ("v2-grpc", "grpc"), ("v1", "v1"), ("v1-cloudevents", "v1"), ("generate", "generate"),
        ("chariot-v2", "chariot-v2"), ("", "none"), ("sent by a client", "none"),
    ],
)  # fmt: skip
def test_the_name_of_a_protocol_leads_to_a_label(name, protocol):
    assert wire_protocol(name) == protocol


def test_each_protocol_of_the_table_has_a_label():
    assert {wire_protocol(name) for name in PROTOCOLS} | {"grpc"} == set(WIRE_PROTOCOLS)
    by_path = {
        (row.method, row.path): row.protocol
        for row in all_operations(None, WireOptions(server_version="0"))
    }
    assert set(by_path.values()) <= {*WIRE_PROTOCOLS, *OTHER_WIRES}
    for (method, path), protocol in by_path.items():
        assert protocol == "state" or (method == "POST" and protocol in WIRE_PROTOCOLS), path
    assert by_path["POST", "/v2/models/{name}[/versions/{version}]/infer"] == "v2"
    assert by_path["GET", "/v2/health/ready"] == "state"
