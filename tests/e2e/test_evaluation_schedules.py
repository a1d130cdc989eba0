"""A model that got worse is evaluated by its schedule; its truth arrives late, and the server restarts in between."""

import json
import time
from pathlib import Path
from typing import Any

from quadriga.store.records.ids import smallest_id_at
from tests.server_process import SAMPLE_MODELS, ServerProcess, quadriga
from tests.unit.monitor.drift.window_reports import receiver
from tests.unit.monitor.watch.test_webhook_client import raw_server, trickle

MODEL = "shapes-classifier"
PATH = f"/api/models/{MODEL}/evaluation-schedule"
HOUR_S = 3600
IMAGES_PER_HOUR = 60


def inferences(start_s: int) -> list[dict[str, Any]]:
    """Return what a model has answered within an hour, without ground truth."""
    first_id = smallest_id_at(start_s * 1000)
    return [
        {
            "id": str(first_id + (number << 22)),
            "model": {"name": MODEL, "version": "1", "sha256": "aa" * 32},
            "task": "IMAGE_CLASSIFICATION",
            "predictions": [{"label": "circle", "score": 0.9}],
            "input": {"hash": f"blake3:{start_s:032x}{number:032x}", "width": 64, "height": 64},
        }
        for number in range(IMAGES_PER_HOUR)
    ]


def state(server: ServerProcess, records: list[dict[str, Any]], label: str) -> None:
    lines = [
        {"inference_id": record["id"], "annotations": [{"label": label}]} for record in records
    ]
    body = "\n".join(map(json.dumps, lines)).encode()
    status, _, answer = server.request("POST", "/api/ground-truth", body)
    assert status == 200, answer
    assert json.loads(answer)["matched"] == len(records)


def statuses(server: ServerProcess) -> list[str]:
    """Return the statuses of the windows once no job is left to do."""
    server.wait_until(
        lambda: all(job["ended_at"] for job in server.call("GET", "/api/jobs")[1]["jobs"])
    )
    windows = server.call("GET", f"/api/models/{MODEL}/evaluation")[1]["windows"]
    return [window["status"] for window in windows]


def examine(server: ServerProcess, parameters: dict[str, Any], delay: str, windows: int) -> None:
    """Shorten the delay of a schedule, and wait for as many windows as it makes due."""
    status, answer = server.call("PUT", PATH, parameters | {"delay": delay})
    assert status == 200, answer
    server.wait_until(lambda: len(statuses(server)) >= windows)


def test_late_truth_alerts_once_over_restarts(tmp_path: Path) -> None:
    start_s = (int(time.time()) // HOUR_S - 6) * HOUR_S
    good, bad = inferences(start_s), inferences(start_s + HOUR_S)
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, good + bad)))
    data = tmp_path / "data"
    quadriga("import", tmp_path / "in.jsonl", "--data", data)
    server = ServerProcess(data, SAMPLE_MODELS, "--webhook-hosts", "127.0.0.1").start()
    slow = raw_server(lambda connection, over: trickle(connection, over, b"HTTP/1.1 200 OK\r\nX: "))
    with receiver() as hook, slow as slow_port:
        for host in ("169.254.169.254", "2130706434", "[::ffff:10.0.0.1]"):
            other = {"every": "1h", "webhooks": [{"url": f"http://{host}/"}]}
            status, refusal = server.call("PUT", PATH, other)
            assert status == 400
            assert "the setting webhook_hosts allows" in refusal["error"]
        hooks = [{"url": f"http://127.0.0.1:{slow_port}/"}, {"url": hook.url}]
        parameters = {"every": "1h", "late_windows": 6, "webhooks": hooks, "top_k": [2], "bins": 4}
        assert server.call("PUT", PATH, parameters | {"delay": "4h"})[0] == 200
        state(server, good, "circle")
        state(server, bad[:5], "square")
        schedule = data / "evaluation" / f"{MODEL}.schedule.json"
        saved = json.loads(schedule.read_bytes()) | {"since_s": start_s}
        schedule.write_text(json.dumps(saved))  # as if it had been put six hours ago
        examine(server, parameters, "4h", 2)
        assert statuses(server)[:2] == ["ok", "insufficient"]
        few = server.call("GET", f"/api/models/{MODEL}/evaluation")[1]["windows"][1]
        assert few["reason"] == "too few images have ground truth: expected 30 or more, got 5"
        assert hook.got == []
        report = server.call("GET", f"/api/reports/{few['report']}")[1]
        assert (report["parameters"]["top_k"], report["parameters"]["bins"]) == ([2], 4)
        chosen = [m["parameters"] for m in report["metrics"] if m["type"] == "TopKAccuracy"]
        assert chosen[0] == {"k": 2}

        state(server, bad, "square")
        examine(server, parameters, "3h", 3)
        assert statuses(server)[:3] == ["ok", "fall", "insufficient"]

        def webhook() -> dict[str, Any]:
            entries = server.call("GET", PATH)[1]["webhooks"]
            assert (entries[0]["waiting"], entries[0]["delivered_at"]) == (1, None)
            assert entries[0]["url"] == hooks[0]["url"]
            return entries[1]

        server.wait_until(lambda: webhook()["delivered_at"])
        assert server.stop() == 0
        server.start()
        examine(server, parameters, "2h", 4)
        assert statuses(server)[:3] == ["ok", "fall", "insufficient"]
        windows = server.call("GET", f"/api/models/{MODEL}/evaluation")[1]["windows"]
        assert webhook()["waiting"] == 0
        assert server.stop() == 0
    (alert,) = hook.taken
    assert len(hook.got) == 1
    assert (alert["event"], alert["kind"], alert["model"]) == ("fall", "evaluation", MODEL)
    assert alert["window"] == {"from": few["from"], "to": few["to"], "n": IMAGES_PER_HOUR}
    assert (alert["metric"]["name"], alert["metric"]["value"]) == ("Accuracy", 0)
    assert windows[1]["report"] > alert["report"].rpartition("/")[2]  # it was evaluated again
    assert [window["n"] for window in windows[:3]] == [IMAGES_PER_HOUR, IMAGES_PER_HOUR, 0]
