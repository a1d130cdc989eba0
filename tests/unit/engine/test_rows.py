"""Classifiers of rows of features: what they are recognised as, and how they answer."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from quadriga.engine.models import onnx_file
from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.session import LoadError
from quadriga.engine.serving.pipeline import Pipeline
from quadriga.engine.serving.tensors import explanation as explaining
from quadriga.proto.errors import InternalError, InvalidRequest
from quadriga.proto.messages import InferRequest, RequestedOutput, Tensor
from tests.onnx_models import save, value
from tests.row_models import (
    IRISES,
    ROW_TOML,
    linear,
    margin,
    network,
    of_texts,
    probabilities,
    tree,
)
from tests.unit.engine.harness import load_pipeline, small_settings

ROWS = np.float32([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]])
NAMES = ["setosa", "versicolor", "virginica"]


def written(path, toml="", labels=()):
    """Write the files beside a model."""
    (path.parent / "model.toml").write_text(ROW_TOML + toml)
    if labels:
        (path.parent / "labels.txt").write_text("\n".join(labels))
    return path


def pipeline(path) -> Pipeline:
    """Serve the model as `m`."""
    return load_pipeline(path.parent, None, small_settings())


def ask(
    array=ROWS, name="X", datatype="FP32", outputs=(), shared=None, **parameters
) -> InferRequest:
    tensor = Tensor(name, datatype, array.shape, array, parameters=parameters)
    requested = [RequestedOutput(name_) for name_ in outputs]
    return InferRequest("m", None, "r", [tensor], requested, parameters=shared or {})


def labels_of(output: Tensor) -> list[str]:
    return [predictions[0].label for predictions in output.data]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m" / "model.onnx"


FORMS = {
    "maps by texts": (linear, {}, (), NAMES),
    "maps by numbers": (linear, {"classes": (0, 1, 2)}, (), ["0", "1", "2"]),
    "maps by numbers, with labels": (linear, {"classes": (0, 1, 2)}, IRISES, NAMES),
    "maps by odd numbers": (linear, {"classes": (-1, 4, 7)}, IRISES, NAMES),
    "maps by odd numbers, unnamed": (linear, {"classes": (-1, 4, 7)}, (), ["-1", "4", "7"]),
    "floats by texts": (linear, {"zipmap": False}, (), NAMES),
    "floats by numbers": (linear, {"zipmap": False, "classes": (1, 2, 3)}, ("none", *IRISES), NAMES),
    "texts with other labels": (linear, {}, ("a", "b", "c"), ["a", "b", "c"]),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_export_answers_labels_and_scores(path, form):
    make, options, labels, expected = FORMS[form]
    served = pipeline(written(make(path, **options), labels=labels))
    (output,) = served.infer(ask(action="predict_proba")).outputs
    assert (output.name, output.datatype, output.shape) == ("predictions", "BYTES", (3,))
    for predictions, scores in zip(output.data, probabilities(ROWS), strict=True):
        by_label = {prediction.label: prediction.score for prediction in predictions}
        assert list(by_label) == [expected[index] for index in np.argsort(-scores, kind="stable")]
        assert by_label == pytest.approx(
            dict(zip(expected, scores.tolist(), strict=True)), abs=1e-6
        )
    (output,) = served.infer(ask()).outputs
    assert labels_of(output) == expected
    assert [len(predictions) for predictions in output.data] == [1, 1, 1]
    served.close()


def test_trees_columns_margins_and_networks_answer_too(tmp_path):
    row = np.float32([[0, 0, 3, 0], [0, 0, 2, 0]])
    served = pipeline(written(tree(tmp_path / "t" / "m" / "model.onnx"), labels=("no", "yes")))
    (output,) = served.infer(ask(row, "input", action="predict_proba")).outputs
    assert [[p.label for p in predictions] for predictions in output.data] == [
        ["yes", "no"],
        ["no", "yes"],
    ]
    assert output.data[0][0].score == pytest.approx(1 / (1 + np.exp(-2)))
    served.close()
    columns = ("length", "width", "depth", "age")
    served = pipeline(written(linear(tmp_path / "c" / "m" / "model.onnx", inputs=columns)))
    tensors = [
        Tensor(name, "FP32", shape, ROWS[:, index].reshape(shape))
        for index, (name, shape) in enumerate(
            zip(columns, [(3,), (3, 1), (3,), (3, 1)], strict=True)
        )
    ]
    (output,) = served.infer(InferRequest("m", None, "r", tensors)).outputs
    assert labels_of(output) == NAMES
    short = [*tensors[:3], Tensor("age", "FP32", (2,), np.zeros(2, np.float32))]
    with pytest.raises(InvalidRequest, match=r"as many rows in each input, got length: 3.*age: 2"):
        served.infer(InferRequest("m", None, "r", short))
    served.close()
    toml = '[output]\nactivation = "sigmoid"\n'
    served = pipeline(written(margin(tmp_path / "s" / "m" / "model.onnx"), toml))
    (output,) = served.infer(
        ask(np.float32([[2, 0, 0, 0], [-2, 0, 0, 0]]), action="predict_proba")
    ).outputs
    assert labels_of(output) == ["1", "0"]
    assert output.data[0][0].score == pytest.approx(1 / (1 + np.exp(-2)))
    assert output.data[0][1].score == pytest.approx(1 / (1 + np.exp(2)))
    served.close()
    for rows in ("batch", 1):
        served = pipeline(
            written(network(tmp_path / f"n{rows}" / "m" / "model.onnx", rows), labels=IRISES)
        )
        (output,) = served.infer(ask(name="features", action="predict_proba")).outputs
        assert labels_of(output) == NAMES
        best = [predictions[0].score for predictions in output.data]
        assert best == pytest.approx(probabilities(ROWS).max(axis=1).tolist(), abs=1e-6)
        served.close()


def test_a_client_sees_the_inputs_of_the_graph_and_one_output_of_predictions(path):
    served = pipeline(written(linear(path)))
    info = served.model_info("m", None)
    assert (info.task, info.labels, info.takes_images) == ("IMAGE_CLASSIFICATION", IRISES, False)
    assert [(t.name, t.datatype, t.shape) for t in info.inputs] == [("X", "FP32", (-1, 4))]
    assert [(t.name, t.datatype, t.shape) for t in info.outputs] == [
        ("predictions", "BYTES", (-1,))
    ]
    served.close()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ask(action="detect"), "expected parameters.action to be one of predict, predict_proba, got 'detect'"),
        (ask(top_k=0), "top_k"),
        (ask(name="x"), "expected the inputs X"),
        (ask(ROWS[:, :3]), r"expected shape \[-1, 4\]"),
        (ask(ROWS[:0]), "expected 1 to 8 rows in a request, got 0"),
        (ask(np.zeros((9, 4), np.float32)), "expected 1 to 8 rows in a request, got 9"),
        (ask(outputs=["label"]), "expected the output predictions.*got label; content_type raw"),
        (ask(metadata=7), "metadata"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_refused(path, request_, message):
    served = pipeline(written(linear(path)))
    with pytest.raises(InvalidRequest, match=message):
        served.infer(request_)
    served.close()


def test_scores_that_are_no_numbers_are_an_error_of_the_model(path):
    nodes = [helper.make_node("Log", ["x"], ["scores"])]
    save(path, nodes, [value("x", ["n", 3])], [value("scores", ["n", 3])])
    served = pipeline(written(path))
    with pytest.raises(InternalError, match="expected output 'scores' to hold finite numbers"):
        served.infer(ask(np.float32([[-1, 1, 1]]), "x"))
    served.close()


def test_raw_asks_for_the_tensors_of_the_graph(path):
    served = pipeline(written(linear(path, zipmap=False)))
    response = served.infer(ask(content_type="raw"))
    assert [tensor.name for tensor in response.outputs] == ["label", "probabilities"]
    np.testing.assert_allclose(response.outputs[1].data, probabilities(ROWS), atol=1e-6)
    served.close()
    linear(path)
    served = pipeline(path)  # maps are no tensor of V2
    (label,) = served.infer(ask(shared={"content_type": "raw"})).outputs
    assert (label.name, label.data) == ("output_label", NAMES)
    served.close()


def odd(path):
    """Two outputs that could be scores."""
    nodes = [helper.make_node("Identity", ["x"], [name]) for name in ("a", "b")]
    return save(path, nodes, [value("x", ["n", 3])], [value(name, ["n", 3]) for name in ("a", "b")])


def nameless(path):
    """Scores and a label, as exporters without ai.onnx.ml nodes give them."""
    nodes = [
        helper.make_node("Identity", ["x"], ["probabilities"]),
        helper.make_node("ArgMax", ["x"], ["label"], axis=1, keepdims=0),
    ]
    outputs = [value("label", ["n"], TensorProto.INT64), value("probabilities", ["n", 3])]
    return save(path, nodes, [value("x", ["n", 3])], outputs)


@pytest.mark.parametrize(
    ("make", "toml", "labels", "message"),
    [
        (odd, "", (), "one output with the scores of a row.*got 2"),
        (nameless, "", (), "labels are required: the graph gives neither"),
        (linear, "", ("a", "b"), "expected 3 labels, one per class, got 2"),
        (margin, "", (), "activation is required.*decision_function"),
        (
            linear,
            "[input]\nsize = [8, 8]\n",
            (),
            "input.size in model.toml has no use for a classifier of rows",
        ),
        (linear, "[defaults]\nscore_threshold = 0.5\n", (), "defaults.score_threshold"),
        (linear, "features = ['a', 'b']\n", (), "expected 4 features in model.toml"),
        (linear, "features = ['a', 'b', 'c', 'b']\n", (), "each name once"),
        (lambda path: network(path, 4), "", (), "variable first axis"),
    ],
)
def test_what_is_missing_is_asked_for_by_name(path, make, toml, labels, message):
    written(make(path), toml, labels)
    with pytest.raises(LoadError, match=message):
        Model("m", "1", path)


def test_margins_of_several_classes_are_the_scores(path):
    served = pipeline(written(nameless(path), labels=IRISES))
    margins = np.float32([[-0.25, 2.5, -3]])
    (output,) = served.infer(ask(margins, "x", action="predict_proba")).outputs
    assert [(p.label, p.score) for p in output.data[0]] == [
        ("versicolor", 2.5),
        ("setosa", -0.25),
        ("virginica", -3),
    ]
    served.close()


def test_maps_whose_classes_cannot_be_read_are_refused(path, monkeypatch):
    monkeypatch.setattr(onnx_file, "_CLASS_LABELS", ())  # as where ZipMap stands in a branch
    written(linear(path), labels=IRISES)
    with pytest.raises(LoadError, match="expected ZipMap in the graph to name the classes"):
        Model("m", "1", path)


def test_maps_without_the_task_say_what_to_write(path):
    linear(path)
    with pytest.raises(LoadError, match=r'task = "classification" in model.toml .* zipmap=False'):
        Model("m", "1", path)


def explained(path, rows, **parameters):
    served = pipeline(written(linear(path), "features = ['a', 'b', 'c', 'd']\n"))
    try:
        return served.explain(ask(np.float32(rows), **parameters))
    finally:
        served.close()


def test_a_row_is_explained_by_the_values_of_the_others(path):
    rows = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    response, explanations = explained(path, rows)
    assert labels_of(response.outputs[0]) == NAMES
    scores = probabilities(rows)
    for row, explanation in enumerate(explanations):
        assert explanation["method"] == "permutation"
        assert explanation["features"] == ["a", "b", "c", "d"]
        assert explanation["prediction"].label == NAMES[row]
        expected = []
        for feature in range(4):
            changed = np.array([rows[row]] * 2, float)
            changed[:, feature] = [rows[other][feature] for other in range(3) if other != row]
            expected.append(scores[row, row] - probabilities(changed)[:, row].mean())
        assert explanation["saliency"] == pytest.approx(expected, abs=1e-6)
        assert np.argmax(explanation["saliency"]) == row
        assert explanation["saliency"][3] == 0


def test_columns_of_texts_are_explained_too(path):
    served = pipeline(written(of_texts(path), '[output]\nactivation = "none"\n', ("no", "yes")))
    tensors = [
        Tensor("answer", "BYTES", (3,), ["yes", "no", "no"]),
        Tensor("note", "BYTES", (3, 1), ["a", "b", "c"]),
    ]
    response, explanations = served.explain(InferRequest("m", None, "r", tensors))
    served.close()
    assert labels_of(response.outputs[0]) == ["yes", "no", "no"]
    assert [explanation["features"] for explanation in explanations] == [["answer", "note"]] * 3
    drops = [explanation["saliency"] for explanation in explanations]
    assert drops == [[1.0, 0.0], [0.5, 0.0], [0.5, 0.0]]


def test_a_target_is_chosen_in_the_order_of_the_scores(path):
    _, explanations = explained(path, [[1, 0, 0, 0], [0, 1, 0, 0]], target=2)
    assert [explanation["prediction"].label for explanation in explanations] == ["virginica"] * 2


@pytest.mark.parametrize(
    ("rows", "parameters", "message"),
    [
        ([[1, 0, 0, 0]], {}, "expected 2 rows or more to explain"),
        ([[1, 0, 0, 0]] * 2, {"target": 3}, "target"),
        ([[1, 0, 0, 0]] * 9, {}, "expected 1 to 8 rows"),
        ([[1, 0, 0, 0]] * 2, {"metadata": 7}, "metadata"),
    ],
)
def test_what_cannot_be_explained_is_refused(path, rows, parameters, message):
    with pytest.raises(InvalidRequest, match=message):
        explained(path, rows, **parameters)


def test_explanations_are_bounded(path, monkeypatch):
    monkeypatch.setattr(explaining, "MAX_RUNS", 100)
    with pytest.raises(InvalidRequest, match="at most 100 changed rows to explain, got 120"):
        explained(path, [[1, 0, 0, 0]] * 6)
