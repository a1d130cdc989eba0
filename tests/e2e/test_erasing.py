"""Erasing on a real server: under kill -9, and with nothing of it in any file of the data folder afterwards."""

import json
import time
from pathlib import Path

import pytest

from tests.server_process import SAMPLE_MODELS, ServerProcess

CLASSIFY = "shapes-classifier"
PERSON = "person-6d1f0b92aa"
KILLS_AFTER_S = (0.0, 0.2)


def traces(folder: Path, *needles: bytes) -> list[str]:
    """Return the files that hold any of some bytes."""
    return [
        path.name
        for path in folder.rglob("*")
        if path.is_file() and any(needle in path.read_bytes() for needle in needles)
    ]


@pytest.mark.timeout(400)
def test_an_erasure_goes_on_after_kill_9_and_leaves_no_byte(
    data: Path, photo: bytes, shape: tuple[bytes, str]
) -> None:
    server = ServerProcess(data, SAMPLE_MODELS)
    for pause_s in KILLS_AFTER_S:
        server.start()
        mine = [server.store(CLASSIFY, photo, metadata={"person": PERSON}) for _ in range(20)]
        others = [server.store(CLASSIFY, shape[0], metadata={"person": "other"}) for _ in range(9)]
        digest = server.call("GET", f"/api/inferences/{mine[0]}")[1]["input"]["hash"]
        before = [server.call("GET", f"/api/inferences/{id_}")[1] for id_ in others]
        connection = server.connect()
        body = json.dumps({"where": {"meta.person": PERSON}, "erase": True})
        connection.request("POST", "/api/inferences/delete", body)
        folder = data / "erasures"
        server.wait_until(lambda folder=folder: any(folder.glob("pending/*-*")))
        time.sleep(pause_s)
        server.kill()
        connection.close()
        server.start()

        def is_complete() -> bool:
            _, answer = server.call("GET", "/api/erasures")
            return all(receipt["state"] == "complete" for receipt in answer["erasures"])

        server.wait_until(is_complete, 120)  # the image came a moment ago
        needles = [PERSON.encode(), digest[7:].encode(), photo[:400], *map(str.encode, mine)]
        assert traces(data, *needles) == []
        assert [server.call("GET", f"/api/inferences/{id_}")[1] for id_ in others] == before
        assert server.query({"meta.person": PERSON}) == []
        assert server.stop() == 0


def test_the_answer_is_the_receipt(data: Path, photo: bytes) -> None:
    with ServerProcess(data, SAMPLE_MODELS) as server:
        server.store(CLASSIFY, photo, metadata={"person": PERSON}, store_input=False)
        body = {"where": {"meta.person": PERSON}, "erase": True}
        status, answer = server.call("POST", "/api/inferences/delete", body)
        assert (status, answer["count"], answer["ids"]) == (200, 1, [])
        receipt = answer["erasure"]
        assert (receipt["state"], receipt["counts"]["images"]) == ("complete", 1)
        assert server.call("GET", f"/api/erasures/{receipt['id']}") == (200, receipt)
        assert server.call("GET", "/api/erasures/1")[0] == 404
        (line,) = [
            entry
            for entry in server.call("GET", "/api/audit")[1]["entries"]
            if entry["action"].endswith("/delete")
        ]
        assert line["target"] == f"erasure {receipt['id']} by meta.person"
        assert traces(data, PERSON.encode()) == []
