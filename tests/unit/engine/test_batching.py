"""Models whose requests share runs: as the same models answer alone, or refused when they are loaded."""

import asyncio
import json
import shutil
import threading
import time
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from quadriga.engine.cli import main
from quadriga.engine.measures.model_counts import begin_events, take_events
from quadriga.engine.models.model import Model
from quadriga.engine.models.model_folders import find_model
from quadriga.engine.models.runners.isolated_runner import IsolatedRunner
from quadriga.engine.models.runners.session import LoadError
from quadriga.proto.errors import DeadlineExceeded, ModelNotReady
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.proto.request import Deadline, RequestContext, set_current_request
from tests.onnx_models import (
    CLASSIFIER_TOML,
    answering,
    classifier,
    dividing,
    doubling,
    marking,
    number_image,
    save,
    value,
)
from tests.row_models import ROW_TOML, linear, of_texts, tree
from tests.server_process import IMAGES, SAMPLE_MODELS
from tests.unit.engine.harness import load_pipeline, small_settings

CLIENTS = 1000
BATCHING = "[runtime]\nbatching = {max = 8, delay_ms = 2}\n"


def image_request(model, images, **parameters):
    tensor = Tensor("image", "BYTES", (len(images),), data=images, parameters=parameters)
    return InferRequest(model, None, "", [tensor])


def tensor_request(model, array):
    return InferRequest(model, None, "", [Tensor("x", "FP32", array.shape, data=array)])


@pytest.fixture
def pipeline(tmp_path):
    marking(tmp_path / "models" / "marks", CLIENTS, BATCHING)
    doubling(tmp_path / "models" / "tensors" / "model.onnx")
    (tmp_path / "models" / "tensors" / "model.toml").write_text(BATCHING)
    settings = small_settings(threads=2, max_queue=2 * CLIENTS, max_wait_s=100.0)
    pipeline = load_pipeline(tmp_path / "models", None, settings)
    yield pipeline
    pipeline.close()


async def test_each_of_a_thousand_clients_gets_its_own_answer(pipeline):
    """All at once, each with an image and a tensor of its own; an image in ten is broken, a client in ten leaves."""
    loop = asyncio.get_running_loop()

    def ask(number, request):
        task = partial(pipeline.infer, request)
        return pipeline.run(task, model=request.model, deadline=Deadline(), connection=number)

    of_images, of_tensors = [], []
    for number in range(CLIENTS):
        image = b"no image" if number % 10 == 3 else number_image(number)
        of_images.append(ask(number, image_request("marks", [image])))
        of_tensors.append(ask(number, tensor_request("tensors", np.full((1, 3), number, "f"))))
        if number % 10 == 7:
            loop.call_later(number / CLIENTS, of_images[-1].cancel)
    answers = await asyncio.gather(*of_images, return_exceptions=True)
    for number, answer in enumerate(answers):
        if number % 10 == 3:
            assert "expected" in str(answer)
        elif number % 10 != 7 or not isinstance(answer, asyncio.CancelledError):
            ((prediction,),) = answer.outputs[0].data
            assert prediction.label == f"number {number}"
    for number, answer in enumerate(await asyncio.gather(*of_tensors)):
        np.testing.assert_array_equal(answer.outputs[0].data, np.full((1, 3), 2 * number))
    for model, count in (("marks", 800), ("tensors", CLIENTS)):
        (statistics,) = pipeline.statistics(model, None)
        assert statistics.success.count == statistics.inference_count >= count
        sizes = {batch.batch_size: batch.compute_infer.count for batch in statistics.batches}
        assert 1 < max(sizes) <= 8
        assert sum(sizes.values()) == statistics.execution_count < statistics.inference_count
        assert sum(size * runs for size, runs in sizes.items()) >= statistics.inference_count
        (queue,) = [entry for entry in pipeline.queue_statistics() if entry.model == model]
        assert (queue.waiting, queue.running) == (0, 0)


