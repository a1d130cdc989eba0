"""The commands, the program and the manifest of docs/elsewhere.md do what stands beside them."""

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import create_key
from tests.e2e.test_elsewhere import EVENT, SCENES, box, encoded, tensor_of, triton
from tests.pages import blocks, shell
from tests.server_process import SAMPLE_MODELS, ServerProcess

PAGE = blocks("docs/elsewhere.md")
CURL, ANSWER, HOOK, DESCRIBE, MANIFEST = (block.text for block in PAGE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    data = tmp_path_factory.mktemp("page") / "data"
    with ServerProcess(data, SAMPLE_MODELS / "shapes-detector") as running:
        yield running


def test_the_commands_of_the_page_do_what_it_says(server: ServerProcess) -> None:
    documented = json.loads(ANSWER)
    first, again = (
        json.loads(shell(CURL.replace("localhost:8080", server.host))) for _ in range(2)
    )
    assert first == documented
    assert (again["stored"], again["repeated"]) == (0, 1)
    assert again["inferences"][0]["ids"] == first["inferences"][0]["ids"]
    (record,) = server.query({"meta.camera_id": "north", "label": "star"})
    assert (record["model"]["name"], record["created_at"]) == ("plates", "2026-11-20T10:00:00.000Z")
    described = json.loads(shell(DESCRIBE.replace("localhost:8080", server.host)))
    assert server.call("GET", "/api/models/plates/description") == (200, described)
    assert server.call("GET", "/api/models/plates")[1]["labels"] == described["labels"]
    page = server.request("GET", f"/console/inferences/{record['id']}")[2]
    assert b"triangle" in page
    assert server.call("DELETE", "/api/models/plates/description") == (200, described)
    assert server.call("GET", "/api/models/plates/description")[0] == 404


def test_the_hook_of_the_page_logs_what_a_server_of_tensors_answered(server: ServerProcess) -> None:
    shell(DESCRIBE.replace("localhost:8080", server.host))
    names: dict[str, Any] = {"KEY": "none", "QUADRIGA": f"http://{server.host}"}
    exec(HOOK, names)
    image = SCENES[0].read_bytes()
    request, response = triton(server, tensor_of(image))
    answer = names["log"]("plates", request, response, key="hooked", image=encoded(image))
    (id_,) = answer["inferences"][0]["ids"]
    predictions = server.call("GET", f"/api/inferences/{id_}")[1]["predictions"]
    ours = server.call("GET", f"/api/inferences/{server.store('shapes-detector', image)}")[1]
    assert [p["label"] for p in predictions] == [p["label"] for p in ours["predictions"]]


def test_the_logger_of_the_page_sends_its_events_to_a_server_with_keys(tmp_path: Path) -> None:
    """Send events as Go does with a password in the URL: as `Authorization: Basic`."""
    manifest = yaml.safe_load(MANIFEST)
    url = manifest["spec"]["predictor"]["logger"]["url"]
    assert manifest["metadata"]["name"] == "plates"
    data = tmp_path / "data"
    data.mkdir()
    database = f"sqlite:///{data / 'store.db'}"
    migrate(database)
    with writer_engine(database) as engine:
        _, key = create_key(engine, name="logger", roles=["infer"], models=("plates*",), team="a")
        _, reader = create_key(engine, name="reader", roles=["read"], team="a")
    path = url.partition("svc.cluster.local:8080")[2]
    user = url.partition("//")[2].partition("@")[0].replace("KEY", key)
    server = ServerProcess(data, SAMPLE_MODELS / "shapes-detector")
    server.start(ready=False)
    try:
        server.wait_until(lambda: server.request("GET", "/v2/health/ready")[0] == 200)

        def send(kind: str, body: Any, user: str, name: str = "plates") -> tuple[int, Any]:
            headers = {
                "Authorization": f"Basic {base64.b64encode(user.encode()).decode()}",
                "Ce-Specversion": "1.0",
                "Ce-Id": "1",
                "Ce-Type": EVENT + kind,
                "Ce-Source": "http://localhost:9081/",
                "Ce-Inferenceservicename": name,
                "Content-Encoding": "gzip",
            }
            packed = gzip.compress(json.dumps(body).encode())
            status, _, answer = server.request("POST", path, packed, headers)
            return status, json.loads(answer)

        request = {"instances": [{"b64": encoded(SCENES[0].read_bytes())}]}
        assert send("request", request, user)[1]["state"] == "waiting"
        assert send("response", {"predictions": [[box()]]}, user)[1]["state"] == "stored"
        assert send("request", request, user, "others")[0] == 403
        assert send("request", request, f"logger:{reader}")[0] == 403
        assert send("request", request, "logger:wrong")[0] == 401
        headers = {"Authorization": f"Bearer {reader}"}
        body = json.dumps({"where": {"model": "plates"}, "consistency": "journal"})
        _, _, page = server.request("POST", "/api/inferences/query", body, headers)
        (record,) = json.loads(page)["inferences"]
        assert record["team"] == "a"
        items = {"inferences": [{"model": "plates", "predictions": [box()]}, {"model": "others"}]}
        with_key = {"X-API-Key": key}
        _, _, answer = server.request("POST", "/api/inferences", json.dumps(items), with_key)
        assert [refused["item"] for refused in json.loads(answer)["refused"]] == [1]
        assert "key for the model 'others'" in json.loads(answer)["refused"][0]["reason"]
    finally:
        server.stop()


def test_bodies_that_are_large_compressed_or_neither_are_bounded(server: ServerProcess) -> None:
    item = {"model": "large", "predictions": [box()], "key": "gzip"}
    text = json.dumps(item).encode()
    gzipped = {"Content-Encoding": "gzip"}
    assert server.request("POST", "/api/inferences", gzip.compress(text), gzipped)[0] == 200
    assert server.request("POST", "/api/inferences", text, gzipped)[0] == 400
    assert server.request("POST", "/api/inferences", text, {"Content-Encoding": "br"})[0] == 415
    bomb = gzip.compress(b" " * (65 << 20))
    assert server.request("POST", "/api/inferences", bomb, gzipped)[0] == 413
    image = encoded(SCENES[0].read_bytes())
    count = (50 << 20) // len(image)
    items = [
        {"key": str(number), "image": image, "predictions": [box()]} for number in range(count)
    ]
    body = json.dumps({"model": "large", "inferences": items[:1000]})
    status, _, answer = server.request("POST", "/api/inferences", body)
    assert (status, json.loads(answer)["stored"]) == (200, len(items[:1000]))
    huge = json.dumps({**item, "image": "A" * (50 << 20)})
    status, _, answer = server.request("POST", "/api/inferences", huge)
    assert (status, b"expected a JPEG" in answer) == (400, True)
    assert server.request("POST", "/api/inferences", b" " * (65 << 20))[0] == 413
    assert server.call("GET", "/v2/health/ready")[0] == 200


def test_every_path_names_its_methods(server: ServerProcess) -> None:
    for path, methods in {
        "/api/inferences": "GET, OPTIONS, POST",
        "/api/cloudevents": "OPTIONS, POST",
        "/api/models/plates/description": "DELETE, GET, OPTIONS, PUT",
    }.items():
        status, headers, _ = server.request("OPTIONS", path)
        assert (status, headers["allow"]) == (204, methods), path
