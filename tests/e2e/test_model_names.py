"""Every door that takes the name of a model, asked by its folder, by `M-<ID>`, and by a name that nobody has.

The doors are those of the OpenAPI document, of the gRPC services and of the command line: a new one without a row
here fails.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import grpc
import pytest

from quadriga.engine.cli import main
from quadriga.proto.grpc.messages import POOL, SERVICE, message_class
from quadriga.store.records.records import timestamp_text
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess, image_input, quadriga

FOLDER, ID, UNKNOWN = "shapes-classifier", "M-Shapes-CLASSIFIER", "shapes-clasifier"
IMAGE = min((IMAGES / "classification").glob("*.jpg")).read_bytes()
V2_BODY = {"inputs": [image_input(IMAGE)]}
V1_BODY = {"instances": [{"b64": V2_BODY["inputs"][0]["data"][0]}]}
BODIES: dict[str, Any] = {
    "infer": V2_BODY,
    "generate": {"text_input": "?", "image": V1_BODY["instances"][0]["b64"]},
    "generate_stream": {"text_input": "?", "image": V1_BODY["instances"][0]["b64"]},
    "predict": V1_BODY,
    "explain": V1_BODY,
    "classify": {"examples": [{"image": V1_BODY["instances"][0]}]},
    "regress": {"examples": [{"image": V1_BODY["instances"][0]}]},
    "load": {},
    "unload": {},
    "retention": {"inputs_days": 7},
    "baseline": {"name": "default"},
    "drift-schedule": {"every": "1h"},
    "evaluation-schedule": {"every": "1d"},
    "traffic": {"shares": {"1": 1}},
    "promote": {"version": "1"},
    "drift-mute": {"until": timestamp_text(time.time_ns() // 1_000_000 + 3_600_000)},
}
"""Body of a request by the last word of its path."""

LABELING = '<View><Image name="i" value="$image"/><Choices name="c" toName="i"><Choice value="star"/></Choices></View>'
LABEL_STUDIO_BODIES: dict[str, Any] = {
    "setup": {"schema": LABELING},
    "predict": {"tasks": [], "label_config": LABELING},
    "webhook": {"action": "PROJECT_UPDATED"},
}
"""Likewise of the paths that Label Studio calls."""

NAMED_IN_BODY: dict[str, Any] = {
    "/api/inferences/query": lambda name: {"where": {"model": name}},
    "/api/inferences/count": lambda name: {"where": {"model": {"in": [name]}}},
    "/api/inferences/aggregate": lambda name: {"where": {"model": name}, "metrics": ["count"]},
    "/api/inferences/facets": lambda name: {"where": {"model": name}},
    "/api/inferences/label-queue": lambda name: {"where": {"model": name}},
    "/api/inferences/disagreements": lambda name: {"a": name, "b": "shapes-detector"},
    "/api/inferences/comparison": lambda name: {"a": name, "b": "shapes-detector"},
    "/api/inferences/delete": lambda name: {"where": {"model": name}, "dry_run": True},
    "/api/inferences/bulk": lambda name: {"model": name, "source": "."},
    "/api/replays": lambda name: {"model": name, "version": "1"},
    "/api/exports": lambda name: {"where": {"model": name}},
    "/api/evaluations": lambda name: {"model": name},
    "/api/drift": lambda name: {"model": name, "baseline": {"from": "-2h", "to": "-1h"}},
}
NAMELESS = {
    "/", "/api/audit", "/api/cloudevents", "/api/blobs/{digest}", "/api/erasures", "/api/erasures/{erasure_id}", "/api/ground-truth",
    "/api/inferences/{inference_id}",
    "/api/inferences/{inference_id}/feedback", "/api/inferences/{inference_id}/ground-truth",
    "/api/inferences/{inference_id}/ground-truth/history",
    "/api/inferences/{inference_id}/input", "/api/inferences/{inference_id}/metadata",
    "/api/inferences/{inference_id}/metadata/history",
    "/api/inferences/{inference_id}/neighbours", "/api/inferences/{inference_id}/similar",
    "/api/reports/{report_id}/inferences", "/api/jobs", "/api/jobs/{job_id}",
    "/api/jobs/{job_id}/cancel", "/api/jobs/{job_id}/result", "/api/models", "/api/reports", "/api/views", "/api/views/{view}",
    "/api/reports/{report_id}", "/api/reports/{report_id}/page", "/api/reports/{report_id}/acknowledge", "/infer", "/metrics", "/ready",
    "/v1/models", "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models", "/v2/models/stats",
    "/v2/repository/index",
}  # fmt: skip
"""Paths that name no model."""

OF_ANY_MODEL = {"/api/models/{name}/description"}
"""Paths that take models that nobody knows yet, as those that are served elsewhere are."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with tempfile.TemporaryDirectory() as folder:
        data, models = Path(folder) / "data", Path(folder) / "models"
        shutil.copytree(SAMPLE_MODELS, models, ignore=shutil.ignore_patterns("training", "images"))
        with (models / FOLDER / "model.toml").open("a") as file:
            file.write('[runtime]\nversion_labels = ["stable"]\n')
        images = ("--bulk-folder", str(IMAGES / "classification"))
        with ServerProcess(data, models, "--grpc-port", "0", *images) as running:
            running.store(FOLDER, IMAGE)
            running.query({})
            yield running


