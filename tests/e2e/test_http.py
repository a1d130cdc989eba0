"""HTTP as clients really speak it, beside the routes."""

import json
import math
import socket
import time
import urllib.error
import urllib.request
from http.client import HTTPResponse

import pytest

from tests.server_process import SAMPLE_MODELS, ServerProcess, image_input

PATH = "/v2/models/shapes-detector/infer"
QUICK_HEADERS: dict[str, dict[str, float]] = {"engine.http.http_protocol": {"HEADER_TIMEOUT_S": 1}}


def speak(server: ServerProcess, raw: bytes) -> bytes:
    """Send bytes and read until the server closes or answers whole."""
    host, port = server.host.split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(raw)
        while chunk := connection.recv(65536):
            received += chunk
            head, separator, body = received.partition(b"\r\n\r\n")
            length = [
                line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
            ]
            if separator and length and len(body) >= int(length[0].split(b":")[1]):
                break
    return received


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"GET /ready HTTP/1.1\r\n\r\n", "one header Host, got 0"),
        (b"GET /ready HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", "one header Host, got 2"),
        (b"GET /ready HTTP/1.1\r\nHost: a b\r\n\r\n", "a name or an address"),
        (
            b"POST /ready HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "no Transfer-Encoding",
        ),
    ],
    ids=["no host", "two hosts", "no name", "chunks in 1.0"],
)
def test_a_request_that_can_be_read_in_two_ways_is_refused_and_the_connection_closed(
    server: ServerProcess, raw, message
):
    host, port = server.host.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(raw + b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    assert received.startswith(b"HTTP/1.1 400")
    assert received.count(b"HTTP/1.1") == 1
    assert message in json.loads(received.partition(b"\r\n\r\n")[2])["error"]


def test_a_health_check_in_http_1_0_needs_no_host(server: ServerProcess):
    received = speak(server, b"GET /v2/health/live HTTP/1.0\r\n\r\n")
    assert b" 200 " in received.partition(b"\r\n")[0]


def test_the_times_of_the_stages_are_answered_on_request(server: ServerProcess, photo):
    body = json.dumps({"inputs": [image_input(photo)]})
    for headers, expected in (({}, False), ({"Quadriga-Timing": "true"}, True)):
        status, received, _ = server.request("POST", PATH, body, headers)
        assert status == 200
        assert ("server-timing" in received) is expected
    assert received["server-timing"].startswith("queue;dur=")


def test_an_offer_of_http_2_is_passed_over(server: ServerProcess, photo):
    body = json.dumps({"inputs": [image_input(photo)]}).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        f"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    assert speak(server, head.encode() + body).startswith(b"HTTP/1.1 200")


def test_expect_continue_and_chunks(server: ServerProcess, photo):
    body = json.dumps({"inputs": [image_input(photo)]}).encode()
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (body[:10], body[10:5000], body[5000:])
    )
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    assert speak(server, head.encode() + chunks + b"0\r\n\r\n").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "raw", [b"GARBAGE\r\n\r\n", b"BREW /pot HTTP/1.1\r\n\r\n", b"\x16\x03\x01"]
)
def test_what_is_no_http_gets_json(server: ServerProcess, raw):
    received = speak(server, raw + b"\r\n\r\n")
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"application/json" in head
    assert "expected" in json.loads(body)["error"]


def answered(connection: socket.socket) -> int:
    """Read one answer, whole; gives its status."""
    answer = HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def test_a_body_too_large_is_answered_once_and_the_connection_goes_on(tmp_path):
    flags, quick = ("--max-body-bytes", "100000"), QUICK_HEADERS
    body = b"a" * 1_000_000
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with ServerProcess(tmp_path / "data", SAMPLE_MODELS, *flags, constants=quick) as server:
        host, port = server.host.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(head.encode() + body[:500_000])
            assert answered(connection) == 413
            connection.sendall(body[500_000:])
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answered(connection) == 200
            connection.sendall(b"GET /ready HTTP/1.1\r\nX: ")  # the time of headers holds again
            assert answered(connection) == 408


def test_a_client_that_sends_before_it_reads_finds_why_its_body_was_refused(tmp_path):
    body = b"a" * 20_000_000
    with ServerProcess(tmp_path / "data", SAMPLE_MODELS, "--max-body-bytes", "100000") as server:
        for path in (PATH, "/api/inferences/query"):
            request = urllib.request.Request(f"http://{server.host}{path}", body)
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(request, timeout=20)
            assert error.value.code == 413
            assert error.value.headers["Connection"] == "close"
            assert "at most 100000 bytes" in json.loads(error.value.read())["error"]


