"""A version run over stored images by a job: what it stores and finds, twice, over deaths, and for teams."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tests.pages import blocks, shell
from tests.server_process import ROOT, ServerProcess, quadriga
from tests.two_versions import MODEL, images, truths, write_two_versions

REPLAY = f"{MODEL}~replay"
COUNT = 12
"""Images that version 1 has answered."""

LARGE_PHOTOS = 40
"""More than a job sends between two looks at whether it was cancelled."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_two_versions(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on which version 1 has answered, with ground truth."""
    with ServerProcess(tmp_path_factory.mktemp("replay") / "data", models) as running:
        answer_by_first(running)
        yield running


def answer_by_first(server: ServerProcess) -> None:
    names = set()
    for name, light, image in list(images())[:COUNT]:
        metadata = json.dumps({"path": name, "light": light, "at": {"camera": "north"}})
        server.store(f"{MODEL}/versions/1", image, metadata=metadata)
        names.add(name)
    lines = [line for line in truths().splitlines() if json.loads(line)["path"] in names]
    status, _, answer = server.request("POST", "/api/ground-truth", b"\n".join(lines))
    assert status == 200, answer


def submit(server: ServerProcess, **parameters: Any) -> str:
    body = {"model": MODEL, "version": "2", **parameters}
    status, job = server.call("POST", "/api/replays", body)
    assert status == 202, job
    assert (job["kind"], job["parameters"]["model"]) == ("replay", MODEL)
    return str(job["id"])


def report_of(server: ServerProcess, job_id: str) -> dict[str, Any]:
    job = server.ended(job_id)
    assert job["state"] == "succeeded", job
    return dict(server.call("GET", f"/api/jobs/{job_id}/result")[1])


def counts(**values: int) -> dict[str, int]:
    names = ("selected", "replayed", "known", "gone", "failed", "unstored")
    return {name: values.get(name, 0) for name in names}


def evaluate(server: ServerProcess, other: dict[str, str]) -> Any:
    """Return what an evaluation of version 1 says of another model on the same images."""
    body = {"model": MODEL, "version": "1", "compare": [other]}
    status, job = server.call("POST", "/api/evaluations", body)
    assert status == 202, job
    assert server.ended(job["id"])["state"] == "succeeded"
    (comparison,) = server.call("GET", f"/api/reports/{job['id']}")[1]["comparisons"]
    return comparison["n"], comparison["metrics"], comparison["differences"]


def test_a_replay_is_stored_beside_its_originals_and_compared_with_them(server) -> None:
    originals = {one["id"]: one for one in server.query({"model": MODEL})}
    assert len(originals) == COUNT
    report = report_of(server, submit(server))
    assert report["counts"] == counts(selected=COUNT, replayed=COUNT)
    replays = server.query({"model": REPLAY})
    assert {one["standard_metadata"]["replay_of"] for one in replays} == set(originals)
    differing = 0
    for replay in replays:
        original = originals[replay["request_id"]]
        for field in ("created_at", "metadata", "input", "task", "action", "image_no"):
            assert replay[field] == original[field], field
        assert (replay["model"]["name"], replay["model"]["version"]) == (REPLAY, "2")
        image = server.request("GET", f"/api/inferences/{original['id']}/input")[2]
        direct = server.infer(f"{MODEL}/versions/2", image, store=False)
        assert replay["predictions"] == direct["data"][0]
        sure = [one for one in replay["predictions"] if one["score"] >= 0.5]
        differing += len(sure) != len([p for p in original["predictions"] if p["score"] >= 0.5])
    comparison = report["comparison"]
    assert (comparison["paired_by"], comparison["pairs"]) == ("replay", COUNT)
    assert comparison["different"] >= differing > 0
    assert comparison["share"] == comparison["different"] / COUNT
    low, high = comparison["share_ci95"]
    assert 0 <= low < comparison["share"] < high <= 1
    assert len(comparison["disagreements"]) == comparison["different"]
    (compared,) = report["evaluation"]["comparisons"]
    replayed = (compared["n"], compared["metrics"], compared["differences"])
    assert replayed == evaluate(server, {"model": REPLAY, "version": "2"})
    assert any(metric["value"] for metric in compared["differences"])


def test_replays_are_left_out_of_what_does_not_name_them(server) -> None:
    report_of(server, submit(server))
    for where in (None, {"model": MODEL}, {"label": {"name": "circle"}}, {"version": "2"}):
        found = {one["model"]["name"] for one in server.query(where)}
        assert found <= {MODEL}
    assert server.call("POST", "/api/inferences/count", {})[1]["count"] == COUNT
    (group,) = server.call("POST", "/api/inferences/aggregate", {})[1]["groups"]
    assert group["count"] == COUNT
    (entry,) = server.call("GET", "/api/models")[1]["models"]
    assert (entry["name"], entry["inferences"]) == (MODEL, COUNT)
    assert [(one["version"], one["inferences"]) for one in entry["replays"]] == [("2", COUNT)]
    original = server.query({"model": MODEL}, limit=1)[0]["id"]
    (replay,) = server.query({"request_id": original})
    assert server.query({"std.replay_of": original}) == [replay]