@pytest.fixture(scope="module")
def paths(server: ServerProcess) -> dict[str, list[str]]:
    _, document = server.call("GET", "/schema/openapi.json")
    return {
        path: [method.upper() for method in operations if method != "parameters"]
        for path, operations in document["paths"].items()
    }


TABLES = ("/api/inferences.arrow", "/api/inferences.parquet")


def test_every_path_has_a_row(paths: dict[str, list[str]]) -> None:
    named_in_url = {"/api/inferences", "/api/inferences/tail", *TABLES}
    rows = NAMED_IN_BODY.keys() | NAMELESS | named_in_url
    assert {path for path in paths if "{name}" not in path} == rows


def call(server: ServerProcess, method: str, path: str) -> tuple[int, Any]:
    last_word = path.replace(":", "/").rpartition("/")[2]
    bodies = LABEL_STUDIO_BODIES if path.startswith("/label-studio/") else BODIES
    body = bodies.get(last_word) if method in {"POST", "PUT"} else None
    status, _, answer = server.request(method, path, None if body is None else json.dumps(body))
    return status, answer.decode()


def test_paths_take_every_spelling(server: ServerProcess, paths: dict[str, list[str]]) -> None:
    table = []
    for path, methods in paths.items():
        if "{name}" not in path or path in OF_ANY_MODEL:
            continue
        filled = path.replace("{version}", "1").replace("{label}", "stable")
        for method in sorted(methods, key=["POST", "PUT", "GET", "DELETE"].index):
            by_name = {
                name: call(server, method, filled.replace("{name}", name))
                for name in (FOLDER, ID, UNKNOWN)
            }
            if path.endswith("unload"):
                assert call(server, "POST", f"/v2/repository/models/{ID}/load")[0] == 200
            # The second finds nothing left to delete; without a rule the traffic is as by default.
            if method == "DELETE" and not path.endswith("/traffic"):
                assert by_name.pop(ID)[0] == 404
                by_name[ID] = by_name[FOLDER]
            table.append((method, path, [by_name[name][0] for name in (FOLDER, ID, UNKNOWN)]))
            assert by_name[FOLDER][0] == by_name[ID][0], (method, path, by_name[ID])
            status, error = by_name[UNKNOWN]
            if path.startswith("/v1/"):  # whose errors are TF Serving's; a label is read first
                assert status == (400 if "{label}" in path else 404), (method, path, error)
            else:
                assert status == 404, (method, path, error)
                assert f"did you mean {FOLDER}" in error, (method, path, error)
    served = [row for row in table if row[2][0] in {200, 202}]
    assert len(served) > 30, table


@pytest.mark.parametrize("path", NAMED_IN_BODY)
def test_bodies_take_every_spelling(server: ServerProcess, path: str) -> None:
    statuses = {}
    for name in (FOLDER, ID):
        statuses[name], answer = server.call("POST", path, NAMED_IN_BODY[path](name))
        assert statuses[name] in {200, 202}, answer
        if path in {"/api/evaluations", "/api/drift", "/api/inferences/bulk"}:
            assert answer["parameters"]["model"] == FOLDER
        if path == "/api/inferences/count":
            assert answer["count"] > 0
    status, answer = server.call("POST", path, NAMED_IN_BODY[path](UNKNOWN))
    assert (status, f"did you mean {FOLDER}" in answer["error"]) == (404, True)


def test_urls_take_every_spelling(server: ServerProcess) -> None:
    for name in (FOLDER, ID, f"{FOLDER}:1"):
        assert server.call("GET", f"/api/inferences?model={name}&limit=1")[1]["inferences"]
        for path in TABLES:
            assert server.request("GET", f"{path}?model={name}&limit=1")[0] == 200
    for path in ("/api/inferences", *TABLES):
        assert server.call("GET", f"{path}?model={UNKNOWN}")[0] == 404


def test_the_tail_takes_every_spelling(server: ServerProcess) -> None:
    for name, expected in ((FOLDER, 200), (ID, 200), (f"{FOLDER}:1", 200), (UNKNOWN, 404)):
        connection = server.connect()
        path = f"/api/inferences/tail?model={name}"
        connection.request("GET", path, headers={"Accept": "text/event-stream"})
        assert connection.getresponse().status == expected, name
        connection.close()


GRPC_ROWS = {
    "ModelReady": "name",
    "ModelMetadata": "name",
    "ModelConfig": "name",
    "ModelStatistics": "name",
    "ModelInfer": "model_name",
    "ModelStreamInfer": "model_name",
    "RepositoryModelUnload": "model_name",
    "RepositoryModelLoad": "model_name",
}
"""Field that names the model in the request of each method."""

