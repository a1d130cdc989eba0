"""Recognition of a model: each field comes from the first source that has it."""

import re

import numpy as np
import pytest
from onnx import TensorProto

from quadriga.engine.models.recognition.model_toml import read_model_toml
from quadriga.engine.models.recognition.recognise import recognise
from quadriga.engine.models.runners.session import LoadError, Session
from tests.onnx_models import answering, classifier, detector, doubling

HEAD = np.zeros((6, 4), np.float32)
ULTRALYTICS = {
    "task": "detect",
    "names": "{0: 'cat', 1: 'dog'}",
    "imgsz": "[32, 32]",
    "stride": "32",
}


def recognised(path, score_threshold=None):
    return recognise(path.parent, Session(path), read_model_toml(path.parent), score_threshold)


def reasons(recognition):
    return {decision.field: decision.reason for decision in recognition.decisions}


def test_a_model_that_says_nothing_is_tensors(tmp_path):
    recognition = recognised(doubling(tmp_path / "model.onnx"))
    assert (recognition.task, recognition.spec) == ("TENSOR", None)


def test_ultralytics_metadata_suffices(tmp_path):
    recognition = recognised(detector(tmp_path / "model.onnx", HEAD, metadata=ULTRALYTICS))
    spec = recognition.spec
    assert spec.task == "OBJECT_DETECTION"
    assert spec.labels == ("cat", "dog")
    assert (spec.input.size_wh, spec.input.resize, spec.output.decoder) == (
        (32, 32),
        "letterbox",
        "ultralytics",
    )
    assert reasons(recognition)["labels"] == "ONNX metadata, names"
    assert "Ultralytics" in reasons(recognition)["family"]


def test_model_toml_wins_over_files_and_files_over_metadata(tmp_path):
    path = detector(tmp_path / "model.onnx", HEAD, metadata=ULTRALYTICS)
    (tmp_path / "labels.txt").write_text("\ufeffone\ntwo \n\n", encoding="utf-8")
    recognition = recognised(path)
    assert recognition.spec.labels == ("one", "two")
    assert reasons(recognition)["labels"] == "file labels.txt"
    (tmp_path / "model.toml").write_text(
        'task = "detection"\nlabels = ["a", "b"]\n[input]\nresize = "stretch"\n'
        "[defaults]\nscore_threshold = 0.1\n[store]\ninputs = 'none'\n[runtime]\nmax_batch = 2\n"
    )
    recognition = recognised(path, score_threshold=0.9)
    assert recognition.spec.labels == ("a", "b")
    assert recognition.spec.input.resize == "stretch"
    assert recognition.spec.defaults.score_threshold == 0.1
    assert recognition.written.store.inputs == "none"
    assert recognition.written.runtime.max_batch == 2


DEFAULTS = [  # decoder, score threshold, limit
    ("semantic_logits", 0.0, 10_000),
    ("mask2former_semantic", 0.0, 10_000),
    ("mask2former_instance", 0.5, 300),
]


@pytest.mark.parametrize(("decoder", "threshold", "limit"), DEFAULTS)
def test_where_each_pixel_has_a_class_no_pixel_is_left_out_by_default(
    tmp_path, decoder, threshold, limit
):
    path = answering(tmp_path / "model.onnx", {"out": np.zeros((2, 8, 8), np.float32)})
    (tmp_path / "model.toml").write_text(
        'task = "segmentation"\nlabels = ["cat", "dog"]\n[input]\nresize = "stretch"\n'
        f'[output]\ndecoder = "{decoder}"\n'
    )
    recognition = recognised(path)
    defaults = recognition.spec.defaults
    assert (defaults.score_threshold, defaults.max_detections) == (threshold, limit)
    assert recognised(path, 0.25).spec.defaults.score_threshold == 0.25


def test_server_threshold_applies_without_a_model_threshold(tmp_path):
    path = detector(tmp_path / "model.onnx", HEAD, metadata=ULTRALYTICS)
    assert recognised(path, 0.9).spec.defaults.score_threshold == 0.9
    assert recognised(path).spec.defaults.score_threshold == 0.5


