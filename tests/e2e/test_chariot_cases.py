"""Requirements of chariot-v2-kserve: our own server meets all, and a wrong one few."""

import json
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler

import pytest

from quadriga.tasks import full_name
from tests.background import listening
from tests.chariot_cases import CASES
from tests.chariot_client import TASKS, EngineClient, check_engine
from tests.server_process import ServerProcess

MODELS = {
    "shapes-classifier": "classification",
    "shapes-detector": "detection",
    "ships-oriented-detector": "ORIENTED_OBJECT_DETECTION",
    "shapes-segmenter": "segmentation",
    "shapes-image-text": "image-text",
}


def findings(url, model, task):
    return [*check_engine(EngineClient(url, model, full_name(task)), CASES)]


@pytest.mark.parametrize(("model", "task"), MODELS.items())
@pytest.mark.parametrize("prefix", ["", "/api/serve/serve-model-{}-pred"])
def test_our_own_server_conforms_in_every_task(server: ServerProcess, model, task, prefix):
    results = findings(f"http://{server.host}{prefix.format(model)}", f"m-{model}", task)
    assert [finding for finding in results if not finding.ok or finding.found] == []
    assert len(results) > 30


def test_every_case_has_a_name_of_its_own_and_a_task():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert {task for case in CASES for task in case.tasks} == set(TASKS)


class Wrong(BaseHTTPRequestHandler):
    """Answers everything with 200 and one output of another name, whose data is what the path says."""

    answer = b""
    moved = False

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        moved = self.moved and self.path.endswith("/")
        self.send_response(307 if moved else 200)
        self.send_header("Content-Length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def wrong():
    """Make a server that gives one answer to everything."""
    with ExitStack() as running:

        def start(answer, **settings):
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            handler = type("Handler", (Wrong,), {"answer": body, **settings})
            return running.enter_context(listening(handler))

        yield start


def output(*data, **changes):
    tensor = {"name": "y", "shape": [1], "datatype": "BYTES", "data": list(data), **changes}
    return {"outputs": [tensor], "id": 7}


ODD = {
    "OBJECT_DETECTION": {"label": "a", "score": 0.4, "xmin": 9, "ymin": 1, "xmax": 2, "ymax": 2},
    "ORIENTED_OBJECT_DETECTION": {
        "label": "a",
        "score": 0.4,
        **dict.fromkeys(("cx", "cy", "w", "h"), 0.5),
        "r": 90,
    },
    "IMAGE_SEGMENTATION": {"label": "a", "score": 1, "contour": [[{"x": 900, "y": 1}]]},
    "IMAGE_CLASSIFICATION": {"label": "a", "score": 7},
    "IMAGE_TEXT_TO_TEXT": {"prompt": "another", "answer": ""},
}
RIGHT_BY_CHANCE = {
    "/infer/",
    "/infer",
    "a body without Content-Type",
    "the shapes [1, 1] and [-1]",
    "a list of predictions for each image",
    "the fields of a prediction",
    "parameters that are null",
    "predict_proba",
}


@pytest.mark.parametrize("task", TASKS)
def test_one_answer_to_everything_differs_almost_everywhere(wrong, task):
    results = findings(wrong(output([ODD[task]])), "m", task)
    right = {finding.case for finding in results if finding.ok}
    chance = {"the ranges of a prediction"} if task == "IMAGE_TEXT_TO_TEXT" else set()
    assert right <= RIGHT_BY_CHANCE | chance
    assert all(finding.expected and finding.found for finding in results if not finding.ok)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        {"outputs": []},
        {"outputs": [7]},
        {"outputs": [{}]},
        {"outputs": [{"data": {"a": 1}}]},
        output(7),
        output([7]),
        output([[]]),
        output("{"),
        output("7"),
        output(parameters=[]),
        output([{"label": "a", "score": 1, "contour": 7}]),
    ],
)
@pytest.mark.parametrize("task", TASKS)
def test_no_answer_is_too_odd_to_be_reported(wrong, task, answer):
    results = findings(wrong(answer), "m", task)
    assert len(results) == sum(task in case.tasks for case in CASES)


def test_a_redirect_is_no_answer(wrong):
    results = findings(wrong(output([ODD["OBJECT_DETECTION"]]), moved=True), "m", "detection")
    by_name = {finding.case: finding for finding in results}
    assert by_name["/infer"].ok
    assert by_name["/infer/"].found.startswith("307")


def test_where_no_server_is_every_case_says_so():
    results = findings("http://127.0.0.1:9", "m", "detection")
    assert all("Refused" in finding.found for finding in results)