def test_twice_is_once_and_another_version_is_another_replay(server) -> None:
    report_of(server, submit(server))
    ids = {one["id"] for one in server.query({"model": REPLAY})}
    again = report_of(server, submit(server))
    assert again["counts"] == counts(selected=COUNT, known=COUNT)
    assert again["comparison"]["pairs"] == COUNT
    assert {one["id"] for one in server.query({"model": REPLAY})} == ids
    few = report_of(server, submit(server, limit=5, where="meta.at.camera=north"))
    assert (few["counts"], few["comparison"]["pairs"]) == (counts(selected=5, known=5), 5)
    for nothing in ({"to": "-1d"}, {"where": {"meta.light": "none"}}, {"version": "1"}):
        job = server.ended(submit(server, **nothing))
        assert job["state"] == "failed"
        assert "no inferences of another version match" in job["error"]


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"version": "7"}, 400, "expected a version of 'shapes-detector' that is served here (2, 1), got '7'"),
        ({"model": "shapes-detektor"}, 404, "did you mean shapes-detector"),
        ({"model": REPLAY}, 400, "that is served here"),
        ({"limit": 0}, 400, "limit"),
        ({"where": {"and": 1}}, 400, "expected"),
        ({"from": "once"}, 400, "once"),
        ({"sha256": "ab"}, 400, "sha256"),
        ({"parameters": {"metadata": {}}}, 400, "metadata"),
        ({"threads": 2}, 400, "threads"),
    ],
)  # fmt: skip
def test_wrong_requests_are_refused(server, body, status, error) -> None:
    jobs = server.call("GET", "/api/jobs")
    answer = server.call("POST", "/api/replays", {"model": MODEL, "version": "2", **body})
    assert answer[0] == status, answer
    assert error in answer[1]["error"]
    assert server.call("GET", "/api/jobs") == jobs


def test_images_that_are_gone_are_counted(models, tmp_path) -> None:
    photos = [image for _, _, image in list(images())[:4]]
    with ServerProcess(tmp_path / "data", models) as server:
        for number, photo in enumerate(photos):
            server.store(f"{MODEL}/versions/1", photo, store_input=number != 0)
        (removed, *_) = server.query({"model": MODEL})
        digest = removed["input"]["hash"].removeprefix("blake3:")
        (blob,) = [path for path in (tmp_path / "data").rglob(f"*{digest[2:]}*") if path.is_file()]
        blob.unlink()
        report = report_of(server, submit(server))
        assert report["counts"] == counts(selected=4, replayed=2, gone=2)
        assert report["comparison"]["pairs"] == 2
        assert report["evaluation"] is None
        for one in server.query({"model": MODEL}):
            status = server.call("POST", "/api/inferences/delete", {"where": {"id": one["id"]}})[0]
            assert status == 200
        server.wait_until(lambda: not server.query({"model": MODEL}))
        assert len(server.query({"model": REPLAY})) == 2  # a filter by id names the originals alone


@pytest.mark.parametrize("role", ["cancelled", "jobs", "0", "everything"])
def test_a_job_that_was_ended_is_resumed_and_stores_each_image_once(
    models, tmp_path, role: str
) -> None:
    """The job is cancelled and submitted again; its process dies, or the worker; or the server is started again.

    The photos are large, so that the job is at work for seconds after its first record.
    """
    photo = cv2.imdecode(np.frombuffer(next(images())[2], np.uint8), cv2.IMREAD_COLOR)
    large = cv2.imencode(".jpg", cv2.resize(photo, (4000, 3000)))[1].tobytes()
    with ServerProcess(tmp_path / "data", models) as server:
        for number in range(LARGE_PHOTOS):
            # Bytes behind the end of a JPEG make it another file.
            server.store(f"{MODEL}/versions/1", large + bytes([number]))
        job_id = submit(server)
        server.wait_until(lambda: server.query({"model": REPLAY}, limit=1) if known(server) else [])
        if role == "cancelled":
            assert server.call("POST", f"/api/jobs/{job_id}/cancel")[0] == 200
            assert server.ended(job_id)["state"] == "cancelled"
            stored = len(server.query({"model": REPLAY}))
            assert 0 < stored < LARGE_PHOTOS
            job_id = submit(server)
            assert report_of(server, job_id)["counts"] == counts(
                selected=LARGE_PHOTOS, known=stored, replayed=LARGE_PHOTOS - stored
            )
        elif role == "everything":
            assert server.stop() == 0
            server.start()
        else:
            server.kill_child("jobs" if role == "jobs" else "worker")
            server.wait_until(lambda: server.call("GET", "/v2/health/ready")[0] == 200)
        report = report_of(server, job_id)
        done = report["counts"]["replayed"] + report["counts"]["known"]
        assert (done, report["comparison"]["pairs"]) == (LARGE_PHOTOS, LARGE_PHOTOS)
        times = Counter(one["request_id"] for one in server.query({"model": REPLAY}))
        assert len(times) == LARGE_PHOTOS
        assert set(times.values()) == {1}