@pytest.mark.parametrize("name", ["classification", "IMAGE_CLASSIFICATION", "image_classification"])
def test_a_task_is_named_shortly_or_as_chariot_does(tmp_path, name):
    path = classifier(tmp_path / "model.onnx")
    (tmp_path / "model.toml").write_text(
        f'task = "{name}"\n[input]\nresize = "stretch"\n[output]\nactivation = "softmax"\n'
    )
    spec = recognised(path).spec
    assert spec.task == "IMAGE_CLASSIFICATION"
    assert spec.labels == ("class_0", "class_1", "class_2")


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("task = ", "TOML"),
        ('task = "pose"', "segmentation, tensor, or module:attribute, got 'pose'"),
        ('tasks = "detection"', "unknown field"),
        ('task = "classification"', 'family = "torchvision-classifier"'),
        ('family = "yolo"', "ultralytics-obb"),
        ('family = "plain-classifer"', "got 'plain-classifer'; is it plain-classifier?"),
        ('family = "SMP"', "got 'SMP'; is it torchvision-semantic or binary-segmentation?"),
        ('family = "resnet50"', "is it torchvision-classifier or timm or hf-classifier?"),
        ('family = "D-FINE"', "got 'D-FINE'; is it rtdetr or detr-sigmoid?"),
        ('family = "plain-classifier"\n[input]\nsize = 64', "[input] size: Expected 'array'"),
        ('task = "classification"\n[input]\nresize = "zoom"', "letterbox"),
        (
            'task = "classification"\n[input]\nresize = "stretch"\nname = "x"',
            "one of image FP32 [-1, 3, 8, 8], got 'x'",
        ),
        ('task = "detection"\n[input]\nresize = "stretch"', "[output] decoder"),
        ('task = "detection"\n[output]\ndecoder = "ultralytics"', "[input] resize"),
        (
            '[output]\ndecoder = "acme:decode"',
            "task is required in model.toml beside decoder 'acme:decode'",
        ),
        ('task = "classification"\n[input]\nresize = "stretch"\nsize = [9, 9]', "[8, 8]"),
        (
            'labels = ["a"]\ntask = "classification"\n[input]\nresize = "stretch"\n[output]\nactivation = "none"',
            "expected 3 labels",
        ),
        (
            'task = "classification"\nlabels = "none.txt"\n[input]\nresize = "stretch"\n[output]\nactivation = "none"',
            "none.txt",
        ),
        (
            'task = "classification"\n[input]\nresize = "stretch"\nmean = [0.5]\n',
            "3 values in input.mean",
        ),
    ],
)
def test_errors_in_model_toml_are_named(tmp_path, toml, message):
    path = classifier(tmp_path / "model.onnx")
    (tmp_path / "model.toml").write_text(toml)
    with pytest.raises(LoadError) as caught:
        recognised(path)
    assert message in str(caught.value)


def test_an_image_model_needs_an_image_s_input(tmp_path):
    path = doubling(tmp_path / "model.onnx")
    (tmp_path / "model.toml").write_text('task = "detection"')
    with pytest.raises(LoadError, match="4 dimensions"):
        recognised(path)


def test_an_output_whose_rows_are_no_images_is_no_classifier_s(tmp_path):
    path = answering(
        tmp_path / "model.onnx",
        {"out": np.zeros((26, 37), np.float32)},
        image=("images", [1, 3, 32, 128]),
        batched=False,
    )
    assert recognised(path).task == "TENSOR"


def test_a_task_that_is_not_served_is_named_and_not_read_as_another(tmp_path):
    path = detector(tmp_path / "model.onnx", HEAD, metadata=ULTRALYTICS | {"task": "pose"})
    with pytest.raises(LoadError, match=r'task pose\).*task = "tensor"'):
        recognised(path)
    (tmp_path / "model.toml").write_text('task = "tensor"')
    assert recognised(path).task == "TENSOR"


def test_a_resize_that_nothing_gives_is_asked_for_with_the_choices(tmp_path):
    path = detector(tmp_path / "model.onnx", HEAD)
    (tmp_path / "model.toml").write_text('task = "detection"\n[output]\ndecoder = "ultralytics"')
    with pytest.raises(LoadError, match=r"\[input\] resize .* one of letterbox, .*shortest_crop"):
        recognised(path)


