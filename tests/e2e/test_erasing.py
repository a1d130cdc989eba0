"""Erasing on a real server: under kill -9, and with nothing of it in any file of the data folder after a vacuum."""

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.server_process import ROOT, SAMPLE_MODELS, ServerProcess, quadriga

CLASSIFY = "shapes-classifier"
PERSON = "person-6d1f0b92aa"
KILLS_AFTER_S = [0.2, 0.0]


def traces(folder: Path, *needles: bytes) -> list[str]:
    """Return the files that hold any of some bytes."""
    return [
        path.name
        for path in folder.rglob("*")
        if path.is_file() and any(needle in path.read_bytes() for needle in needles)
    ]


@pytest.mark.parametrize("pause_s", KILLS_AFTER_S)
def test_an_erasure_goes_on_after_kill_9_and_leaves_no_byte(
    data: Path, photo: bytes, shape: tuple[bytes, str], pause_s: float
) -> None:
    server = ServerProcess(data, SAMPLE_MODELS)
    server.start()
    mine = [server.store(CLASSIFY, photo, metadata={"person": PERSON}) for _ in range(20)]
    others = [server.store(CLASSIFY, shape[0], metadata={"person": "other"}) for _ in range(9)]
    digest = server.call("GET", f"/api/inferences/{mine[0]}")[1]["input"]["hash"]
    before = [server.call("GET", f"/api/inferences/{id_}")[1] for id_ in others]
    connection = server.connect()
    body = json.dumps({"where": {"meta.person": PERSON}, "erase": True})
    connection.request("POST", "/api/inferences/delete", body)
    folder = data / "erasures"
    server.wait_until(lambda: any(folder.glob("pending/[0-9]*")))
    time.sleep(pause_s)
    server.kill()
    connection.close()
    server.start()

    def is_complete() -> bool:
        _, answer = server.call("GET", "/api/erasures")
        return all(receipt["state"] == "complete" for receipt in answer["erasures"])

    server.wait_until(is_complete, 120)  # the image came a moment ago
    needles = [PERSON.encode(), digest[7:].encode(), photo[:400], *map(str.encode, mine)]
    assert set(traces(data, *needles)) <= {"store.db"}  # where SQLite moved rows
    assert "bytes smaller" in quadriga("store", "vacuum", "--data", data).stdout
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
        assert set(traces(data, PERSON.encode())) <= {"store.db"}


def answered(answer: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line on a terminal on which somebody answers its question."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        return subprocess.run(
            [sys.executable, "-m", "quadriga.engine.cli", *map(str, arguments)],
            cwd=ROOT, stdin=theirs, timeout=120, capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)


def test_the_command_asks_erases_and_prints_the_receipt(
    data: Path, tmp_path: Path, photo: bytes, shape: tuple[bytes, str]
) -> None:
    with ServerProcess(data, SAMPLE_MODELS) as server:
        mine = [
            server.store(CLASSIFY, photo, metadata={"person": PERSON}, store_input=False)
            for _ in range(3)
        ]
        other = server.store(CLASSIFY, shape[0], metadata={"person": "other"}, store_input=False)
        where = f"meta.person={PERSON}"
        to_server = ("--server", f"http://{server.host}")
        refused = quadriga("erase", where, *to_server, code=2)
        assert "--yes is required where nobody can be asked" in " ".join(refused.stderr.split())
        declined = answered("n", "erase", where, *to_server)
        assert declined.returncode == 1
        assert "3 inferences match on http://" in declined.stderr
        assert len(server.query({"meta.person": PERSON})) == 3

        accepted = answered("y", "erase", where, *to_server)
        assert accepted.returncode == 0, accepted.stderr
        assert "is complete\n  3 inferences removed" in accepted.stdout
        assert "- backups and snapshots of the data folder" in accepted.stdout
        assert server.query({"meta.person": PERSON}) == []
        assert set(traces(data, PERSON.encode(), *map(str.encode, mine))) <= {"store.db"}
        (receipt,) = server.call("GET", "/api/erasures")[1]["erasures"]
        assert receipt["fields"] == ["meta.person"]

        image = tmp_path / "shape.png"
        image.write_bytes(shape[0])
        by_image = quadriga("erase", "--image", image, "--yes", "--json", *to_server)
        receipt = json.loads(by_image.stdout)
        assert (receipt["state"], receipt["counts"]["inferences"]) == ("complete", 1)
        assert receipt["fields"] == ["input.hash"]
        assert set(traces(data, other.encode())) <= {"store.db"}