GRPC_NAMELESS = {"ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex"}


def test_grpc_takes_every_spelling(server: ServerProcess) -> None:
    methods = POOL.FindServiceByName(SERVICE).methods_by_name
    assert set(methods) == GRPC_ROWS.keys() | GRPC_NAMELESS
    with grpc.insecure_channel(server.grpc) as channel:
        for method, field in GRPC_ROWS.items():
            outcomes = {
                name: _grpc_outcome(channel, method, field, name) for name in (FOLDER, ID, UNKNOWN)
            }
            assert outcomes[FOLDER] == outcomes[ID], (method, outcomes)
            code, detail = outcomes[UNKNOWN]
            if method != "ModelReady":  # which answers that it is not ready
                assert code == "NOT_FOUND", (method, outcomes)
                assert f"did you mean {FOLDER}" in detail


def _grpc_outcome(channel: grpc.Channel, method: str, field: str, name: str) -> tuple[str, str]:
    descriptor = POOL.FindServiceByName(SERVICE).methods_by_name[method]
    request = message_class(descriptor.input_type.name)(**{field: name})
    if field == "model_name" and "Infer" in method:
        request.inputs.add(
            name="image", datatype="BYTES", shape=[1], contents={"bytes_contents": [IMAGE]}
        )
    path = f"/{SERVICE}/{method}"
    encode = type(request).SerializeToString
    decode = message_class(descriptor.output_type.name).FromString
    try:
        if method == "ModelStreamInfer":
            stream = channel.stream_stream(path, encode, decode)(iter([request]), timeout=30)
            answers = list(stream)
            error = answers[0].error_message if answers else ""
            return ("NOT_FOUND" if "not found" in error else "OK"), error
        answer = channel.unary_unary(path, encode, decode)(request, timeout=30)
        if method == "ModelReady":
            assert answer.ready == (name != UNKNOWN)
    except grpc.RpcError as error:
        return error.code().name, error.details().replace(ID, FOLDER)
    return "OK", ""


COMMANDS = {
    "query": lambda name, data: ("query", f"model={name}", "--data", data),
    "export": lambda name, data: (
        "export", f"model={name}", "--data", data, "--output", f"{data}.jsonl",
    ),
    "import": lambda name, data: (
        "import", f"{data}.jsonl", "--as", "ground-truth", "--dry-run", "--model", name, "--data", data,
    ),
    "evaluate": lambda name, data: ("evaluate", "--model", name, "--data", data),
    "select": lambda name, data: (
        "select", "--model", name, "--data", data, "--output", f"{data}.zip",
    ),
    "drift": lambda name, data: (
        "drift", "--model", name, "--data", data, "--baseline-from", "-1d", "--baseline-to", "now",
    ),
}  # fmt: skip
SERVER_COMMANDS = {"baseline", "erase", "reports"}
"""Commands that ask a server: what they are answered stands in the rows of its paths."""


def test_commands_take_every_spelling(server: ServerProcess) -> None:
    context = click.Context(main)
    all_commands = {name: main.get_command(context, name) for name in main.list_commands(context)}
    named = {
        name
        for name, command in all_commands.items()
        if {parameter.name for parameter in command.params} & {"model", "filter_text"}
        and not any(
            isinstance(parameter, click.Argument) and parameter.name == "model"
            for parameter in command.params
        )
    }
    assert named == COMMANDS.keys() | SERVER_COMMANDS
    server.query({})  # commands see what is in the database, and this waits until everything is
    for command in COMMANDS.values():

        def lines(name: str, command: Any = command) -> int:
            return quadriga(*command(name, server.data), code=0).stdout.count("\n")

        # Signals of the last images follow their inferences.
        server.wait_until(lambda count=lines: count(FOLDER) == count(ID))
        unknown = quadriga(*command(UNKNOWN, server.data), code=2)
        assert f"did you mean {FOLDER}" in unknown.stderr


def test_the_list_of_models_has_what_is_served_and_stored(server: ServerProcess) -> None:
    server.query({})
    status, listed = server.call("GET", "/api/models")
    assert (status, len(listed["models"])) == (200, 5)
    model = next(model for model in listed["models"] if model["name"] == FOLDER)
    assert (model["id"], model["served"], model["task"]) == (
        f"m-{FOLDER}",
        True,
        "IMAGE_CLASSIFICATION",
    )
    assert model["inferences"] == model["versions"][0]["inferences"] > 0
    assert (model["label_count"], model["versions"][0]["state"]) == (5, "READY")
    assert server.call("GET", f"/api/models/{ID}")[1]["name"] == FOLDER
    printed = quadriga(
        "models", "--server", f"http://{server.host}", env={**os.environ, "COLUMNS": "160"}
    ).stdout
    assert all(name in printed for name in ("shapes-classifier", "shapes-detector", "1 ready"))
    as_json = quadriga("models", "--server", f"http://{server.host}", "--json").stdout
    assert [model["name"] for model in json.loads(as_json)["models"]] == sorted(
        model["name"] for model in listed["models"]
    )
