"""The OpenAPI document of the protocols."""

import pytest

from quadriga.proto.http.openapi import add_keys, add_operations
from quadriga.proto.http.operations import HttpResponse, Operation
from quadriga.proto.http.v2 import InferAnswer, InferBody

INFER = Operation(
    "POST",
    "/m/{name}[/v/{version}]",
    lambda _: HttpResponse(b""),
    "Infer",
    need="infer",
    request_type=InferBody,
    response_type=InferAnswer,
    allows_binary=True,
    allows_image=True,
)
LOOK = Operation("GET", "/m/{name}", lambda _: HttpResponse(b""), "Look", need="key")
LOAD = Operation("POST", "/load", lambda _: HttpResponse(b""), "Load", need="operate")


def test_each_optional_part_of_a_path_is_described_as_a_path():
    paths = add_operations({}, [INFER, LOOK])["paths"]
    assert {path: sorted(item) for path, item in paths.items()} == {
        "/m/{name}": ["get", "post"],
        "/m/{name}/v/{version}": ["post"],
    }
    parameters = paths["/m/{name}/v/{version}"]["post"]["parameters"]
    assert [row["name"] for row in parameters if row["in"] == "path"] == ["name", "version"]


@pytest.mark.parametrize(
    ("operation", "statuses", "bodies", "answers"),
    [
        (
            INFER,
            ["200", "400", "404", "413", "501", "503"],
            ["application/json", "application/octet-stream", "image/*", "multipart/form-data"],
            ["application/json", "application/octet-stream"],
        ),
        (LOOK, ["200", "400", "404", "503"], [], ["application/json"]),
        (LOAD, ["200", "400", "404", "413", "501", "503"], ["application/octet-stream"], ["application/json"]),
    ],
)  # fmt: skip
def test_statuses_and_media_types(operation, statuses, bodies, answers):
    document = add_operations({"paths": {}, "components": {"schemas": {"Old": {}}}}, [operation])
    assert {"Old", "Error"} <= {*document["components"]["schemas"]}
    described = next(iter(document["paths"].values()))[operation.method.lower()]
    assert sorted(described["responses"]) == statuses
    assert sorted(described.get("requestBody", {"content": {}})["content"]) == bodies
    assert sorted(described["responses"]["200"]["content"]) == answers


def test_path_described_elsewhere_is_not_replaced():
    document = {"paths": {"/load": {"post": {"summary": "first"}}}}
    merged = add_operations(document, [LOAD])
    assert merged["paths"]["/load"]["post"] == {"summary": "first"}
    assert document == {"paths": {"/load": {"post": {"summary": "first"}}}}


def test_every_path_but_open_ones_names_its_keys():
    document = add_operations({"paths": {}, "components": {}}, [INFER, LOAD])
    merged = add_keys(document, {"/load"})
    closed, opened = merged["paths"]["/m/{name}"]["post"], merged["paths"]["/load"]["post"]
    assert {"401", "403"} <= set(closed["responses"])
    assert {name for row in closed["security"] for name in row} == set(
        merged["components"]["securitySchemes"]
    )
    assert "401" not in opened["responses"]
    assert opened["security"] == []
    assert "security" not in document["paths"]["/load"]["post"]
