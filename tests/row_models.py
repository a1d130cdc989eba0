"""Classifiers of rows of features as exporters of scikit-learn and XGBoost write them, with weights of our own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.onnx_models import save, value

ML = "ai.onnx.ml"
IRISES = ("setosa", "versicolor", "virginica")
WEIGHTS = np.float32([[2, 0, 0, -1], [0, 2, 0, 0], [0, 0, 2, 1]])
"""(classes, features): the largest of the first three features decides, mostly."""
ROW_TOML = 'task = "classification"\n'


def probabilities(rows: Sequence[Sequence[float]]) -> np.ndarray:
    """What the linear classifiers answer, (rows, classes)."""
    powers = np.exp(np.float32(rows) @ WEIGHTS.T)
    return powers / powers.sum(axis=1, keepdims=True)


def _attributes(classes: Sequence[Any], texts: str, numbers: str) -> dict[str, Sequence[Any]]:
    return {texts if isinstance(classes[0], str) else numbers: list(classes)}


def _maps(name: str, key: int) -> onnx.ValueInfoProto:
    scores = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_map_type_proto(key, scores)
    return helper.make_value_info(name, helper.make_sequence_type_proto(maps))


def linear(
    path: Path,
    classes: Sequence[Any] = IRISES,
    *,
    zipmap: bool = True,
    inputs: Sequence[str] = (),
    rows: int | str | None = None,
) -> Path:
    """LogisticRegression by skl2onnx: LinearClassifier, Normalizer, and ZipMap or none.

    Args:
        path: Where to write it.
        classes: Texts, or whole numbers.
        zipmap: Whether the scores are maps.
        inputs: Names of columns of one feature; one input `X` of four if empty.
        rows: Size of the first axis, which is open.
    """
    key = TensorProto.STRING if isinstance(classes[0], str) else TensorProto.INT64
    features, nodes = "X", []
    infos = [value("X", [rows, 4])]
    if inputs:
        features = "merged_columns"
        infos = [value(name, [rows, 1]) for name in inputs]
        nodes = [helper.make_node("Concat", list(inputs), [features], axis=1)]
    nodes += [
        helper.make_node(
            "LinearClassifier", [features], ["label", "probability_tensor"], domain=ML,
            coefficients=WEIGHTS[: len(classes)].ravel().tolist(), intercepts=[0.0] * len(classes), multi_class=1,
            post_transform="SOFTMAX", **_attributes(classes, "classlabels_strings", "classlabels_ints"),
        ),
        helper.make_node("Normalizer", ["probability_tensor"], ["probabilities"], domain=ML, norm="L1"),
    ]  # fmt: skip
    outputs = [value("label", [rows], key), value("probabilities", [rows, len(classes)])]
    if zipmap:
        nodes += [
            helper.make_node("Identity", ["label"], ["output_label"]),
            helper.make_node(
                "ZipMap", ["probabilities"], ["output_probability"], domain=ML,
                **_attributes(classes, "classlabels_strings", "classlabels_int64s"),
            ),
        ]  # fmt: skip
        outputs = [value("output_label", [rows], key), _maps("output_probability", key)]
    return save(path, nodes, infos, outputs, domains={ML: 1})


def of_texts(path: Path) -> Path:
    """Two classes by two columns of texts: the first decides if it is "yes"."""
    nodes = [
        helper.make_node(
            "LabelEncoder", ["answer"], ["score"], domain=ML, keys_strings=["yes"], values_floats=[1.0],
            default_float=0.0,
        ),
        helper.make_node("Unsqueeze", ["score", "axis"], ["column"]),
        helper.make_node("Sub", ["one", "column"], ["rest"]),
        helper.make_node("Concat", ["rest", "column"], ["probabilities"], axis=1),
    ]  # fmt: skip
    inputs = [
        value("answer", [None], TensorProto.STRING),
        value("note", [None, 1], TensorProto.STRING),
    ]
    weights = {"axis": np.array([1]), "one": np.float32([1])}
    outputs = [value("probabilities", [None, 2])]
    return save(path, nodes, inputs, outputs, weights, domains={ML: 2})


def tree(path: Path) -> Path:
    """XGBClassifier by onnxmltools: one TreeEnsembleClassifier of two stumps over two classes."""
    node = helper.make_node(
        "TreeEnsembleClassifier", ["input"], ["label", "probabilities"], domain=ML,
        base_values=[0.0], class_ids=[0, 0], class_nodeids=[1, 2], class_treeids=[0, 0],
        class_weights=[-2.0, 2.0], classlabels_int64s=[0, 1], nodes_falsenodeids=[2, 0, 0],
        nodes_featureids=[2, 0, 0], nodes_hitrates=[1.0] * 3, nodes_missing_value_tracks_true=[0, 0, 0],
        nodes_modes=["BRANCH_LT", "LEAF", "LEAF"], nodes_nodeids=[0, 1, 2], nodes_treeids=[0, 0, 0],
        nodes_truenodeids=[1, 0, 0], nodes_values=[2.5, 0.0, 0.0], post_transform="LOGISTIC",
    )  # fmt: skip
    outputs = [value("label", [None], TensorProto.INT64), value("probabilities", [None, 2])]
    return save(path, [node], [value("input", [None, 4])], outputs, domains={ML: 1})


def margin(path: Path) -> Path:
    """LinearSVC of two classes by skl2onnx: one raw score a row, positive for the second class."""
    nodes = [
        helper.make_node(
            "LinearClassifier", ["X"], ["label", "raw_scores"], domain=ML, coefficients=[-1.0, 0, 0, 0, 1.0, 0, 0, 0],
            intercepts=[0.0, 0.0], multi_class=0, post_transform="NONE", classlabels_ints=[0, 1],
        ),
        helper.make_node("ArrayFeatureExtractor", ["raw_scores", "positive"], ["probabilities"], domain=ML),
    ]  # fmt: skip
    outputs = [value("label", [None], TensorProto.INT64), value("probabilities", [None, 1])]
    inputs = [value("X", [None, 4])]
    return save(path, nodes, inputs, outputs, {"positive": np.array([1])}, domains={ML: 1})


def network(path: Path, rows: int | str = "batch") -> Path:
    """A network of one layer by torch: logits, and nothing that names classes."""
    node = helper.make_node("MatMul", ["features", "weights"], ["logits"])
    outputs = [value("logits", [rows, 3])]
    return save(path, [node], [value("features", [rows, 4])], outputs, {"weights": WEIGHTS.T})
