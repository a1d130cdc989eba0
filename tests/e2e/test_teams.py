"""Two teams on a real server: what each makes by inference, by bulk inference and by schedules is its own."""

import json
import time

import grpc
import pytest

from tests.grpc_client import Client
from tests.server_process import SAMPLE_MODELS, ServerProcess, image_input, quadriga

INFER = "/v2/models/shapes-detector/infer"
TEAMS = ("quality", "line.4")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bulk")
    image = next(SAMPLE_MODELS.rglob("*.jpg"))
    (folder / "a.jpg").write_bytes(image.read_bytes())
    flags = ("--grpc-port", "0", "--bulk-folder", str(folder))
    server = ServerProcess(tmp_path_factory.mktemp("teams") / "data", SAMPLE_MODELS, *flags)
    server.start()
    server.image = (folder / "a.jpg").read_bytes()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def keys(server):
    """A key of each team with all rights, and one of an administrator without a team."""
    made = {}
    for team in (*TEAMS, ""):
        options = ("--team", team) if team else ()
        answer = quadriga(
            "keys", "create", "--role", "admin", *options, "--json", "--data", server.data
        )
        made[team] = json.loads(answer.stdout)
    assert [made[team]["team"] for team in TEAMS] == [*TEAMS]
    server.wait_until(lambda: ask(server, "GET", "/v2", "")[0] == 401)
    server.wait_until(
        lambda: all(ask(server, "GET", "/v2", key["key"])[0] == 200 for key in made.values())
    )
    return {team: key["key"] for team, key in made.items()}


def ask(server, method, path, key, body=None):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    text = None if body is None else json.dumps(body)
    status, _, answer = server.request(method, path, text, headers)
    return status, json.loads(answer) if answer[:1] in (b"{", b"[") else answer


def ok(server, method, path, key, body=None):
    status, answer = ask(server, method, path, key, body)
    assert status in (200, 202), answer
    return answer


def ended(server, key, job):
    server.wait_until(lambda: ok(server, "GET", f"/api/jobs/{job['id']}", key)["ended_at"])
    return ok(server, "GET", f"/api/jobs/{job['id']}", key)


@pytest.fixture(scope="module")
def inferences(server, keys):
    """The id of an inference of each key."""
    body = {"inputs": [image_input(server.image)]}
    ids = {}
    for team, key in keys.items():
        answer = ok(server, "POST", INFER, key, body)
        ids[team] = answer["outputs"][0]["parameters"]["inference_id"]
    server.wait_until(
        lambda: ok(server, "POST", "/api/inferences/count", keys[""], {})["count"] == len(ids)
    )
    return ids


def test_a_team_sees_its_own_inferences_alone(server, keys, inferences):
    for team in TEAMS:
        page = ok(server, "POST", "/api/inferences/query", keys[team], {})
        assert [(one["id"], one["team"]) for one in page["inferences"]] == [
            (inferences[team], team)
        ]
        (model,) = [
            model
            for model in ok(server, "GET", "/api/models", keys[team])["models"]
            if model["name"] == "shapes-detector"
        ]
        assert model["inferences"] == 1
    other = f"/api/inferences/{inferences[TEAMS[1]]}"
    assert ask(server, "GET", other, keys[TEAMS[0]])[0] == 404
    everything = ok(server, "POST", "/api/inferences/query", keys[""], {})["inferences"]
    assert {one["id"] for one in everything} == set(inferences.values())
    assert "team" not in next(one for one in everything if one["id"] == inferences[""])


def test_what_is_of_the_whole_server_is_for_keys_without_a_team(server, keys, inferences):
    for path in ("/metrics", "/api/audit", "/v2/models/stats", "/v2/models/shapes-detector/stats"):
        assert ask(server, "GET", path, keys[""])[0] == 200
        assert ask(server, "GET", path, keys[TEAMS[0]])[0] == 403
    with Client(server.grpc) as client:
        rpc = client.channel.unary_unary("/inference.GRPCInferenceService/ModelStatistics")
        with pytest.raises(grpc.RpcError) as refusal:
            rpc(b"", metadata=(("x-api-key", keys[TEAMS[0]]),), timeout=60)
        assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_bulk_inference_makes_records_of_the_team_that_submits_it(server, keys, inferences):
    body = {"model": "shapes-detector", "source": "."}
    job = ok(server, "POST", "/api/inferences/bulk", keys[TEAMS[0]], body)
    assert ended(server, keys[TEAMS[0]], job)["state"] == "succeeded"
    where = {"where": {"meta.job_id": job["id"]}, "consistency": "journal"}
    for team, count in ((TEAMS[0], 1), (TEAMS[1], 0), ("", 1)):
        page = ok(server, "POST", "/api/inferences/query", keys[team], where)
        assert [one["team"] for one in page["inferences"]] == [TEAMS[0]] * count
    assert ask(server, "GET", f"/api/jobs/{job['id']}", keys[TEAMS[1]])[0] == 404


def test_nobody_else_may_name_a_team_in_a_header(server, keys, inferences):
    headers = {"X-Quadriga-Team": TEAMS[0], "Authorization": f"Bearer {keys[TEAMS[1]]}"}
    status, _, answer = server.request(
        "GET", f"/api/inferences/{inferences[TEAMS[0]]}", None, headers
    )
    assert status == 404, answer


def test_a_schedule_of_a_team_reads_its_own_inferences(server, keys, inferences):
    schedule = "/api/models/shapes-detector/drift-schedule"
    team, key = TEAMS[0], keys[TEAMS[0]]
    ok(server, "PUT", "/api/models/shapes-detector/baseline", key, {"rolling": "1h"})
    ok(server, "PUT", schedule, key, {"every": "5m", "delay": "0s"})
    position = server.data / "drift" / ".teams" / team / "shapes-detector.position.json"
    begin_s = (int(time.time()) // 300 - 1) * 300
    saved = position.with_name("shapes-detector.schedule.json")
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {"since_s": begin_s}))
    server.wait_until(
        lambda: ok(server, "GET", "/api/models/shapes-detector/drift", key)["windows"]
    )
    jobs = [job for job in ok(server, "GET", "/api/jobs", key)["jobs"] if job["kind"] == "drift"]
    assert jobs
    assert all(job["scope"] == {"team": team} for job in jobs)
    for other in (TEAMS[1], ""):
        assert ask(server, "GET", schedule, keys[other])[0] == 404
        assert not ok(server, "GET", "/api/models/shapes-detector/drift", keys[other])["windows"]
