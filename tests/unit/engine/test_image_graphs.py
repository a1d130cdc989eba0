"""Graphs of images: batches that a graph answers wrongly, inputs beside the image, outputs that nothing reads."""

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from quadriga.engine.cli import main
from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.session import LoadError
from quadriga.tasks.image import Image
from tests.families.folders import extend
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


F32, I64, BOOL, F64 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.DOUBLE
CONSTANTS = {  # further inputs, lines of [input], sum of their means
    "int64 mask": ({"pixel_mask": (I64, ["n", "h", "w"])}, "", 1),
    "int64 mask of a fixed size": ({"pixel_mask": (I64, ["n", 64, 64])}, "", 1),
    "bool mask": ({"pixel_mask": (BOOL, ["n", "h", "w"])}, "", 1),
    "float mask": ({"pixel_mask": (F32, ["n", "h", "w"])}, "", 1),
    "float mask of one channel": ({"pixel_mask": (F32, ["n", 1, "h", "w"])}, "", 1),
    "written": ({"scale_factor": (F32, ["n", 2])}, "constants = {scale_factor = [0.5, 1.5]}", 1),
    "a mask and a number": ({"pixel_mask": (I64, ["n", "h", "w"]), "low": (F64, [])}, "constants = {low = 0.5}", 1.5),
    "a mask of another value": ({"pixel_mask": (I64, ["n", "h", "w"])}, "constants = {pixel_mask = 0}", 0),
    "a flag": ({"train": (BOOL, [])}, "constants = {train = false}", 0),
    "another mask": ({"mask": (F32, ["n", "c", "h", "w"])}, "constants = {mask = 1}", 1),
    "an axis of its own": ({"ids": (I64, ["n", "k"])}, "constants = {ids = 1}", 1),
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
    "sizes": ({"im_shape": (F32, ["n", 2])}, "", ["'im_shape', FP32 [-1, 2]", 'size_input = "im_shape"', "[input.constants]"]),
    "two": ({"a": (F32, [1]), "b": (I64, [])}, "constants = {a = 1}", ["'b', INT64 []"]),
    "unknown": ({"a": (F32, [1])}, "constants = {a = 1, c = 2}", ["among images, a, got 'c'"]),
    "of another length": ({"a": (F32, ["n", 2])}, "constants = {a = [1, 2, 3]}", ["'a', FP32 [-1, 2], got [1, 2, 3]"]),
    "a text": ({"a": (F32, [1])}, 'constants = {a = "x"}', ["model.toml: [input]", "constants"]),
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


ML = "ai.onnx.ml"


def zipmap(path, classes, kind="classlabels_strings"):
    """An image classifier as Custom Vision exports it: a label, and maps from classes to scores."""
    scores = [0.1, 0.7, 0.2]
    path = answering(path, {"p": np.float32(scores)}, image=("data", ["n", 3, 8, 8]))
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid(ML, 1))
    maps = helper.make_node("ZipMap", ["p"], ["loss"], domain=ML, **{kind: classes})
    model.graph.node.extend([maps, node("ArgMax", "p", "classLabel", axis=1)])
    del model.graph.output[:]
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    key = TensorProto.STRING if kind == "classlabels_strings" else TensorProto.INT64
    type_ = helper.make_sequence_type_proto(helper.make_map_type_proto(key, element))
    label = value("classLabel", ["n", 1], TensorProto.INT64)
    model.graph.output.extend([label, helper.make_value_info("loss", type_)])
    onnx.save(model, path)
    return path


MAPS = {  # classes of the graph, their kind, labels beside it, the best label
    "names of the graph": (["pear", "fig", "apple"], "classlabels_strings", "", "fig"),
    "the same names in another order": (["pear", "fig", "apple"], "classlabels_strings", "apple\nfig\npear", "fig"),
    "other names": (["pear", "fig", "apple"], "classlabels_strings", "a\nb\nc", "b"),
    "numbers": ([7, -1, 3], "classlabels_int64s", "a\nb\nc", "b"),
    "numbers alone": ([7, -1, 3], "classlabels_int64s", "", "-1"),
}  # fmt: skip


@pytest.mark.parametrize("case", MAPS.values(), ids=MAPS)
def test_scores_of_images_come_out_of_maps(case, tmp_path):
    classes, kind, labels, best = case
    path = zipmap(tmp_path / "model.onnx", classes, kind)
    (tmp_path / "model.toml").write_text(
        'family = "plain-classifier"\n[output]\nactivation = "none"'
    )
    if labels:
        (tmp_path / "labels.txt").write_text(labels)
    graph = Model("model", "1", path).image_predictor
    answers = graph.predict(COLOURS, [graph.read_options({})] * 3)
    found = [(p.label, round(p.score, 6)) for predictions, _ in answers for p in predictions]
    assert found == [(best, 0.7)] * 3
    assert inspected(tmp_path)[0]["unread_outputs"] == ["classLabel"]
    (tmp_path / "model.toml").unlink()
    with pytest.raises(LoadError, match="plain-classifier"):
        Model("model", "1", path)


