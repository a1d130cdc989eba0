"""Whatever is wrong with a request, it gets a clear 4xx, and the server answers as before."""

import base64
import io
import json
import socket
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from tests.server_process import ServerProcess, image_input

DETECTOR = "/v2/models/shapes-detector/infer"
CLASSIFIER = "/v2/models/shapes-classifier/infer"
QUERY = "/api/inferences/query"


def picture(
    kind: str = "PNG", mode: str = "RGB", size: tuple[int, int] = (64, 48), **options
) -> bytes:
    rng = np.random.default_rng(7)
    array = rng.integers(0, 255, (size[1], size[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(array).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def png_claiming(width: int, height: int) -> bytes:
    """A PNG whose header claims a size, with hardly any data behind it."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")]
    out = b"\x89PNG\r\n\x1a\n"
    for kind, body in chunks:
        out += struct.pack(">I", len(body)) + kind + body
        out += struct.pack(">I", zlib.crc32(kind + body))
    return out


JPEG = picture("JPEG", quality=90)
PNG = picture("PNG")
WEBP = picture("WEBP")
TIFF = picture("TIFF", compression="tiff_lzw")
GIF = picture("GIF", mode="P")
BMP = picture("BMP")

BAD_IMAGES: dict[str, bytes] = {
    "empty": b"",
    "one byte": b"\xff",
    "text": b"hello",
    "html": b"<html><body>404</body></html>",
    "json": b'{"image": 1}',
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "pdf": b"%PDF-1.7\n1 0 obj\n",
    "zip": b"PK\x03\x04" + bytes(40),
    "gzip of an image": zlib.compress(PNG),
    "zeros": bytes(1000),
    "heic header": b"\x00\x00\x00\x18ftypheic" + bytes(100),
    "mp4 header": b"\x00\x00\x00\x18ftypisom" + bytes(100),
    "jpeg start only": b"\xff\xd8\xff\xe0",
    "jpeg without frame": b"\xff\xd8\xff\xd9",
    "jpeg cut at a third": JPEG[: len(JPEG) // 3],
    "jpeg cut at a half": JPEG[: len(JPEG) // 2],
    "jpeg cut before its end": JPEG[:-200],
    "png signature only": PNG[:8],
    "png header only": PNG[:33],
    "png cut at a half": PNG[: len(PNG) // 2],
    "png without its end": PNG[:-12],
    "png with a damaged byte": PNG[:1000] + bytes([PNG[1000] ^ 0xFF]) + PNG[1001:],
    "png 0 x 0": png_claiming(0, 0),
    "png 1 x 0": png_claiming(1, 0),
    "png of 100,000 x 100,000": png_claiming(100_000, 100_000),
    "png of 2^31 - 1 squared": png_claiming(2**31 - 1, 2**31 - 1),
    "png of 2^32 - 1 squared": png_claiming(2**32 - 1, 2**32 - 1),
    "png of 20,000 x 20,000": png_claiming(20_000, 20_000),
    "png without enough rows": png_claiming(64, 64),
    "webp cut": WEBP[: len(WEBP) // 2],
    "webp header only": WEBP[:16],
    "tiff cut": TIFF[: len(TIFF) // 2],
    "tiff header only": TIFF[:8],
    "gif header only": GIF[:13],
    "gif cut": GIF[: len(GIF) // 2],
    "bmp header only": BMP[:54],
    "bmp cut": BMP[: len(BMP) // 2],
    "base64 twice": base64.b64encode(PNG),
}

image = image_input(PNG)
text = image["data"][0]


def tensor(**changes):
    return {"inputs": [{**image, **changes}]}


def parameters(**values):
    return {"inputs": [{**image, "parameters": values}]}


def metadata(value):
    return parameters(metadata=value if isinstance(value, str) else json.dumps(value))


def entries(**entry):
    return metadata({"extended_metadata": [entry]})


BAD_BODIES: dict[str, object] = {
    "empty": b"",
    "blank": b"   ",
    "no json": b"inputs=1",
    "cut json": b'{"inputs": [{"name": "a"',
    "json and more": b'{"inputs": []} x',
    "single quotes": b"{'inputs': []}",
    "utf-16": json.dumps(tensor()).encode("utf-16"),
    "bad utf-8": b'{"inputs": "\xff\xfe"}',
    "nul": b"\x00",
    "100,000 brackets": b"[" * 100_000,
    "nested deeply": b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "data nested deeply": b'{"inputs": [{"name":"a","shape":[1],"datatype":"BYTES","data":'
    + b"[" * 5000
    + b"]" * 5000
    + b"}]}",
    "huge integer": b'{"inputs": [{"name":"a","shape":['
    + b"9" * 5000
    + b'],"datatype":"BYTES","data":["x"]}]}',
    "null": None,
    "number": 7,
    "text": "inputs",
    "list": [],
    "no inputs": {},
    "inputs null": {"inputs": None},
    "inputs empty": {"inputs": []},
    "inputs an object": {"inputs": image},
    "inputs of numbers": {"inputs": [1]},
    "inputs of null": {"inputs": [None]},
    "v1 instances": {"instances": [{"b64": text}]},
    "id a number": {**tensor(), "id": 7},
    "id a list": {**tensor(), "id": ["a"]},
    "parameters a text": {**tensor(), "parameters": "a"},
    "parameters a list": {**tensor(), "parameters": [1]},
    "outputs a text": {**tensor(), "outputs": "a"},
    "outputs of texts": {**tensor(), "outputs": ["a"]},
    "name missing": {"inputs": [{k: v for k, v in image.items() if k != "name"}]},
    "shape missing": {"inputs": [{k: v for k, v in image.items() if k != "shape"}]},
    "datatype missing": {"inputs": [{k: v for k, v in image.items() if k != "datatype"}]},
    "data missing": {"inputs": [{k: v for k, v in image.items() if k != "data"}]},
    "name a number": tensor(name=1),
    "name null": tensor(name=None),
    "shape a number": tensor(shape=1),
    "shape too large": tensor(shape=[2]),
    "shape zero": tensor(shape=[0]),
    "shape of a text": tensor(shape=["1"]),
    "shape of a truth value": tensor(shape=[True]),
    "shape of a fraction": tensor(shape=[1.5]),
    "shape negative": tensor(shape=[-2]),
    "shape of two unknowns": tensor(shape=[-1, -1]),
    "shape of 2^63": tensor(shape=[2**63]),
    "shape of 100 dimensions": tensor(shape=[1] * 100),
    "datatype unknown": tensor(datatype="STRING"),
    "datatype lower case": tensor(datatype="bytes"),
    "datatype a number": tensor(datatype=1),
    "datatype of numbers for an image": tensor(datatype="FP32"),
    "numbers for an image": {
        "inputs": [{"name": "a", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]}]
    },
    "data a number in BYTES": tensor(data=[1]),
    "data null in BYTES": tensor(data=[None]),
    "data an object in BYTES": tensor(data=[{"base64": text}]),
    "data an object with more in BYTES": tensor(data=[{"b64": text, "mime": "image/png"}]),
    "data bytes that are no image": tensor(data=[{"b64": "//79"}]),
    "data bytes cut": tensor(data=[{"b64": text[:-3]}]),
    "data a truth value in BYTES": tensor(data=[True]),
    "data empty": tensor(data=[], shape=[0]),
    "data null": tensor(data=None),
    "base64 !!!": tensor(data=["!!!"]),
    "base64 empty": tensor(data=[""]),
    "base64 cut": tensor(data=[text[:-3]]),
    "base64 with blanks": tensor(data=[text[:20] + "  " + text[20:]]),
    "base64 url-safe": tensor(data=["_-_-" + text]),
    "base64 not ascii": tensor(data=["äöü" + text]),
    "a path": tensor(data=["/etc/hostname"]),
    "a url": tensor(data=["http://127.0.0.1:1/a.png"]),
    "a file url": tensor(data=["file:///etc/hostname"]),
    "action unknown": parameters(action="segment"),
    "action a number": parameters(action=1),
    "action empty": parameters(action=""),
    "action a list": parameters(action=["predict"]),
    "score_threshold 7": parameters(score_threshold=7),
    "score_threshold negative": parameters(score_threshold=-0.01),
    "score_threshold true": parameters(score_threshold=True),
    "score_threshold a text": parameters(score_threshold="0.5"),
    "score_threshold a list": parameters(score_threshold=[0.5]),
    "iou_threshold 1.1": parameters(iou_threshold=1.1),
    "iou_threshold a text": parameters(iou_threshold="x"),
    "max_detections 0": parameters(max_detections=0),
    "max_detections a fraction": parameters(max_detections=1.5),
    "max_detections a million": parameters(max_detections=10**6),
    "max_detections true": parameters(max_detections=True),
    "request's own threshold 2": {**tensor(), "parameters": {"score_threshold": 2}},
    "metadata no json": metadata("{"),
    "metadata a number": metadata("7"),
    "metadata a text": metadata('"a"'),
    "metadata true": metadata("true"),
    "metadata a number outside text": parameters(metadata=7),
    "metadata extended a text": metadata({"extended_metadata": "a"}),
    "metadata entry a number": metadata([1]),
    "metadata entry without key": entries(type="int", value="1"),
    "metadata entry without type": entries(key="a", value="1"),
    "metadata entry without value": entries(key="a", type="int"),
    "metadata key a number": entries(key=1, type="int", value="1"),
    "metadata key empty": entries(key="", type="int", value="1"),
    "metadata type unknown": entries(key="a", type="bool", value="true"),
    "metadata type a list": entries(key="a", type=["int"], value="1"),
    "metadata int of a text": entries(key="a", type="int", value="one"),
    "metadata int of a fraction": entries(key="a", type="int", value="1.5"),
    "metadata int too large": entries(key="a", type="int", value="9" * 19),
    "metadata int with underscores": entries(key="a", type="int", value="1_000"),
    "metadata float of a text": entries(key="a", type="float", value="high"),
    "metadata float nan": entries(key="a", type="float", value="nan"),
    "metadata float infinite": entries(key="a", type="float", value="1e999"),
    "metadata dict of a list": entries(key="a", type="dict", value="[1]"),
    "metadata dict of no json": entries(key="a", type="dict", value="{"),
    "metadata str of a number": entries(key="a", type="str", value=7),
    "metadata key twice": metadata(
        [{"key": "a", "type": "int", "value": "1"}, {"key": "a", "type": "int", "value": "2"}]
    ),
    "metadata key of 300 characters": metadata({"k" * 300: 1}),
    "metadata key with a control character": metadata({"a\u0000b": 1}),
    "metadata nested too deeply": metadata('{"a":' * 20 + "1" + "}" * 20),
    "metadata of a megabyte": metadata({"a": "x" * 1_000_000}),
    "metadata path twice": metadata({"a.b": 1, "a": {"b": 2}}),
}

BAD_QUERIES: dict[str, object] = {
    "no json": b"{",
    "list": [],
    "unknown key": {"filter": {}},
    "where a text": {"where": "a"},
    "where a list": {"where": []},
    "field unknown": {"where": {"colour": "red"}},
    "operator unknown": {"where": {"meta.a": {"regex": ".*"}}},
    "in without list": {"where": {"meta.a": {"in": 1}}},
    "and without list": {"where": {"and": {"meta.a": 1}}},
    "not of a list": {"where": {"not": [1]}},
    "nested too deeply": {"where": json.loads('{"not":' * 100 + '{"meta.a":1}' + "}" * 100)},
    "100,000 brackets": b'{"where":' + b'{"not":' * 100_000,
    "time unreadable": {"where": {"ts": {"ge": "yesterday"}}},
    "score of a text": {"where": {"label": {"name": "a", "score": {"ge": "high"}}}},
    "limit 0": {"limit": 0},
    "limit a million": {"limit": 1_000_000},
    "limit a text": {"limit": "10"},
    "order unknown": {"order": "score"},
    "cursor unreadable": {"cursor": "'; DROP TABLE inference; --"},
    "count unknown": {"count": "all"},
}

BAD_PATHS: dict[str, tuple[str, str, int]] = {
    "unknown path": ("GET", "/v3", 404),
    "unknown model": ("POST", "/v2/models/none/infer", 404),
    "unknown version": ("POST", "/v2/models/shapes-detector/versions/9/infer", 404),
    "unknown model's metadata": ("GET", "/v2/models/none", 404),
    "unknown model's readiness": ("GET", "/v2/models/none/ready", 404),
    "folder without a model": ("POST", "/v2/models/training/infer", 404),
    "path out of the folder": ("POST", "/v2/models/..%2f..%2fetc/infer", 404),
    "GET of infer": ("GET", DETECTOR, 405),
    "PUT of infer": ("PUT", DETECTOR, 405),
    "POST of health": ("POST", "/v2/health/live", 405),
    "DELETE of a record": ("DELETE", "/api/inferences/1", 405),
    "id no number": ("GET", "/api/inferences/abc", 400),
    "id too large": ("GET", "/api/inferences/" + "9" * 40, 400),
    "id negative": ("GET", "/api/inferences/-1", 400),
    "id unknown": ("GET", "/api/inferences/1", 404),
    "input of an unknown id": ("GET", "/api/inferences/1/input", 404),
    "presign no boolean": ("GET", "/api/inferences/1?presign=perhaps", 400),
    "presigned unknown id": ("GET", "/api/inferences/1?presign=true", 404),
    "report unknown": ("GET", "/api/reports/abc", 404),
    "page of an unknown report": ("GET", "/api/reports/abc/page", 404),
    "GET of evaluations": ("GET", "/api/evaluations", 405),
    "image without a signature": ("GET", "/api/blobs/" + "0" * 64, 400),
}


def refused(status: int, headers: dict[str, str], body: bytes) -> str:
    """Check the form that every error has, and give its text."""
    assert 400 <= status < 500, (status, body[:300])
    assert status != 422
    assert (status == 405) == bool(headers.get("allow"))
    assert headers["content-type"] == "application/json"
    answer = json.loads(body)
    assert list(answer) == ["error"]
    assert len(answer["error"]) < 2000
    return answer["error"]


def encoded(body: object) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


@pytest.fixture(scope="module", autouse=True)
def same_answer_afterwards(server: ServerProcess, photo):
    """The server's answers, and its processes, are the same before and after all of this."""
    bodies = [(DETECTOR, {"id": "x", "inputs": [image_input(photo)]})]
    bodies.append((CLASSIFIER, {"id": "x", "inputs": [image_input(photo, action="predict_proba")]}))
    answers_before = [
        server.call("POST", path, body)[1]["outputs"][0]["data"] for path, body in bodies
    ]
    pids = server.child_pids()
    yield
    answers_after = [
        server.call("POST", path, body)[1]["outputs"][0]["data"] for path, body in bodies
    ]
    assert answers_after == answers_before
    assert server.child_pids() == pids


def test_there_are_at_least_a_hundred_kinds():
    assert len(BAD_IMAGES) + len(BAD_BODIES) + len(BAD_QUERIES) + len(BAD_PATHS) >= 180


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_bad_image(server: ServerProcess, name):
    body = json.dumps({"inputs": [image_input(BAD_IMAGES[name], "camera-7")]})
    error = refused(*server.request("POST", DETECTOR, body))
    assert "inputs[0] ('camera-7'): data[0]" in error


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_body(server: ServerProcess, name):
    assert refused(*server.request("POST", DETECTOR, encoded(BAD_BODIES[name])))


@pytest.mark.parametrize("name", ["top_k 0", "top_k a text", "action detect"])
def test_bad_classification(server: ServerProcess, name):
    values = {
        "top_k 0": {"top_k": 0},
        "top_k a text": {"top_k": "3"},
        "action detect": {"action": "detect"},
    }
    body = json.dumps({"inputs": [{**image, "parameters": values[name]}]})
    assert "inputs[0]" in refused(*server.request("POST", CLASSIFIER, body))


@pytest.mark.parametrize("name", BAD_QUERIES)
def test_bad_query(server: ServerProcess, name):
    assert refused(*server.request("POST", QUERY, encoded(BAD_QUERIES[name])))


@pytest.mark.parametrize("name", BAD_PATHS)
def test_bad_path(server: ServerProcess, name):
    method, path, expected = BAD_PATHS[name]
    body = json.dumps(tensor()) if method == "POST" else None
    status, headers, answer = server.request(method, path, body)
    assert refused(status, headers, answer)
    assert status == expected


def test_a_body_that_is_too_large_is_refused_at_its_header(server: ServerProcess):
    host, port = server.host.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"POST {DETECTOR} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000000000\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GARBAGE\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        % DETECTOR.encode(),
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n" % DETECTOR.encode(),
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"
        % DETECTOR.encode(),
    ],
    ids=["tls", "garbage", "nul in path", "smuggling", "negative length", "bad chunk"],
)
def test_bad_http_is_answered_400_and_closed(server: ServerProcess, raw):
    host, port = server.host.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(raw)
        received = connection.recv(4096)
        assert received.startswith(b"HTTP/1.1 400") or received == b""


def test_a_client_that_goes_away_disturbs_nobody(server: ServerProcess):
    host, port = server.host.split(":")
    for _ in range(20):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(
                f"POST {DETECTOR} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{{".encode()
            )
    assert server.call("GET", "/v2/health/live")[0] == 200


def test_a_parameter_of_the_url_that_is_no_boolean_is_named(server: ServerProcess):
    status, answer = server.call("GET", "/api/inferences/1?presign=maybe")
    assert (status, answer) == (400, {"error": "presign: Expected `bool`, got `str`"})
