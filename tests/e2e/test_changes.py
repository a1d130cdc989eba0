"""What is said of inferences afterwards, over the wire: with several workers, and through crashes."""

import itertools
import json
import threading
from http.client import HTTPException

from tests.server_process import SAMPLE_MODELS, ServerProcess

DETECT = "shapes-detector"
CLASSIFY = "shapes-classifier"
KILLS = 3


def infer(server, model, image, **metadata):
    return server.store(model, image, metadata=metadata)


def test_an_inference_is_changed_judged_and_deleted(server, photo, photo_truth):
    line = {"path": "north/1.jpg", "annotations": photo_truth}
    answer = server.request("POST", "/api/ground-truth", json.dumps(line))
    assert (answer[0], json.loads(answer[2])["stated"]) == (200, 1)
    inference_id = infer(server, DETECT, photo, path="north/1.jpg", run="changes")
    other_id = infer(server, DETECT, photo, run="changes")
    path = f"/api/inferences/{inference_id}"
    status, record = server.call("POST", f"{path}/metadata", {"set": {"run": "changed"}})
    assert (status, record["metadata"]) == (200, {"path": "north/1.jpg", "run": "changed"})
    assert [truth["label"] for truth in record["ground_truth"]] == [
        truth["class_label"] for truth in photo_truth
    ]
    assert [record_["id"] for record_ in server.query({"meta.run": "changed"})] == [inference_id]
    entries = [{"key": "n", "type": "int", "value": "x"}]
    status, answer = server.call("POST", f"{path}/metadata", entries)
    assert (status, answer["error"]) == (
        400, "body[0] ('n'): expected a value that parses as int, got 'x'"
    )  # fmt: skip
    status, record = server.call("POST", f"{path}/feedback", {"kind": "thumbs", "value": -1})
    assert [feedback["value"] for feedback in record["feedback"]] == [-1.0]
    body = {"where": {"id": {"in": [inference_id, other_id]}}}
    assert server.call("POST", "/api/inferences/delete", body)[1]["count"] == 2
    assert server.call("GET", path)[0] == 404


def test_every_acknowledged_change_survives_kill_9_once(data, shape):
    server = ServerProcess(data, SAMPLE_MODELS, "--workers", "2")
    numbers, acknowledged = itertools.count(), []
    target = None

    def change(stop):
        while not stop.is_set():
            number = next(numbers)
            try:
                status, _ = server.call(
                    "POST", f"/api/inferences/{target}/metadata", {f"k{number % 50}": number}
                )
            except (OSError, HTTPException):
                return
            if status == 200:
                acknowledged.append(number)

    for _ in range(KILLS):
        server.start()
        target = target or infer(server, CLASSIFY, shape[0])
        stop, count_before = threading.Event(), len(acknowledged)
        threads = [threading.Thread(target=change, args=(stop,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        server.wait_until(lambda count_before=count_before: len(acknowledged) > count_before + 20)
        server.kill()
        stop.set()
        for thread in threads:
            thread.join()
    with server:
        assert server.query({})[0]["id"] == target  # waits for the journal
        history = server.call("GET", f"/api/inferences/{target}/metadata/history")[1]["history"]
    values = [value for entry in history for value in entry["set"].values()]
    assert len(values) == len(set(values)), "a change is made twice"
    assert set(acknowledged) <= set(values), "an acknowledged change is lost"