def answers_of(model, files, clients=0):
    """Return predictions and embeddings, of one image after the other, or of so many clients at once."""
    predictor = model.image_predictor
    images = [predictor.decode(file.read_bytes(), 10**8) for file in files]
    options = [predictor.read_options({})]
    if not clients:
        return [predictor.predict([image], options)[0] for image in images]
    answers = [None] * len(images)

    def work(first):
        for number in range(first, len(images), clients):
            answers[number] = predictor.predict([images[number]], options)[0]

    threads = [threading.Thread(target=work, args=[first]) for first in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


def numbers_of(prediction):
    """Split a prediction into its numbers and the rest."""
    numbers, rest, stack = [], [], [prediction]
    while stack:
        item = stack.pop()
        if isinstance(item, float):
            numbers.append(item)
        elif isinstance(item, list | tuple):
            stack.extend(item)
        elif hasattr(item, "__struct_fields__"):
            stack.extend(getattr(item, name) for name in item.__struct_fields__)
        else:
            rest.append(item)
    return numbers, rest


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("shapes-classifier", "classification"),
        ("shapes-detector", "detection"),
        ("shapes-segmenter", "segmentation"),
        ("ships-oriented-detector", "oriented"),
    ],
)
def test_sample_models_answer_as_they_do_alone(name, images):
    path = find_model(SAMPLE_MODELS / name)
    runtime = {"batching": {"max": 8, "delay_ms": 20}}
    model = Model(name, "1", path, overrides={"runtime": runtime})
    files = sorted((IMAGES / images).glob("*.jpg"))[:8] * 2
    run_graph, sizes = model.session.batched_runs._run_graph, []

    def run(names, feeds, options):
        sizes.append(len(next(iter(feeds.values()))))
        return run_graph(names, feeds, options)

    model.session.batched_runs._run_graph = run
    together = answers_of(model, files, clients=8)
    assert max(sizes) > 1
    for file, alone, beside in zip(
        files, answers_of(Model(name, "1", path), files), together, strict=True
    ):
        (first, rest), (second, other_rest) = numbers_of(alone[0]), numbers_of(beside[0])
        assert rest == other_rest, file.name
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5)
        if alone[1] is not None:
            np.testing.assert_allclose(alone[1], beside[1], rtol=1e-5, atol=1e-5)


ROW_MODELS = {
    "maps": (linear, {"X": np.float32([[n % 5, 3 - n, n % 2, n] for n in range(12)])}),
    "trees": (tree, {"input": np.float32([[0, 0, n, 0] for n in range(12)])}),
    "texts": (
        of_texts,
        {
            "answer": np.array(["yes" if n % 3 else "no" for n in range(12)], object),
            "note": np.array([[str(n)] for n in range(12)], object),
        },
    ),
}