@pytest.mark.parametrize("rest", [[], [b"no chunk\r\n\r\n"]], ids=["nothing", "no HTTP"])
def test_an_answer_before_the_body_ends_there_whatever_comes_of_the_body(server, rest):
    head = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    host, port = server.host.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head)
        received = b""
        while chunk := connection.recv(65536):  # much longer than this where the body is waited for
            received += chunk
        for piece in rest:
            connection.sendall(piece)
            received += connection.recv(65536)
    assert received.startswith(b"HTTP/1.1 404")
    assert received.count(b"HTTP/1.1") == 1


def test_headers_have_a_size(server: ServerProcess):
    received = speak(server, b"GET /ready HTTP/1.1\r\nX: " + b"a" * 100_000)
    assert received.startswith(b"HTTP/1.1 431")


def test_headers_have_a_time(tmp_path):
    with ServerProcess(tmp_path / "data", constants=QUICK_HEADERS) as server:
        begun = time.monotonic()
        assert speak(server, b"GET /ready HTTP/1.1\r\nX: ").startswith(b"HTTP/1.1 408")
        assert time.monotonic() - begun < 14  # by default they have 15
        assert speak(server, b"").startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(("encoding", "expected"), [("gzip", 400), ("br", 415), ("zstd", 415)])
def test_a_content_encoding_is_refused_by_name(server: ServerProcess, photo, encoding, expected):
    body = json.dumps({"inputs": [image_input(photo)]})
    status, _, answer = server.request("POST", PATH, body, {"Content-Encoding": encoding})
    assert status == expected
    assert encoding in json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("path", "document"),
    [
        (PATH, {"inputs": [image_input(b"")]}),
        ("/v1/models/shapes-detector:predict", {"instances": [1]}),
        ("/v2/models/shapes-detector/generate", {"text_input": 1}),
        ("/v2/repository/index", {"ready": True}),
        ("/api/inferences/query", {"limit": 1}),
    ],
)
def test_a_byte_order_mark_before_json_is_no_part_of_it(server: ServerProcess, path, document):
    body, headers = json.dumps(document).encode(), {"Content-Type": "application/json"}
    plain, marked = (
        server.request("POST", path, mark + body, headers) for mark in (b"", b"\xef\xbb\xbf")
    )
    assert (marked[0], marked[2]) == (plain[0], plain[2])


@pytest.mark.parametrize(
    ("prefix", "model", "expected"),
    [
        ("shapes-detector", "shapes-detector", 200),
        ("shapes-detector", "m-shapes-detector", 200),
        ("m-shapes-detector", "shapes-detector", 200),
        ("shapes-classifier", "shapes-detector", 400),
        ("absent", "shapes-detector", 400),
        ("shapes-detector", "absent", 404),
    ],
)
def test_the_prefix_of_the_gateway_names_the_same_model(server, photo, prefix, model, expected):
    path = f"/api/serve/serve-model-{prefix}-pred/v2/models/{model}/infer"
    status, answer = server.call("POST", path, {"inputs": [image_input(photo)]})
    assert status == expected
    if expected == 400:
        assert "expected one model in the path" in answer["error"]


@pytest.mark.parametrize("shape", [[1080, 1920, 3], [11040]])
def test_pixels_in_place_of_a_file_are_told_what_to_send(server, shape):
    tensor = {"name": "image", "shape": shape, "datatype": "UINT8", "parameters": {}}
    size = math.prod(shape)
    tensor["parameters"]["binary_data_size"] = size
    text = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    status, _, answer = server.request("POST", PATH, text + bytes(size), headers)
    assert status == 400
    assert "got UINT8; send the file (JPEG, PNG) as one element of BYTES" in answer.decode()


def test_names_and_numbers_of_images_are_bounded(server: ServerProcess, photo):
    for body in (
        {"id": "x" * 2000, "inputs": [image_input(photo)]},
        {"inputs": [image_input(photo, "x" * 2000)]},
        {"inputs": [image_input("")] * 1001},
    ):
        status, answer = server.call("POST", PATH, body)
        assert status == 400
        assert "at most" in answer["error"]


def test_parameters_of_the_request_hold_for_inputs_and_are_echoed(server: ServerProcess, photo):
    body = {
        "parameters": {"action": "detect", "score_threshold": 1.0, "metadata": {"camera": 1}},
        "inputs": [image_input(photo), image_input(photo, score_threshold=0.1, action="predict")],
    }
    status, answer = server.call("POST", PATH, body)
    assert status == 200
    first, second = answer["outputs"]
    assert (first["data"], first["parameters"]["action"]) == ([[]], "detect")
    assert second["parameters"]["action"] == "predict"
    assert second["data"] != [[]]
    assert first["parameters"]["metadata"] == {"camera": 1}
