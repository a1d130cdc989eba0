"""Write classifiers of rows by scikit-learn, XGBoost and LightGBM, with what each library answers.

Run by `test_rows.py`, with a Python that has skl2onnx, scikit-learn, xgboost, lightgbm and onnxmltools: it writes
`<model>/` for each model to the folder given, with `expected.json`.
"""

import json
import sys
from pathlib import Path

import lightgbm
import numpy as np
import onnx
import xgboost
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType as ToolsFloatTensorType
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC

NAMES = np.array(["setosa", "versicolor", "virginica"])
FLOATS = [("X", FloatTensorType([None, 4]))]
CLASSIFIERS = {
    "logistic": LogisticRegression(max_iter=1000),
    "forest": RandomForestClassifier(10, random_state=0),
    "boosting": GradientBoostingClassifier(n_estimators=10, random_state=0),
    "neighbours": KNeighborsClassifier(5),
    "bayes": GaussianNB(),
    "network": MLPClassifier(max_iter=300, random_state=0),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
    "one-against-rest": OneVsRestClassifier(LogisticRegression()),
    "two-classes": LogisticRegression(),
}


def write(folder, model, inputs, classes, scores, *, toml="", labels=()):
    """Write one model, its configuration, and the scores of each row."""
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    (folder / "model.toml").write_text(f'task = "classification"\n{toml}')
    if len(labels):
        (folder / "labels.txt").write_text("\n".join(map(str, labels)))
    rows = np.float64(scores).tolist()
    expected = [dict(zip(map(str, classes), row, strict=True)) for row in rows]
    (folder / "expected.json").write_text(json.dumps({"inputs": inputs, "scores": expected}))


def floats(rows, name="X"):
    return {name: {"datatype": "FP32", "shape": list(rows.shape), "data": rows.ravel().tolist()}}


def from_sklearn(root, rows, numbers):
    for name, classifier in CLASSIFIERS.items():
        two = np.minimum(numbers, 1) if name == "two-classes" else numbers
        for kind, truth in {"texts": NAMES[two], "numbers": two + 3}.items():
            classifier.fit(rows, truth)
            for form in ("maps", "floats"):
                options = {id(classifier): {"zipmap": form == "maps"}}
                model = convert_sklearn(classifier, initial_types=FLOATS, options=options)
                classes = classifier.classes_
                labels = () if form == "maps" else classes
                scores = classifier.predict_proba(rows)
                folder = root / f"{name}-{kind}-{form}"
                write(folder, model, floats(rows), classes, scores, labels=labels)


def from_margins(root, rows, numbers):
    classifier = LinearSVC(random_state=0).fit(rows, numbers > 1)
    second = 1 / (1 + np.exp(-classifier.decision_function(rows)))
    scores, classes = np.stack((1 - second, second), axis=1), ("small", "large")
    model = convert_sklearn(classifier, initial_types=FLOATS)
    toml = '[output]\nactivation = "sigmoid"\n'
    write(root / "margins", model, floats(rows), classes, scores, toml=toml, labels=classes)
    classifier = SVC(decision_function_shape="ovr").fit(rows, NAMES[numbers])
    model, scores = (
        convert_sklearn(classifier, initial_types=FLOATS),
        classifier.decision_function(rows),
    )
    write(root / "raw-scores", model, floats(rows), classifier.classes_, scores)


def from_columns(root):
    rows = [["a", 1.0, 2.0], ["b", 2.0, 1.0], ["a", 3.0, 3.0], ["b", 4.0, 0.5]] * 5
    table = np.array(rows, dtype=object)
    prepared = ColumnTransformer(
        [("kind", OneHotEncoder(), [0]), ("size", StandardScaler(), [1, 2])]
    )
    classifier = make_pipeline(prepared, LogisticRegression()).fit(table, ["no", "yes"] * 10)
    types = {"colour": StringTensorType, "size": FloatTensorType, "weight": FloatTensorType}
    inputs = {
        name: {"datatype": "FP32" if index else "BYTES", "shape": [20, 1], "data": column}
        for index, (name, column) in enumerate(zip(types, table.T.tolist(), strict=True))
    }
    model = convert_sklearn(
        classifier, initial_types=[(name, kind([None, 1])) for name, kind in types.items()]
    )
    write(root / "columns", model, inputs, classifier.classes_, classifier.predict_proba(table))


def from_trees(root, rows, numbers):
    types = [("input", ToolsFloatTensorType([None, 4]))]
    inputs = floats(rows, "input")
    for kind, truth in {"three": numbers, "two": np.minimum(numbers, 1)}.items():
        boosted = xgboost.XGBClassifier(n_estimators=10, max_depth=3).fit(rows, truth)
        scores = boosted.predict_proba(rows)
        labels = NAMES[: scores.shape[1]]
        model = convert_xgboost(boosted, initial_types=types)
        write(root / f"xgboost-{kind}", model, inputs, labels, scores, labels=labels)
        leaves = lightgbm.LGBMClassifier(n_estimators=10, verbose=-1).fit(rows, truth)
        scores = leaves.predict_proba(rows)
        for form in ("maps", "floats"):
            model = convert_lightgbm(leaves, initial_types=types, zipmap=form == "maps")
            write(root / f"lightgbm-{kind}-{form}", model, inputs, range(scores.shape[1]), scores)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    data, classes_ = load_iris(return_X_y=True)
    data = data.astype(np.float32)
    from_sklearn(target, data, classes_)
    from_margins(target, data, classes_)
    from_columns(target)
    from_trees(target, data, classes_)
