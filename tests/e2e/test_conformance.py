"""`quadriga conformance`: all is well with our own server, and little is with a wrong one."""

import json
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler

import pytest
from click.testing import CliRunner

from quadriga.engine.cli import main
from quadriga.proto.conformance import TASKS
from quadriga.proto.conformance_cases import CASES
from tests.background import listening
from tests.server_process import ServerProcess

MODELS = {
    "shapes-classifier": "classification",
    "shapes-detector": "detection",
    "ships-oriented-detector": "ORIENTED_OBJECT_DETECTION",
    "shapes-segmenter": "segmentation",
    "shapes-image-text": "image-text",
}


def run(url, model, task, *flags):
    arguments = ["conformance", url, "--model", model, "--task", task, *flags]
    return CliRunner().invoke(main, arguments, terminal_width=200)


def findings(*arguments):
    result = run(*arguments, "--json")
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize(("model", "task"), MODELS.items())
@pytest.mark.parametrize("prefix", ["", "/api/serve/serve-model-{}-pred"])
def test_our_own_server_conforms_in_every_task(server: ServerProcess, model, task, prefix):
    code, results = findings(f"http://{server.host}{prefix.format(model)}", f"m-{model}", task)
    assert [finding for finding in results if not finding["ok"] or finding["found"]] == []
    assert code == 0
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
    code, results = findings(wrong(output([ODD[task]])), "m", task)
    right = {finding["case"] for finding in results if finding["ok"]}
    chance = {"the ranges of a prediction"} if task == "IMAGE_TEXT_TO_TEXT" else set()
    assert right <= RIGHT_BY_CHANCE | chance
    assert code == 1
    assert all(finding["expected"] and finding["found"] for finding in results if not finding["ok"])


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
    code, results = findings(wrong(answer), "m", task)
    assert code == 1
    assert len(results) == sum(task in case.tasks for case in CASES)


def test_a_redirect_is_no_answer(wrong):
    _, results = findings(wrong(output([ODD["OBJECT_DETECTION"]]), moved=True), "m", "detection")
    by_name = {finding["case"]: finding for finding in results}
    assert by_name["/infer"]["ok"]
    assert by_name["/infer/"]["found"].startswith("307")


def test_where_no_server_is_every_case_says_so():
    code, results = findings("http://127.0.0.1:9", "m", "detection")
    assert code == 1
    assert all("Refused" in finding["found"] for finding in results)


def test_the_lines_name_what_differs(server: ServerProcess, wrong):
    good = run(f"http://{server.host}", "shapes-classifier", "classification")
    assert (good.exit_code, "differs" in good.output) == (0, False)
    bad = run(wrong(b"hello"), "m", "classification")
    assert bad.exit_code == 1
    assert "differs" in bad.output


def test_an_unknown_task_is_a_bad_option():
    result = run("http://x", "m", "poetry")
    assert result.exit_code == 2
    assert "expected one of classification, detection" in result.output
