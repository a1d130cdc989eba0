"""A version is `name@version`, a text or a whole number, wherever a method takes one."""

import json

import pytest

from quadriga.client import Client
from quadriga.client.errors import InputError
from quadriga.client.versions import split_version
from tests.unit.client.conftest import inferred, json_response


@pytest.mark.parametrize(
    ("arguments", "name", "version"),
    [
        (("m",), "m", None), (("m", 2), "m", "2"), (("m", "2"), "m", "2"), (("m@2",), "m", "2"), (("m@2", 2), "m", "2"),
        (("m@2", "2"), "m", "2"), (("m@2024-01.a",), "m", "2024-01.a"), (("m:2",), "m:2", None), (("m", 0), "m", "0"),
    ],
)  # fmt: skip
def test_a_version_may_stand_with_the_name(arguments, name, version):
    assert split_version(*arguments) == (name, version)


@pytest.mark.parametrize(
    "arguments", [("m@",), ("@2",), ("@",), ("m@1", 2), ("m@1", "2"), ("m@1", "")]
)
def test_two_versions_and_half_names_are_refused(arguments):
    with pytest.raises(InputError, match=r"expected a model as name or name@version|expected one"):
        split_version(*arguments)


def paths_and_bodies(server) -> list[tuple[str, dict]]:
    found = []
    for request in server.requests:
        head, _, body = request.partition(b"\r\n\r\n")
        found.append((head.split(b" ")[1].decode(), json.loads(body) if body else {}))
    return found


IMAGE = b"image"
JOB = {"id": "j", "state": "succeeded", "inferences": [{"ids": ["1"]}]}
COMPARED = [{"model": "m", "version": "1"}, {"model": "m", "version": "3"}, {"model": "n"}]


@pytest.mark.parametrize(
    ("call", "path", "body"),
    [
        (lambda c: c.models.promote("m", 2), "/api/models/m/promote", {"version": "2"}),
        (lambda c: c.models.metadata("m@2"), "/v2/models/m/versions/2", {}),
        (lambda c: c.models.config("m", 2), "/v2/models/m/versions/2/config", {}),
        (lambda c: c.models.set_baseline("m", version=2, where=None), "/api/models/m/baseline", {"version": "2"}),
        (lambda c: c.traffic.set("m", {1: 0.9, "2": 0.1}), "/api/models/m/traffic", {"shares": {"1": 0.9, "2": 0.1}}),
        (lambda c: c.schedules.set_evaluation("m", "1d", version=2), "/api/models/m/evaluation-schedule",
         {"every": "1d", "version": "2"}),
        (lambda c: c.inferences.bulk("m@2", "."), "/api/inferences/bulk", {"model": "m", "version": "2", "source": "."}),
        (lambda c: c.inferences.replay("m@2", {"label": "a"}, from_="-1d"), "/api/replays",
         {"model": "m", "version": "2", "where": {"label": "a"}, "from": "-1d"}),
        (lambda c: c.inferences.compare("m@1", "m@2"), "/api/inferences/comparison",
         {"a": "m@1", "b": "m@2", "consistency": "journal"}),
        (lambda c: c.evaluate("m@2", wait=False), "/api/evaluations", {"model": "m", "version": "2"}),
        (lambda c: c.evaluate("m", version=2, wait=False, compare=["m@1", {"model": "m", "version": 3}, "n"]),
         "/api/evaluations", {"model": "m", "version": "2", "compare": COMPARED}),
        (lambda c: c.drift("m", wait=False, baseline={"version": 1}, from_="-1d"), "/api/drift",
         {"model": "m", "baseline": {"version": "1"}, "from": "-1d"}),
    ],
)  # fmt: skip
def test_versions_reach_the_server_as_texts(server, call, path, body):
    server.answers(json_response(JOB))
    with Client(server.url, key="", retries=0) as client:
        call(client)
    assert paths_and_bodies(server) == [(path, body)]


def test_inferences_of_a_version_go_to_its_path(server):
    server.answers(inferred())
    with Client(server.url, key="", retries=0) as client:
        client.infer("m@2", IMAGE)
        client.infer("m", IMAGE, version=2)
        list(client.infer_many("m@2", [IMAGE]))
        with pytest.raises(InputError, match="expected one version"):
            client.infer("m@2", IMAGE, version=1)
        paths = {request.split(b" ")[1] for request in server.requests}
        server.answers(json_response(JOB))
        client.log("m@2", predictions=[], key="k")
    assert paths == {b"/v2/models/m/versions/2/infer"}
    logged = json.loads(server.requests[-1].partition(b"\r\n\r\n")[2])
    assert (logged["model"], logged["version"]) == ("m", "2")