OPEN_IMAGE = ("images", ["batch", 3, "height", "width"])
FIXED_IMAGE = ("images", ["batch", 3, 32, 32])
MASK, SCORES = np.zeros((1, 32, 32), np.float32), np.zeros((2,), np.float32)
SIZE, NAMES, RESIZE = r"\[input\] size", "labels are required", r"\[input\] resize"
MISSING = [  # (image input, output), model.toml, what the error asks for, what it does not
    ((OPEN_IMAGE, MASK), "", ["birefnet", SIZE, NAMES], [RESIZE]),
    ((OPEN_IMAGE, MASK), 'labels = ["text"]', ["birefnet", SIZE], [NAMES]),
    ((OPEN_IMAGE, MASK), 'family = "birefnet"', [SIZE, NAMES], [RESIZE]),
    ((FIXED_IMAGE, MASK), 'task = "segmentation"\n[input]\nresize = "stretch"',
     [r"\[output\] decoder", NAMES], [SIZE, RESIZE]),
    ((OPEN_IMAGE, MASK), 'task = "segmentation"\n[output]\ndecoder = "binary"', [RESIZE, SIZE, NAMES], ["decoder or"]),
    ((OPEN_IMAGE, SCORES), "", [r"timm.*needs \[input\] resize, mean, std$", SIZE], [NAMES]),
    ((FIXED_IMAGE, SCORES), "[output]\nangle = 'oc'", ["plain-classifier"], [SIZE, NAMES]),
]  # fmt: skip


@pytest.mark.parametrize(("graph", "toml", "questions", "known"), MISSING)
def test_everything_that_is_missing_is_asked_for_at_once(tmp_path, graph, toml, questions, known):
    image, output = graph
    path = answering(tmp_path / "model.onnx", {"out": output}, image=image)
    (tmp_path / "model.toml").write_text(toml)
    with pytest.raises(LoadError) as caught:
        recognised(path)
    for pattern in questions:
        assert re.search(pattern, str(caught.value), re.MULTILINE), pattern
    for pattern in known:
        assert not re.search(pattern, str(caught.value)), pattern


def test_a_std_of_zero_is_refused(tmp_path):
    path = detector(tmp_path / "model.onnx", HEAD, metadata=ULTRALYTICS)
    (tmp_path / "model.toml").write_text("[input]\nstd = [1.0, 0.0, 1.0]")
    with pytest.raises(LoadError, match="std without 0"):
        recognised(path)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[output]\nangle = 'le90'", "output.angle in model.toml has no use for detection with decoder ultralytics, only for oriented"),
        ("[output]\nactivation = 'sigmoid'", "for classification, a classifier of rows, semantic_logits, binary, birefnet"),
        ("[input]\npad_value = 256", r"\[input\] pad_value: .*255"),
        ("[input]\npad_value = nan", r"\[input\] pad_value"),
        ("[output]\nnms = 'none'", r"\[output\] nms: expected one of class, agnostic"),
        ("[defaults]\ntop_k = 3", "defaults.top_k .* only for classification"),
        ("[defaults]\nmin_area = 3", "defaults.min_area .* only for segmentation"),
        ("[defaults]\nscore_threshold = 1.5", "score_threshold"),
        ("[defaults]\nmax_detections = 0", "max_detections"),
        ("[defaults]\nepsilon = inf", "epsilon"),
        ("labels = { a = 'b' }", "class names in model.toml, labels, .* got {'a': 'b'}"),
        ("labels = []", r"class names in model.toml, labels, .* got \[\]"),
    ],
)  # fmt: skip
def test_unused_key_is_refused_with_its_purpose(tmp_path, toml, message):
    path = detector(tmp_path / "model.onnx", HEAD, metadata=ULTRALYTICS)
    (tmp_path / "model.toml").write_text(toml)
    with pytest.raises(LoadError, match=message):
        recognised(path)


@pytest.mark.parametrize(
    "line",
    ['[output]\ndecoder = "yolov5"', "[output]\nlabel_offset = 1", "[output]\nbackground = 0",
     "[defaults]\nscore_threshold = 0.5", "[tiling]\nsize = [64, 64]"],
)  # fmt: skip
def test_a_classifier_takes_no_keys_of_detectors(tmp_path, line):
    path = classifier(tmp_path / "model.onnx")
    (tmp_path / "model.toml").write_text(f'family = "plain-classifier"\n{line}')
    with pytest.raises(LoadError, match=r"for classification.*, only for detection, oriented"):
        recognised(path)


def test_what_suppresses_nothing_takes_no_rule_of_suppression(tmp_path):
    path = detector(tmp_path / "model.onnx", HEAD, metadata=ULTRALYTICS)
    (tmp_path / "model.toml").write_text("[output]\nnms = 'agnostic'")
    assert recognised(path).spec.output.nms == "agnostic"
    path = detector(tmp_path / "model.onnx", np.zeros((300, 6)), metadata=ULTRALYTICS)
    with pytest.raises(LoadError, match=r"output\.nms .* no use .* decoder box, score, class"):
        recognised(path)


