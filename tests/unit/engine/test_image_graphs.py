"""Graphs of images: batches that a graph answers wrongly, inputs beside the image, outputs that nothing reads."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from quadriga.engine.cli import main
from quadriga.engine.model import Model
from quadriga.engine.session import LoadError
from quadriga.tasks.image import Image
from tests.onnx_models import answering, save, value

LABELS = 'labels = ["red", "green", "blue"]\n'
TOML = f'family = "plain-classifier"\n{LABELS}'
COLOURS = [
    Image(np.full((8, 8, 3), colour, np.uint8))
    for colour in ((255, 30, 0), (0, 255, 90), (20, 0, 255))
]


def node(operator, inputs, output, **attributes):
    return helper.make_node(operator, inputs.split(), [output], **attributes)


def colours(path, nodes, batch="batch", axes=(), **weights):
    """A classifier of colours, whose probabilities `p` some nodes turn into the output `scores`."""
    means = [
        node("ReduceMean", "image", "m", axes=[2, 3], keepdims=0),
        node("Mul", "m ten", "l"),
        node("Softmax", "l", "p", axis=1),
    ]
    constants = {"ten": np.float32(10)} | {name: np.array(array) for name, array in weights.items()}
    shape = [batch, 3, 8, 8]
    return save(
        path, [*means, *nodes], [value("image", shape)], [value("scores", [batch, 3])], constants
    )


MEAN_OF_BATCH = [
    node("ReduceMean", "p", "b", axes=[0], keepdims=1),
    node("Add", "p b", "s"),
    node("Mul", "s half", "scores"),
]
FIRST_FOR_ALL = [
    node("Slice", "p zero one", "a"),
    node("Mul", "p none", "z"),
    node("Add", "a z", "scores"),
]
BATCHES = {  # nodes, weights, size of the batch in the file, images that run together, why one by one
    "independent": ([node("Identity", "p", "scores")], {}, "batch", 8, ""),
    "Reshape of one image": ([node("Reshape", "p shape", "scores")], {"shape": [1, 3]}, "batch", 1, "fails on two images"),
    "mean of the batch": (MEAN_OF_BATCH, {"half": np.float32(0.5)}, "batch", 1, "changes with the other images"),
    "the first for all": (FIRST_FOR_ALL, {"zero": [0], "one": [1], "none": np.float32(0)}, "batch", 1, "changes with"),
    "one row alone": ([node("Slice", "p zero one", "scores")], {"zero": [0], "one": [1]}, "batch", 1, "fails on two images"),
    "at most two": ([node("Slice", "p zero two", "scores")], {"zero": [0], "two": [2]}, "batch", 8, "fails on 3 images"),
    "fixed": ([node("Identity", "p", "scores")], {}, 4, -4, ""),
    "fixed, mean of the batch": (MEAN_OF_BATCH, {"half": np.float32(0.5)}, 4, -1, "changes with"),
}  # fmt: skip


@pytest.mark.parametrize("case", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("warmup", [True, False])
def test_images_are_answered_together_as_alone(case, warmup, tmp_path, caplog):
    nodes, weights, batch, size, reason = case
    path = colours(tmp_path / "model.onnx", nodes, batch, **weights)
    (tmp_path / "model.toml").write_text(f"{TOML}[runtime]\nwarmup = {str(warmup).lower()}")
    graph = Model("model", "1", path).image_predictor
    if not warmup and "changes" in reason:
        return  # nothing has compared them
    if warmup:
        assert graph.batch_size == size
    options = graph.read_options({"action": "predict_proba"})
    alone = [graph.predict([image], [options])[0][0] for image in COLOURS]
    assert [predictions[0].label for predictions in alone] == ["red", "green", "blue"]
    together = [predictions for predictions, _ in graph.predict(COLOURS, [options] * 3)]
    for first, second in zip(alone, together, strict=True):
        assert [p.label for p in first] == [p.label for p in second]
        assert [p.score for p in first] == pytest.approx([p.score for p in second], abs=1e-5)
    assert (reason if warmup else reason.replace("two", "3")) in graph.one_by_one
    assert ("images run one by one" in caplog.text) == bool(reason)
    assert abs(graph.batch_size) == (abs(size) if not reason else 1)


def test_a_graph_of_one_image_loads_with_the_line_that_says_so(tmp_path):
    path = answering(
        tmp_path / "model.onnx",
        {"scores": np.float32([[0.2, 0.7, 0.1]])},
        image=("image", [1, 3, 8, 8]),
        batched=False,
    )
    head = np.zeros((1, 7, 21), np.float32)
    head[0, :, 0] = 16, 16, 8, 8, 0, 0.9, 0
    detector = answering(
        tmp_path / "d" / "model.onnx", {"out": head}, image=("image", [1, 3, 32, 32]), batched=False
    )
    for file, family, label in (
        (path, "plain-classifier", "green"),
        (detector, "ultralytics", "green"),
    ):
        (file.parent / "model.toml").write_text(
            f'family = "{family}"\n{LABELS}[output]\nbatch_axis = false'
        )
        graph = Model("model", "1", file).image_predictor
        options = graph.read_options({})
        answers = graph.predict(COLOURS, [options] * 3)
        assert [predictions[0].label for predictions, _ in answers] == [label] * 3


def further(path, inputs, *, size=("h", "w"), name="images"):
    """A classifier whose score of each class is the mean of a further input, over 3 for the first."""
    image = value(name, ["n", 3, *size])
    infos = [image, *(value(key, shape, kind) for key, (kind, shape) in inputs.items())]
    nodes = [node("ReduceMean", name, "m", axes=[2, 3], keepdims=0), node("Mul", "m zero", "s0")]
    for number, (key, (_, shape)) in enumerate(inputs.items()):
        nodes.append(node("Cast", key, f"f{number}", to=TensorProto.FLOAT))
        axes = [*range(1, len(shape))]
        flat = f"f{number}"
        if axes:
            nodes.append(node("ReduceMean", flat, f"r{number}", axes=axes, keepdims=0))
            nodes.append(node("Unsqueeze", f"r{number} last", f"v{number}"))
            flat = f"v{number}"
        nodes.append(node("Add", f"s{number} {flat}", f"s{number + 1}"))
    nodes.append(node("Mul", f"s{len(inputs)} third", "scores"))
    weights = {
        "zero": np.float32(0),
        "last": np.int64([1]),
        "third": np.float32([1 / 8, 1 / 4, 1 / 2]),
    }
    return save(path, nodes, infos, [value("scores", ["n", 3])], weights)


F, I, B, D = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.DOUBLE
CONSTANTS = {  # further inputs, lines of [input], sum of their means
    "int64 mask": ({"pixel_mask": (I, ["n", "h", "w"])}, "", 1),
    "int64 mask of a fixed size": ({"pixel_mask": (I, ["n", 64, 64])}, "", 1),
    "bool mask": ({"pixel_mask": (B, ["n", "h", "w"])}, "", 1),
    "float mask": ({"pixel_mask": (F, ["n", "h", "w"])}, "", 1),
    "float mask of one channel": ({"pixel_mask": (F, ["n", 1, "h", "w"])}, "", 1),
    "written": ({"scale_factor": (F, ["n", 2])}, "constants = {scale_factor = [0.5, 1.5]}", 1),
    "a mask and a number": ({"pixel_mask": (I, ["n", "h", "w"]), "low": (D, [])}, "constants = {low = 0.5}", 1.5),
    "a mask of another value": ({"pixel_mask": (I, ["n", "h", "w"])}, "constants = {pixel_mask = 0}", 0),
    "a flag": ({"train": (B, [])}, "constants = {train = false}", 0),
    "another mask": ({"mask": (F, ["n", "c", "h", "w"])}, "constants = {mask = 1}", 1),
    "an axis of its own": ({"ids": (I, ["n", "k"])}, "constants = {ids = 1}", 1),
}  # fmt: skip


@pytest.mark.parametrize("case", CONSTANTS.values(), ids=CONSTANTS)
def test_inputs_beside_the_image_have_the_values_that_are_written(case, tmp_path):
    inputs, lines, total = case
    path = further(tmp_path / "model.onnx", inputs)
    (tmp_path / "model.toml").write_text(
        f'{TOML}[output]\nactivation = "none"\n[input]\nsize = [64, 64]\n{lines}'
    )
    graph = Model("model", "1", path).image_predictor
    options = graph.read_options({"top_k": 1})
    answers = graph.predict(COLOURS, [options] * 3)
    assert [predictions[0].score for predictions, _ in answers] == pytest.approx([total / 2] * 3)


ASKED = {  # further inputs, lines of [input], what the error says
    "sizes": ({"im_shape": (F, ["n", 2])}, "", ["'im_shape', FP32 [-1, 2]", 'size_input = "im_shape"', "[input.constants]"]),
    "two": ({"a": (F, [1]), "b": (I, [])}, "constants = {a = 1}", ["'b', INT64 []"]),
    "unknown": ({"a": (F, [1])}, "constants = {a = 1, c = 2}", ["got c = 2", "a [1]"]),
    "of another length": ({"a": (F, ["n", 2])}, "constants = {a = [1, 2, 3]}", ["a [-1, 2]", "got a = [1, 2, 3]"]),
    "a text": ({"a": (F, [1])}, 'constants = {a = "x"}', ["model.toml: [input]", "constants"]),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED.values(), ids=ASKED)
def test_an_input_without_a_value_is_asked_for(case, tmp_path):
    inputs, lines, parts = case
    path = further(tmp_path / "model.onnx", inputs)
    (tmp_path / "model.toml").write_text(f"{TOML}[input]\nsize = [64, 64]\n{lines}")
    with pytest.raises(LoadError) as caught:
        Model("model", "1", path)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def inspected(folder):
    run = CliRunner().invoke
    text = run(main, ["inspect", str(folder)], terminal_width=300).output
    return json.loads(run(main, ["inspect", str(folder), "--json"]).output), " ".join(text.split())


HEAD = np.zeros((7, 189), np.float32)
UNREAD = {  # outputs, family, names of those that are not read
    "keypoints": ({"out": HEAD, "keypoints": np.zeros((9, 34), np.float32)}, "ultralytics", ["keypoints"]),
    "none": ({"out": HEAD}, "ultralytics", []),
    "a feature": ({"scores": np.float32([0.1, 0.2, 0.7]), "feature": np.zeros(5, np.float32)}, "plain-classifier", ["feature"]),
    "masks": (
        {"boxes": np.float32([[1, 1, 9, 9]]), "labels": np.int64([0]), "scores": np.float32([0.9]), "masks": np.zeros((1, 9, 9), np.float32)},
        "mmyolo-none", ["masks"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNREAD.values(), ids=UNREAD)
def test_outputs_that_nothing_reads_are_named(case, tmp_path):
    outputs, family, names = case
    answering(tmp_path / "model.onnx", outputs, image=("images", [1, 3, 96, 96]))
    told = f'family = "{family}"\n'
    if family == "mmyolo-none":
        told = 'task = "detection"\n'
    more = (
        '[output]\ndecoder = "labelled_boxes"\n[input]\nresize = "stretch"\n'
        if "boxes" in outputs
        else ""
    )
    (tmp_path / "model.toml").write_text(f"{told}{LABELS}{more}")
    inspection, text = inspected(tmp_path)
    assert inspection["unread_outputs"] == names
    assert (f"not read {', '.join(names)}" in text) == bool(names)


def test_inspect_says_why_images_run_one_by_one(tmp_path):
    colours(tmp_path / "model.onnx", [node("Reshape", "p shape", "scores")], shape=[1, 3])
    (tmp_path / "model.toml").write_text(TOML)
    inspection, text = inspected(tmp_path)
    assert inspection["batch"].startswith("images run one by one: the graph fails on two images")
    assert "images run one by one" in text