OPERATORS = {  # operators behind a Softmax or logits, activation, sum of the scores
    "Dropout": ([node("Dropout", "p", "scores")], "none"),
    "Clip": ([node("Clip", "p zero one", "scores")], "none"),
    "Slice": ([node("Slice", "p start end axis", "scores")], "none"),
    "twice": ([node("Dropout", "p", "d"), node("Identity", "d", "scores")], "none"),
    "Exp of LogSoftmax": ([node("LogSoftmax", "m", "s", axis=1), node("Exp", "s", "scores")], "none"),
    "LogSoftmax": ([node("LogSoftmax", "m", "scores", axis=1)], "softmax"),
    "HardSigmoid": ([node("HardSigmoid", "m", "scores")], "none"),
    "written out": (
        [node("Neg", "m", "a"), node("Exp", "a", "b"), node("Add", "b one", "c"), node("Div", "one c", "scores")], "none",
    ),
    "Reciprocal": (
        [node("Neg", "m", "a"), node("Exp", "a", "b"), node("Add", "one b", "c"), node("Reciprocal", "c", "scores")], "none",
    ),
    "Swish": (
        [node("Neg", "m", "a"), node("Exp", "a", "b"), node("Add", "one b", "c"), node("Div", "m c", "scores")], "softmax",
    ),
    "mean of two": ([node("Add", "p p", "a"), node("Mul", "a half", "scores")], "none"),
    "1 - p and p": (
        [node("Slice", "p start two axis", "a"), node("Sub", "one a", "b"), node("Mul", "b half", "c"), node("Concat", "a c c", "scores", axis=1)],
        "none",
    ),
    "logits": ([node("Mul", "m ten", "scores")], "softmax"),
    "Sigmoid by 1": ([node("Sigmoid", "m", "s"), node("Mul", "one s", "a"), node("Div", "a ones", "scores")], "none"),
    "Sigmoid and 0": ([node("Sigmoid", "m", "s"), node("Add", "s zero", "a"), node("Sub", "a zero", "scores")], "none"),
    "Sigmoid to float": ([node("Sigmoid", "m", "s"), node("Cast", "s", "h", to=10), node("Pow", "h half1", "a"), node("Cast", "a", "scores", to=1)], "none"),
    "constant of the graph": (
        [node("Sigmoid", "m", "s"), node("Constant", "", "c", value_float=1.0), node("Mul", "s c", "scores")], "none",
    ),
    "1 - p and p of a Sigmoid": (
        [node("Sigmoid", "m", "s"), node("Slice", "s start two axis", "a"), node("Sub", "one a", "b"), node("Mul", "b half", "c"),
         node("Mul", "a half", "d"), node("Concat", "b d d", "scores", axis=1)], "none",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OPERATORS.values(), ids=OPERATORS)
def test_no_softmax_is_applied_to_what_are_probabilities(case, tmp_path):
    nodes, activation = case
    weights = {"zero": np.float32(0), "one": np.float32(1), "half": np.float32(0.5)}
    weights |= {"ones": np.ones(3, np.float32), "half1": np.float16(1)}
    ends = {"start": [0], "end": [3], "two": [1], "axis": [1]}
    path = colours(tmp_path / "model.onnx", nodes, **weights, **ends)
    (tmp_path / "model.toml").write_text(TOML)
    model = Model("model", "1", path)
    assert model.spec.output.activation == activation
    (reason,) = [d.value for d in model.recognition.decisions if d.field == "output.activation"]
    assert reason == activation
    graph = model.image_predictor
    (written,) = graph.outputs_for(COLOURS[0]).values()
    if activation == "none":
        ((predictions, _),) = graph.predict(COLOURS[:1], [graph.read_options({})])
        assert predictions[0].score == pytest.approx(written.max())


UNCLEAR = {  # operators behind probabilities, what the message calls them
    "half": ([node("Sigmoid", "m", "s"), node("Mul", "s half", "scores")], "Mul of Sigmoid"),
    "mean of two": ([node("Sigmoid", "m", "s"), node("Sigmoid", "l", "t"), node("Add", "s t", "a"), node("Div", "a two", "scores")], "Div of Sigmoid"),
    "a constant that nodes move": (
        [node("Sigmoid", "m", "s"), node("Constant", "", "c", value_float=1.0), node("Identity", "c", "d"), node("Mul", "s d", "scores")],
        "Mul of Sigmoid",
    ),
    "one more": ([node("Sub", "one p", "scores")], "Sub of Softmax"),
    "product": ([node("Sigmoid", "m", "s"), node("Mul", "s p", "scores")], "Mul of Sigmoid and Softmax"),
    "chain": ([node("Sigmoid", "m", "a0"), *(node("Max", f"a{i} a{i}", f"a{i + 1}") for i in range(3000)), node("Relu", "a3000", "scores")], "Relu of Sigmoid"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNCLEAR.values(), ids=UNCLEAR)
def test_arithmetic_on_probabilities_asks_for_the_activation(case, tmp_path):
    nodes, described = case
    weights = {"one": np.float32(1), "half": np.float32(0.5), "two": np.float32(2)}
    path = colours(tmp_path / "model.onnx", nodes, **weights)
    (tmp_path / "model.toml").write_text(TOML)
    with pytest.raises(
        LoadError, match=f"activation is required in .* as the scores are {described}: "
    ):
        Model("model", "1", path)
    (tmp_path / "model.toml").write_text(f'{TOML}\n[output]\nactivation = "softmax"')
    assert Model("model", "1", path).spec.output.activation == "softmax"


def test_one_score_of_a_softmax_is_refused(tmp_path):
    path = answering(tmp_path / "model.onnx", {"p": np.float32([3])}, image=("x", ["n", 3, 8, 8]))
    extend(path, "p", [node("Softmax", "before", "p", axis=1)])
    (tmp_path / "model.toml").write_text('family = "plain-classifier"\nlabels = ["cat", "dog"]')
    with pytest.raises(LoadError, match="got the Softmax of one, which is always 1"):
        Model("model", "1", path)


ONE_SCORE = [  # operator of the one score, its number, labels, answer
    ("Identity", 0.0, ["cat", "dog"], ("cat", 0.5)),
    ("Identity", 2.0, ["cat", "dog"], ("dog", 0.880797)),
    ("Sigmoid", -2.0, ["cat", "dog"], ("cat", 0.880797)),
    ("Sigmoid", -2.0, ["dog"], ("dog", 0.119203)),
]


@pytest.mark.parametrize("shape", [(1,), (1, 1, 1)])
@pytest.mark.parametrize("case", ONE_SCORE)
def test_one_score_tells_two_classes_apart(case, shape, tmp_path):
    operator, score, labels, answer = case
    path = answering(
        tmp_path / "model.onnx",
        {"p": np.full(shape, score, np.float32)},
        image=("x", ["n", 3, 8, 8]),
    )
    extend(path, "p", [node(operator, "before", "p")])
    (tmp_path / "model.toml").write_text(f'family = "plain-classifier"\nlabels = {labels}')
    graph = Model("model", "1", path).image_predictor
    ((predictions, _),) = graph.predict(COLOURS[:1], [graph.read_options({})])
    assert [(p.label, round(p.score, 6)) for p in predictions] == [answer]
    notes = inspected(tmp_path)[0]["notes"]
    assert [note.startswith("every image is answered 'dog'") for note in notes] == [True] * (
        len(labels) == 1
    )


ENCODINGS = {  # bytes of labels.txt, labels, or what the error says
    "UTF-8": ("café\ndog".encode(), ("café", "dog")),
    "with a byte order mark": ("café\ndog".encode("utf-8-sig"), ("café", "dog")),
    "UTF-16": ("café\r\ndog\r\n".encode("utf-16"), ("café", "dog")),
    "UTF-16, big end first": (b"\xfe\xff" + "café\ndog".encode("utf-16-be"), ("café", "dog")),
    "UTF-32": ("café\ndog".encode("utf-32"), ("café", "dog")),
    "UTF-16 without a mark": (
        "cat\ndog".encode("utf-16-le"),
        "UTF-16 without a byte order mark.*iconv -f UTF-16LE",
    ),
    "UTF-16 without a mark, with umlauts": (
        "k\u00e4fer\ndog".encode("utf-16-le"),
        "iconv -f UTF-16LE",
    ),
    "Windows-1252": ("dog\ncafé".encode("cp1252"), "the byte e9 in line 2, as Windows-1252"),
}


@pytest.mark.parametrize(("data", "expected"), ENCODINGS.values(), ids=ENCODINGS)
def test_labels_of_every_encoding_are_read_or_the_encoding_is_named(data, expected, tmp_path):
    path = answering(tmp_path / "model.onnx", {"p": np.float32([2, 3])}, image=("x", [1, 3, 8, 8]))
    (tmp_path / "model.toml").write_bytes('family = "plain-classifier"'.encode("utf-16"))
    (tmp_path / "labels.txt").write_bytes(data)
    if isinstance(expected, tuple):
        assert Model("model", "1", path).labels == expected
        return
    with pytest.raises(LoadError, match=expected) as caught:
        Model("model", "1", path)
    assert "save labels.txt as UTF-8" in str(caught.value)


@pytest.mark.parametrize("kind", ["INT8", "INT16", "UINT32"])
def test_an_input_of_another_datatype_is_refused_by_its_name(kind, tmp_path):
    path = answering(
        tmp_path / "model.onnx",
        {"p": np.float32([2, 3])},
        image=("x", [1, 3, 8, 8]),
        kind=getattr(TensorProto, kind),
    )
    (tmp_path / "model.toml").write_text('family = "plain-classifier"')
    with pytest.raises(LoadError, match=rf"got x {kind} \[1, 3, 8, 8\].*input of FP32 or UINT8"):
        Model("model", "1", path)