def test_a_fractional_border_needs_floats(tmp_path):
    image = ("images", [1, 3, 32, 32])
    path = answering(tmp_path / "model.onnx", {"out": HEAD}, image=image, kind=TensorProto.UINT8)
    (tmp_path / "model.toml").write_text('family = "ultralytics"\n[input]\npad_value = 127.5')
    with pytest.raises(LoadError, match=r"pad_value to be a whole number .* uint8, got 127\.5"):
        recognised(path)


def test_labels_that_nothing_tells_are_asked_for_with_the_line_to_write(tmp_path):
    path = detector(tmp_path / "model.onnx", np.zeros((300, 6), np.float32))
    (tmp_path / "model.toml").write_text('family = "ultralytics-end2end"')
    with pytest.raises(LoadError, match=r'labels = \["first class", .*labels.txt with one label'):
        recognised(path)


@pytest.mark.parametrize("names", ["{0: 'cat', 1: ", "None", "", "{'cat': 'dog'}"])
def test_malformed_names_of_metadata_are_an_error_and_no_numbers(tmp_path, names):
    path = detector(tmp_path / "model.onnx", HEAD, metadata=ULTRALYTICS | {"names": names})
    with pytest.raises(LoadError, match=r"class names in ONNX metadata, names, .* Write labels = "):
        recognised(path)
    (tmp_path / "labels.txt").write_text("one\ntwo\n")
    assert recognised(path).spec.labels == ("one", "two")


def test_a_missing_preprocessor_config_is_named_with_the_lines_that_replace_it(tmp_path):
    path = classifier(tmp_path / "model.onnx")
    (tmp_path / "config.json").write_text('{"architectures": ["ViTForImageClassification"]}')
    with pytest.raises(LoadError, match=r"expected preprocessor_config\.json") as caught:
        recognised(path)
    lines = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    (tmp_path / "model.toml").write_text(
        "\n".join(line for line in lines if "size" not in line[:7])
    )
    spec = recognised(path).spec
    assert (spec.input.resize, spec.input.mean) == ("stretch", (0.485, 0.456, 0.406))
    content = '{"image_processor": {"size": {"height": 8, "width": 8}, "do_normalize": false}}'
    (tmp_path / "model.toml").unlink()
    (tmp_path / "processor_config.json").write_text(content)
    assert recognised(path).spec.input.mean == (0, 0, 0)


@pytest.mark.parametrize(
    "line", ['labels = ["a"]', "[input]\nsize = [8, 8]", "[output]\nangle = 'oc'"]
)
def test_tensors_take_no_keys_of_images(tmp_path, line):
    path = doubling(tmp_path / "model.onnx")
    (tmp_path / "model.toml").write_text(line)
    with pytest.raises(LoadError, match=r"for tensor, only for .*oriented"):
        recognised(path)


METADATA_NAMES = [  # metadata, labels, source
    ({"character": "cat\ndog"}, ("cat", "dog"), "ONNX metadata, character"),
    ({"character": "cat\r\n[\r\n"}, ("cat", "["), "ONNX metadata, character"),
    ({"labels": '["cat", "dog"]'}, ("cat", "dog"), "ONNX metadata, labels"),
    ({"class_names": "{'cat': 0, 'dog': 1}"}, ("cat", "dog"), "ONNX metadata, class_names"),
    ({"names": "['a', 'b']", "character": "cat\ndog"}, ("a", "b"), "ONNX metadata, names"),
    ({"character": "a\nb\nc"}, ("class_0", "class_1"), "no names given, as ONNX metadata, character has 3"),
    ({"labels": "none"}, ("class_0", "class_1"), "no names given, as ONNX metadata, labels has 1"),
    ({"labels": ""}, ("class_0", "class_1"), "no names given"),
]  # fmt: skip


@pytest.mark.parametrize(("metadata", "labels", "source"), METADATA_NAMES)
def test_class_names_of_paddle_and_of_people_are_read_from_metadata(
    tmp_path, metadata, labels, source
):
    path = detector(tmp_path / "model.onnx", HEAD, metadata=metadata)
    (tmp_path / "model.toml").write_text('family = "ultralytics"')
    recognition = recognised(path)
    assert recognition.spec.labels == labels
    assert reasons(recognition)["labels"] == source


def test_numbers_without_a_name_are_counted(tmp_path):
    names = {"names": "{1: 'dog'}"}
    recognition = recognised(detector(tmp_path / "model.onnx", HEAD, metadata=ULTRALYTICS | names))
    assert recognition.spec.labels == ("class_0", "dog")
    assert reasons(recognition)["labels"] == "ONNX metadata, names, 1 without a name"
