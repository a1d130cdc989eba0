"""The commands of docs/store.md run as they stand, and answer what stands beside them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pages import blocks, invoke, shell
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess

PAGE = blocks("docs/store.md")
ID = "249612889206292480"
"""Id of the inference on the page."""


def kinds(value: Any) -> Any:
    """Give the shape of a JSON value: names of keys, and of lists the first element."""
    if isinstance(value, dict):
        return {name: kinds(item) for name, item in value.items()}
    return [kinds(value[0])] if isinstance(value, list) and value else type(value).__name__


def documented(*keys: str) -> Any:
    """Return the answer of the page that has these keys."""
    answers = [json.loads(block.text) for block in PAGE if block.language == "json"]
    (answer,) = (block for block in answers if set(keys) <= block.keys())
    return answer


def test_the_commands_of_the_page_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = (IMAGES / "detection" / "scene_05.jpg").read_bytes()
    metadata = json.dumps({"camera_id": "north", "altitude": 120.5, "note": "dusk"})
    (tmp_path / "annotations.jsonl").symlink_to(IMAGES / "detection" / "annotations.jsonl")
    commands = [block.text for block in PAGE if block.language == "sh"]
    *queries, rebuild, migrate = commands
    data = tmp_path / "data"
    with ServerProcess(data, SAMPLE_MODELS / "shapes-detector") as server:
        inference_id = server.store("shapes-detector", image, metadata=metadata)
        (record,) = server.query({})
        described = documented("request_id", "image_no")
        assert described.keys() <= record.keys()
        for name in ("model", "input"):
            assert kinds(described[name]) == kinds(record[name]), name
        answers = []
        for command in queries:
            local_command = command.replace("localhost:8080", server.host).replace(ID, inference_id)
            answers.append(json.loads(shell(local_command, tmp_path)))
        changed, truth, stated, by_path, reviewed, feedback, deleted, erased, counted, rule = (
            answers
        )
        assert changed["metadata"] == {"camera_id": "north", "altitude": 121, "operator": "amy"}
        history = server.call("GET", f"/api/inferences/{inference_id}/metadata/history")[1]
        assert kinds(history) == kinds(documented("history"))
        assert history["history"][0]["set"] == documented("history")["history"][0]["set"]
        assert [annotation["label"] for annotation in truth["ground_truth"]] == ["star"]
        none_refused = {"matched": 0, "refused": [], "refused_more": 0}
        assert stated == {"stated": 2, **none_refused}
        assert by_path == {"stated": 24, **none_refused}
        current = server.call("GET", f"/api/inferences/{inference_id}/ground-truth")[1]
        assert kinds(current) == kinds(documented("revision"))
        assert (current["annotations"], current["source"]) == (truth["ground_truth"], "eve")
        assert current["review"] == reviewed["ground_truth_review"] == "approved"
        assert [annotation["comment"] for annotation in feedback["feedback"]] == ["well seen"]
        assert deleted == {"count": 0, "ids": [], "more": False}
        assert erased["erasure"].keys() == documented("erasure")["erasure"].keys()
        assert (erased["count"], erased["erasure"]["state"]) == (0, "complete")
        assert counted["groups"][0].keys() == documented("groups")["groups"][0].keys()
        assert counted["source"] == documented("groups")["source"]
        assert rule["inferences_days"] == 90
        job = server.call("POST", "/api/exports", {"format": "jsonl"})[1]
        assert job.keys() == documented("starts").keys()
        listed = {block.name for block in data.iterdir()}
    monkeypatch.chdir(tmp_path)
    (tree,) = (block.text for block in PAGE if block.text.startswith("DATA/"))
    names = [line.split()[0].rstrip("/") for line in tree.splitlines()[1:]]
    assert {"journal", "journal.offsets", "store.db", "blobs", "jobs"} <= listed & set(names)
    (files,) = (block.text for block in PAGE if block.text.startswith("quadriga export"))
    export, bring, correct = files.splitlines()
    replaced = {
        '"label": "circle"': '"label": "star"',
        "--data DATA": f"--data {data}",
        "postgresql://user@host/quadriga": f"sqlite:///{tmp_path}/other.db",
    }
    for command in (f"{export} --data {data}", bring, rebuild, migrate):
        local_command = command
        for old, new in replaced.items():
            local_command = local_command.replace(old, new, 1)
        assert invoke(local_command)
    assert correct.endswith("--as ground-truth")
