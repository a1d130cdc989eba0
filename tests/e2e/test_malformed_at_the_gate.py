"""A request that is wrong is answered with a key as on a server without keys; without one it is not looked at."""

import json

import pytest

from tests.e2e.test_malformed import (
    BAD_BODIES,
    BAD_IMAGES,
    BAD_PATHS,
    BAD_QUERIES,
    CLASSIFIER,
    DETECTOR,
    QUERY,
    encoded,
    refused,
    tensor,
)
from tests.server_process import SAMPLE_MODELS, ServerProcess, image_input, quadriga

SIGNED = "path: image without a signature"
"""The one request that needs no key: the URL is signed."""

SEGMENTER = "/v2/models/shapes-segmenter/infer"
V1 = "/v1/models/shapes-detector:predict"
REQUESTS = {
    **{
        f"image: {name}, {path}": ("POST", path, json.dumps({"inputs": [image_input(image)]}))
        for name, image in BAD_IMAGES.items()
        for path in (DETECTOR, CLASSIFIER)
    },
    **{
        f"body: {name}, {path}": ("POST", path, encoded(body))
        for name, body in BAD_BODIES.items()
        for path in (DETECTOR, CLASSIFIER, SEGMENTER, V1)
    },
    **{f"query: {name}": ("POST", QUERY, encoded(body)) for name, body in BAD_QUERIES.items()},
    **{
        f"path: {name}": (method, path, json.dumps(tensor()) if method == "POST" else None)
        for name, (method, path, _) in BAD_PATHS.items()
    },
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Give a server with keys, and a key with all rights."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    made = quadriga("keys", "create", "--role", "admin", "--json", "--data", data)
    with ServerProcess(data, SAMPLE_MODELS) as server:
        yield server, {"Authorization": f"Bearer {json.loads(made.stdout)['key']}"}


def test_there_are_hundreds_of_kinds():
    assert len(REQUESTS) >= 500


def test_with_a_key_the_answers_are_those_of_an_open_server(server: ServerProcess, guarded):
    guarded_server, key = guarded
    for name, (method, path, body) in REQUESTS.items():
        status, _, answer = server.request(method, path, body)
        guarded_status, _, guarded_answer = guarded_server.request(method, path, body, key)
        assert guarded_status == status, name
        # Some options that are wrong for a detector are not for others.
        assert guarded_answer == answer or status == 200, name


def test_without_a_key_nothing_is_looked_at(guarded):
    guarded_server, key = guarded
    query = json.dumps({"where": {}})
    before = guarded_server.request("POST", QUERY, query, key)
    for name, (method, path, body) in REQUESTS.items():
        status, headers, answer = guarded_server.request(method, path, body)
        text = refused(status, headers, answer)
        assert status != 401 or "expected a key" in text, name
        expected = {400} if name == SIGNED else {401, 404, 405}
        assert status in expected, name
    assert guarded_server.request("POST", QUERY, query, key)[2] == before[2]