@pytest.mark.parametrize(("make", "feeds"), ROW_MODELS.values(), ids=ROW_MODELS)
def test_rows_are_answered_as_they_are_alone(tmp_path, make, feeds):
    path = make(tmp_path / "model.onnx")
    (tmp_path / "model.toml").write_text(ROW_TOML)
    runtime = {"batching": {"max": 12, "delay_ms": 1000}}
    model = Model("m", "1", path, overrides={"runtime": runtime})
    rows = [{name: array[n : n + 1] for name, array in feeds.items()} for n in range(12)]
    answers = [None] * 12

    def client(number):
        request = RequestContext()
        set_current_request(request)
        begin_events(request)
        outputs = model.session.run(rows[number])
        answers[number] = outputs, take_events(request)[2][2]

    threads = [threading.Thread(target=client, args=[number]) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {batch for _, batch in answers} == {12}
    alone = Model("m", "1", path).session
    for row, (beside, _) in zip(rows, answers, strict=True):
        for name, output in alone.run(row).items():
            if output.dtype.kind == "f":
                np.testing.assert_allclose(output, beside[name], rtol=1e-5)
            else:
                assert output.tolist() == beside[name].tolist()


def looping(path):
    """Y = x + n of rows, by adding 1 as often as the largest n says, to what has not reached it."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["goes_on"]),
            helper.make_node("Less", ["step", "n"], ["is_short"]),
            helper.make_node("Cast", ["is_short"], ["addend"], to=TensorProto.INT64),
            helper.make_node("Add", ["sum", "addend"], ["next"]),
        ],
        "step",
        [
            value("step", [], TensorProto.INT64),
            value("go_on", [], TensorProto.BOOL),
            value("sum", ["rows"], TensorProto.INT64),
        ],
        [value("goes_on", [], TensorProto.BOOL), value("next", ["rows"], TensorProto.INT64)],
        [],
    )
    return save(
        path,
        [
            helper.make_node("ReduceMax", ["n"], ["most"], keepdims=0),
            helper.make_node("Loop", ["most", "true", "x"], ["y"], body=body),
        ],
        [value("x", ["rows"], TensorProto.INT64), value("n", ["rows"], TensorProto.INT64)],
        [value("y", ["rows"], TensorProto.INT64)],
        {"true": np.array(True)},
    )


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_deadline_of_one_ends_no_run_of_others_and_those_of_all_end_it(tmp_path, isolation):
    runtime = {"batching": {"max": 3, "delay_ms": 1000}, "isolation": isolation}
    path = looping(tmp_path / "model.onnx")
    model = Model("loop", "1", path, overrides={"runtime": runtime})
    outcomes = {}
    deadlines = {name: Deadline() for name in "abc"}

    def client(name, steps):
        set_current_request(RequestContext(deadline=deadlines[name]))
        feeds = {"x": np.full(1, ord(name)), "n": np.full(1, steps)}
        try:
            outcomes[name] = model.session.run(feeds)["y"].tolist()
        except DeadlineExceeded as error:
            outcomes[name] = error

    def start(steps):
        outcomes.clear()
        threads = [
            threading.Thread(target=client, args=[name, count]) for name, count in steps.items()
        ]
        for thread in threads:
            thread.start()
        runs, end_s = model.session.batched_runs, time.monotonic() + 30
        while not runs._leaders or runs._is_collecting:
            assert time.monotonic() < end_s
            time.sleep(0.001)
        return threads

    def stop(*names):
        for name in names:
            deadlines[name].stop(deadlines[name].exceeded())

    steps = {"a": 3, "b": 2, "c": 50_000}
    threads = start(steps)
    stop("b")
    for thread in threads:
        thread.join(30)
    assert isinstance(outcomes.pop("b"), DeadlineExceeded)
    assert outcomes == {name: [ord(name) + steps[name]] for name in "ac"}
    deadlines.update((name, Deadline()) for name in "abc")
    threads = start({"a": 2**60, "b": 2**60, "c": 2**60})
    stop("a", "b", "c")
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert all(isinstance(outcomes[name], DeadlineExceeded) for name in "abc")
    if isinstance(model.runner, IsolatedRunner):
        model.runner.close()


async def test_a_client_that_floods_a_model_delays_another_by_few_requests(tmp_path):
    looping(tmp_path / "loop" / "model.onnx")
    (tmp_path / "loop" / "model.toml").write_text("[runtime]\nbatching = {max = 4}\n")
    pipeline = load_pipeline(tmp_path, None, small_settings(threads=2, max_queue=200))
    shape = (1,)

    def ask(number, connection):
        inputs = [
            Tensor("x", "INT64", shape, data=np.full(1, number)),
            Tensor("n", "INT64", shape, data=np.full(1, 500)),
        ]
        request = InferRequest("loop", None, "", inputs)

        def task():
            answer = pipeline.infer(request)
            order.append(number)
            return answer

        return pipeline.run(task, model="loop", connection=connection)

    order = []
    flood = [ask(number, "flood") for number in range(150)]
    late = ask(1000, "late")
    before = len(order)
    answers = await asyncio.gather(*flood, late)
    numbers = [answer.outputs[0].data.tolist() for answer in answers]
    assert numbers == [[number + 500] for number in (*range(150), 1000)]
    runs = 2 * pipeline._repository.get("loop").session.batched_runs.runs_at_once
    assert order.index(1000) - before < (runs + 3) * 4, (
        "it waits for what is prepared and runs, no more"
    )
    pipeline.close()


def test_a_crash_in_a_shared_run_is_answered_to_all_in_it_and_to_nobody_later(tmp_path):
    runtime = {
        "batching": {"max": 3, "delay_ms": 1000},
        "isolation": "process",
        "warmup": False,
    }
    path = dividing(tmp_path / "model.onnx")
    model = Model("m", "1", path, overrides={"runtime": runtime})
    outcomes = {}

    def client(name, divisor):
        feeds = {"a": np.full(1, -(2**31), np.int32), "b": np.full(1, divisor, np.int32)}
        try:
            outcomes[name] = model.session.run(feeds)["quotient"].tolist()
        except ModelNotReady as error:
            outcomes[name] = error

    def ask(divisors):
        outcomes.clear()
        threads = [threading.Thread(target=client, args=pair) for pair in enumerate(divisors)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

    ask([2, -1, 4])
    assert [type(outcome) for outcome in outcomes.values()] == [ModelNotReady] * 3
    end_s = time.monotonic() + 30
    while any(isinstance(outcome, ModelNotReady) for outcome in outcomes.values()):
        assert time.monotonic() < end_s
        ask([2, 1, 4])
    assert outcomes == {0: [-(2**30)], 1: [-(2**31)], 2: [-(2**29)]}
    model.runner.close()


def graph_of(path, *nodes, inputs=(), outputs=(), weights=None):
    """Save a graph of nodes, each an operator, its inputs, its outputs and attributes."""
    made = [
        helper.make_node(operator, names, outputs_, **attributes)
        for operator, names, outputs_, attributes in nodes
    ]
    return save(path, made, list(inputs), list(outputs), weights)


X, Y = value("x", ["batch", 3]), value("y", ["batch", 3])
STATISTICS = {name: np.ones(3, np.float32) for name in ("scale", "bias", "mean", "var")}
REFUSED = {
    "fixed": (lambda path: doubling(path, 1), r"first axis is open, .* got 'x' of shape \[1, 3\]"),
    "normalised over the batch": (
        lambda path: graph_of(
            path,
            ("BatchNormalization", ["x", *STATISTICS], ["y", "m", "v"], {"training_mode": 1}),
            inputs=[X],
            outputs=[Y],
            weights=STATISTICS,
        ),
        "the graph mixes rows",
    ),
    "the best rows": (
        lambda path: graph_of(
            path,
            ("TopK", ["x", "one"], ["y", "places"], {"axis": 0}),
            inputs=[X],
            outputs=[Y],
            weights={"one": np.array([1])},
        ),
        "output 'y' to have the 8 rows of the input as its first axis",
    ),
    "a number for all rows": (
        lambda path: graph_of(
            path,
            ("ReduceMax", ["x"], ["y"], {"keepdims": 0}),
            inputs=[X],
            outputs=[value("y", [])],
        ),
        r"as its first axis, got the shape \[\]",
    ),
    "indices of the batch": (
        lambda path: graph_of(
            path,
            ("NonZero", ["x"], ["y"], {}),
            inputs=[X],
            outputs=[value("y", [2, "n"], TensorProto.INT64)],
        ),
        "of the input as its first axis",
    ),
    "not what was made up": (
        lambda path: graph_of(
            path,
            ("Add", ["x", "two"], ["y"], {}),
            inputs=[value("x", ["batch", "n"])],
            outputs=[value("y", ["batch", "n"])],
            weights={"two": np.ones((1, 1, 2), np.float32)},
        ),
        "as its first axis",
    ),
    "refuses one column": (
        lambda path: graph_of(
            path,
            ("Reshape", ["x", "pairs"], ["y"], {}),
            inputs=[value("x", ["batch", "n"])],
            outputs=[value("y", ["batch", "m", 2])],
            weights={"pairs": np.array([0, -1, 2])},
        ),
        "cannot try 8 rows together, as the model refuses the input that was made up for it",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_a_graph_whose_rows_cannot_run_together_is_refused(tmp_path, make, message):
    path = make(tmp_path / "model.onnx")
    Model("m", "1", path)
    runtime = {"batching": {}, "warmup": False}
    with pytest.raises(LoadError, match=f"batching in model.toml: .*{message}"):
        Model("m", "1", path, overrides={"runtime": runtime})


IMAGE_MODELS = {
    "fixed batch": lambda folder: classifier(folder / "model.onnx", batch=1),
    "package": lambda folder: shutil.copytree(
        SAMPLE_MODELS / "shapes-image-text", folder, dirs_exist_ok=True
    ),
    "no batch axis": lambda folder: answering(
        folder / "model.onnx", {"logits": np.zeros((1, 3), np.float32)}, batched=False
    ),
}


@pytest.mark.parametrize("make", IMAGE_MODELS.values(), ids=IMAGE_MODELS)
def test_image_models_of_one_image_at_a_time_are_refused(tmp_path, make):
    make(tmp_path)
    if (tmp_path / "model.onnx").exists():
        toml = CLASSIFIER_TOML.replace("[output]", "[output]\nbatch_axis = false")
        (tmp_path / "model.toml").write_text(f'labels = ["a", "b", "c"]\n{toml}')
    with pytest.raises(LoadError, match=r"batching in model.toml"):
        Model("m", "1", find_model(tmp_path), overrides={"runtime": {"batching": {}}})


WRONG = [{"max": 1}, {"max": 129}, {"delay_ms": -1}, {"delay_ms": 1001}, {"size": 8}, "auto", True]


@pytest.mark.parametrize("batching", WRONG, ids=str)
def test_batching_is_checked(tmp_path, batching):
    path = doubling(tmp_path / "model.onnx")
    with pytest.raises(LoadError, match="batching"):
        Model("m", "1", path, overrides={"runtime": {"batching": batching}})


def test_inspect_and_profile_say_how_requests_share_runs(tmp_path):
    folder = tmp_path / "shapes-classifier"
    shutil.copytree(SAMPLE_MODELS / "shapes-classifier", folder)
    with (folder / "model.toml").open("a") as file:
        file.write("\n[runtime]\nbatching = {max = 16, delay_ms = 2.5}\n")
    inspected = CliRunner().invoke(main, ["inspect", str(folder), "--json"])
    assert json.loads(inspected.output)["batch"] == (
        "variable, up to 8 images at once; requests share runs of up to 16 images or rows, after at most 2.5 ms"
    )
    image = str(next((IMAGES / "classification").glob("*.jpg")))
    arguments = ["profile", str(folder), "--image", image, "--seconds", "0.1"]
    profiled = CliRunner().invoke(main, arguments)
    assert profiled.exit_code == 0, profiled.output
    assert (
        "Requests share runs of up to 16 images or rows, after at most 2.5 ms." in profiled.output
    )