def known(server: ServerProcess) -> bool:
    """Check whether replays are stored, so that a filter may name them."""
    entries = server.call("GET", "/api/models")[1]["models"]
    return any(entry["replays"] for entry in entries)


def test_a_team_replays_its_own_inferences_alone(models, tmp_path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data, models) as server:
        keys = {}
        for team, role in (("quality", "admin"), ("line", "admin"), ("quality", "monitor"), ("", "admin")):  # fmt: skip
            options = ("--team", team) if team else ()
            made = quadriga("keys", "create", "--role", role, *options, "--json", "--data", data)
            keys[team, role] = {"Authorization": f"Bearer {json.loads(made.stdout)['key']}"}

        def ask(team: str, method: str, path: str, body: Any = None, role: str = "admin") -> Any:
            text = None if body is None else json.dumps(body)
            status, _, answer = server.request(method, path, text, keys[team, role])
            return status, json.loads(answer)

        def ready() -> bool:
            answers = [server.request("GET", "/v2", None, key)[0] for key in keys.values()]
            return server.request("GET", "/v2")[0] == 401 and set(answers) == {200}

        def ended(team: str, job: Any) -> Any:
            path = f"/api/jobs/{job['id']}"
            server.wait_until(lambda: ask(team, "GET", path)[1]["ended_at"])
            assert ask(team, "GET", path)[1]["state"] == "succeeded", ask(team, "GET", path)
            return ask(team, "GET", f"{path}/result")[1]["counts"]

        server.wait_until(ready)
        photos = [image for _, _, image in list(images())[:3]]
        for team, photo in zip(("quality", "line", ""), photos, strict=True):
            headers = {**keys[team, "admin"], "Content-Type": "image/jpeg"}
            path = f"/v2/models/{MODEL}/versions/1/infer"
            assert server.request("POST", path, photo, headers)[0] == 200
        body = {"model": MODEL, "version": "2"}
        assert ask("quality", "POST", "/api/replays", body, role="monitor")[0] == 403
        job = ask("quality", "POST", "/api/replays", body)[1]
        assert ended("quality", job) == counts(selected=1, replayed=1)
        assert ask("line", "GET", f"/api/jobs/{job['id']}")[0] == 404
        query = {"where": {"std.replay_of": {"exists": True}}, "consistency": "journal"}

        def replays(team: str) -> list[str]:
            page = ask(team, "POST", "/api/inferences/query", query)[1]
            return sorted(one.get("team", "") for one in page["inferences"])

        assert (replays("quality"), replays("line"), replays("")) == (["quality"], [], ["quality"])
        job = ask("", "POST", "/api/replays", body)[1]
        assert ended("", job) == counts(selected=3, replayed=2, known=1)
        assert replays("line") == ["line"]
        assert replays("") == ["", "line", "quality"]


def test_nobody_but_a_job_says_what_is_replayed(models, tmp_path) -> None:
    data = tmp_path / "data"
    photo = next(images())[2]
    with ServerProcess(data, models) as server:
        made = quadriga("keys", "create", "--role", "admin", "--json", "--data", data)
        headers = {"Authorization": f"Bearer {json.loads(made.stdout)['key']}"}
        server.wait_until(lambda: server.request("GET", "/v2", None, headers)[0] == 200)
        server.wait_until(lambda: server.request("GET", "/v2")[0] == 401)
        answer = server.request(
            "POST",
            f"/v2/models/{MODEL}/infer?replay_of=1",
            photo,
            {**headers, "Content-Type": "image/jpeg"},
        )
        assert answer[0] == 200, answer
        body = json.dumps({"consistency": "journal"})
        (one,) = json.loads(server.request("POST", "/api/inferences/query", body, headers)[2])[
            "inferences"
        ]
        assert one["model"]["name"] == MODEL
        assert one["created_at"] > "2026"


def test_the_command_of_the_page_replays_and_compares(server, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("COLUMNS", "200")
    (replay,) = [block for block in blocks("docs/serving.md") if "quadriga replay" in block.text]
    program = f"{sys.executable} -m quadriga.engine.cli replay --server http://{server.host}"
    printed = shell(replay.text.replace("quadriga replay", program), tmp_path)
    assert f"of {COUNT} images replayed" in printed
    assert f"of {COUNT} pairs of a replay differ" in printed
    assert f"{REPLAY} 2" in printed
    assert "latency ms p95" in printed
    assert f"on {COUNT} images" in printed
