"""The file of an image as a body: every path to a model, what is stored of it, and the rules that hold for JSON."""

import gzip
import json
from functools import partial
from urllib.parse import quote

import httpx
import pytest

from tests.scrapes import scrape, total
from tests.server_process import SAMPLE_MODELS, ServerProcess, quadriga

DETECTOR = "shapes-detector"
PATH = f"/v2/models/{DETECTOR}/infer"
IMAGE = {"Content-Type": "image/jpeg"}
FORM = {"Content-Type": "multipart/form-data; boundary=any"}
PATHS = [
    PATH,
    f"{PATH}/",
    f"/v2/models/m-{DETECTOR}/infer",
    f"/v2/models/M-{DETECTOR.upper()}/infer",
    f"/v2/models/{DETECTOR}/versions/1/infer",
    f"/api/serve/serve-model-{DETECTOR}-pred/v2/models/m-{DETECTOR}/infer/",
]
MAX_BYTES = 400_000


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with small bodies, and a key for each role."""
    folder = tmp_path_factory.mktemp("guarded")
    server = ServerProcess(folder / "data", SAMPLE_MODELS, "--max-body-bytes", str(MAX_BYTES))
    with server:
        keys = {}
        for role in ("admin", "infer", "read"):
            made = quadriga("keys", "create", "--role", role, "--json", "--data", server.data)
            keys[role] = json.loads(made.stdout)["key"]
        # A server without keys is open to all; new ones count within seconds.
        server.wait_until(lambda: server.request("GET", "/api/inferences")[0] == 401)
        server.wait_until(lambda: 401 not in map(partial(answered, server), keys.values()))
        yield server, keys


def answered(server, key):
    """Return the status of a request with a key."""
    return server.request("GET", "/v2", None, {"Authorization": f"Bearer {key}"})[0]


def form_of(photo):
    head = b'--any\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    return head + photo + b"\r\n--any--\r\n"


@pytest.mark.parametrize("path", PATHS)
def test_every_path_to_a_model_takes_an_image(server, photo, path):
    expected = server.infer(DETECTOR, photo)["data"]
    for body, headers in ((photo, IMAGE), (form_of(photo), FORM)):
        status, _, answer = server.request("POST", path, body, {**headers, "X-Request-ID": "i"})
        assert status == 200, answer
        answered = json.loads(answer)
        assert (answered["model_name"], answered["id"]) == (DETECTOR, "i")
        assert answered["outputs"][0]["data"] == expected


def test_metadata_and_parameters_are_stored_as_those_of_json(server, photo):
    metadata = quote('{"camera_id": "north", "run": "image body"}')
    path = f"{PATH}?score_threshold=0.8&metadata={metadata}"
    status, headers, answer = server.request("POST", path, photo, IMAGE)
    assert status == 200, answer
    (output,) = json.loads(answer)["outputs"]
    (record,) = server.query({"meta.run": "image body"})
    assert headers["quadriga-inference-ids"] == record["id"] == output["parameters"]["inference_id"]
    assert record["metadata"] == {"camera_id": "north", "run": "image body"}
    assert record["input"]["mime"] == "image/jpeg"
    standard = server.query({"id": server.store(DETECTOR, photo)})[0]
    assert record["input"]["hash"] == standard["input"]["hash"]
    assert min(prediction["score"] for prediction in record["predictions"]) >= 0.8
    _, _, kept = server.request("GET", f"/api/inferences/{record['id']}/input")
    assert kept == photo
    status, headers, _ = server.request("POST", f"{PATH}?store=false", photo, IMAGE)
    assert (status, "quadriga-inference-ids" in headers) == (200, False)


def test_a_compressed_image_is_read(server, photo):
    headers = {**IMAGE, "Content-Encoding": "gzip"}
    status, _, answer = server.request("POST", PATH, gzip.compress(photo), headers)
    assert status == 200, answer


def test_a_key_of_a_request_stores_an_image_once(server, photo):
    url = f"http://{server.host}{PATH}?metadata={quote(json.dumps({'run': 'once'}))}"
    headers = {"Idempotency-Key": "once"}
    for _ in range(2):  # each form has a boundary of its own
        sent = httpx.post(url, files={"image": ("a.jpg", photo)}, headers=headers, timeout=60)
        assert sent.status_code == 200, sent.text
    assert len(server.query({"meta.run": "once"})) == 1
    other = httpx.post(f"{url}&top_k=1", content=photo, headers=headers | IMAGE, timeout=60)
    assert other.status_code == 409, other.text


@pytest.mark.parametrize(
    ("role", "size", "headers", "status"),
    [
        ("infer", None, IMAGE, 200),
        ("admin", None, IMAGE, 200),
        ("read", None, IMAGE, 403),
        (None, None, IMAGE, 401),
        ("infer", MAX_BYTES, IMAGE, 400),
        ("infer", MAX_BYTES + 1, IMAGE, 413),
        ("infer", MAX_BYTES + 1, FORM, 413),
        ("infer", None, IMAGE | {"Request-Timeout": "0.000001"}, 503),
    ],
)
def test_rights_sizes_and_times_are_those_of_json(guarded, photo, role, size, headers, status):  # noqa: PLR0917 - a row
    server, keys = guarded
    key = {} if role is None else {"Authorization": f"Bearer {keys[role]}"}
    body = photo if size is None else b"\0" * size
    actual, _, answer = server.request("POST", PATH, body, {**headers, **key})
    assert actual == status, answer


def test_images_are_counted_as_requests_of_their_model(server, photo):
    def count():
        labels = {"model": DETECTOR, "outcome": "success"}
        return total(scrape(server), "quadriga_request_duration_seconds_count", **labels)

    before = count()
    assert server.request("POST", PATH, photo, IMAGE)[0] == 200
    server.wait_until(lambda: count() == before + 1)
