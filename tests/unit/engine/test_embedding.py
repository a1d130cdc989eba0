"""The embedding of an image: taken in the run that answers, which it does not change."""

import json
import logging
import shutil

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from quadriga.engine.cli import main
from quadriga.engine.models.image_graph import mean_vector, pool_vectors
from quadriga.engine.models.inspection import open_model
from quadriga.engine.models.runners.session import LoadError, Session
from quadriga.engine.serving.image_inference import ImageModel, infer_images, stream_image
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.image import decode
from tests.onnx_models import save, value
from tests.server_process import IMAGES, SAMPLE_MODELS

SAMPLES = {
    "shapes-classifier": ("/ReduceMean_output_0", ""),
    "shapes-detector": ("/coarse/coarse.1/Relu_output_0", "average of the map"),
    "ships-oriented-detector": ("/coarse/coarse.1/Relu_output_0", "average of the map"),
    "shapes-segmenter": ("/middle/Relu_output_0", "average of the map"),
    "shapes-image-text": ("image_features", "mean of the tokens"),
}
GRAPHS = [name for name in SAMPLES if name != "shapes-image-text"]
SCENES = [IMAGES / "detection" / f"scene_0{number}.jpg" for number in (1, 2, 3)]


def copied(folder, name, monitor=""):
    """Copy a sample model, with lines of `[monitor]`."""
    target = folder / name
    shutil.copytree(SAMPLE_MODELS / name, target)
    with (target / "model.toml").open("a") as file:
        file.write(f"\n[monitor]\n{monitor}\n")
    return target


def answered(model, paths, **parameters):
    images = ImageModel(model.image_predictor, 10**7, 10, is_scored=True)
    data = [path.read_bytes() for path in paths]
    tensor = Tensor("a", "BYTES", (len(data),), data=data, parameters=parameters)
    return infer_images(images, InferRequest(model.name, None, "", [tensor]))[1]


def test_what_nobody_asks_for_is_not_computed():
    model = open_model(SAMPLE_MODELS / "shapes-classifier")
    asked = []
    run = model.session._runner.run
    model.session._runner.run = lambda graph, names, *others: (
        asked.append(names) or run(graph, names, *others)
    )
    image = decode(SCENES[0].read_bytes())
    options = [model.image_predictor.read_options({})]
    ((predictions, vector),) = model.image_predictor.predict([image], options)
    ((same, none),) = model.image_predictor.predict([image], options, with_embedding=False)
    assert (same, none) == (predictions, None)
    assert vector is not None
    assert asked[1] == [name for name in asked[0] if name != model.embedding.output]


@pytest.mark.parametrize("name", SAMPLES)
def test_each_sample_model_has_an_embedding(name):
    model = open_model(SAMPLE_MODELS / name)
    source = model.embedding
    assert (source.tensor, source.pooling, source.length) == (*SAMPLES[name], 64)
    assert len(model.embedding_space) == 16
    assert int(model.embedding_space, 16) >= 0
    parameters = {"prompt": "How many circles?"} if name == "shapes-image-text" else {}
    items = answered(model, SCENES, **parameters)
    vectors = [item.embedding for item in items]
    for vector, path in zip(vectors, SCENES, strict=True):
        assert (vector.dtype, vector.shape) == (np.float32, (64,))
        (alone,) = answered(model, [path], **parameters)
        np.testing.assert_allclose(vector, alone.embedding, rtol=1e-4, atol=1e-4)
        channels = model.spec.input.channels
        embedded = model.embed(decode(path.read_bytes(), channels=channels))
        np.testing.assert_array_equal(embedded, alone.embedding)
    assert not np.allclose(vectors[0], vectors[1], rtol=1e-2)


@pytest.mark.parametrize("name", GRAPHS)
def test_answers_are_those_of_the_file_to_the_bit(name):
    model = open_model(SAMPLE_MODELS / name)
    plain = Session(SAMPLE_MODELS / name / "model.onnx")
    assert (model.session.inputs, model.session.outputs) == (plain.inputs, plain.outputs)
    assert model.info(["1"]).outputs[0].name == "image"
    (image,) = plain.inputs
    tensor = np.random.default_rng(3).random((3, *image.shape[1:]), np.float32)
    feeds = {image.name: tensor}
    output_names = [*(output.name for output in plain.outputs), model.embedding.output]
    with_it, without = model.session.run(feeds, output_names), plain.run(feeds)
    assert model.session.run(feeds).keys() == without.keys()
    for output, array in without.items():
        np.testing.assert_array_equal(with_it[output], array)


def test_embedding_holds_the_values_of_the_tensor(tmp_path):
    """The onnx package makes the same tensor an output; numpy averages it."""
    name, tensor = "shapes-segmenter", SAMPLES["shapes-segmenter"][0]
    proto = onnx.load(SAMPLE_MODELS / name / "model.onnx")
    proto.graph.output.append(helper.make_empty_tensor_value_info(tensor))
    onnx.save(proto, tmp_path / "model.onnx")
    model = open_model(SAMPLE_MODELS / name)
    image = decode(SCENES[0].read_bytes())
    fed, _ = model.image_predictor._task.preprocess(image)
    session = Session(tmp_path / "model.onnx")
    maps = session.run({session.inputs[0].name: fed[None]}, [tensor])[tensor]
    np.testing.assert_allclose(model.embed(image), maps[0].mean((1, 2)), rtol=1e-5)


def test_an_image_in_tiles_has_the_mean_of_theirs():
    model = open_model(SAMPLE_MODELS / "shapes-detector")
    image = decode(SCENES[0].read_bytes())
    size = [image.width // 2, image.height]
    (item,) = answered(model, SCENES[:1], tiling={"size": size, "overlap": 0})
    halves = [image.pixels[:, : size[0]], image.pixels[:, size[0] : 2 * size[0]]]
    vectors = [model.embed(type(image)(np.ascontiguousarray(half))) for half in halves]
    np.testing.assert_allclose(item.embedding, np.mean(vectors, axis=0), rtol=1e-4, atol=1e-5)


def test_an_answer_in_pieces_has_it():
    model = open_model(SAMPLE_MODELS / "shapes-image-text")
    images = ImageModel(model.image_predictor, 10**7, 10, is_scored=True)
    parameters = {"prompt": "How many circles?"}
    tensor = Tensor("a", "BYTES", (1,), data=[SCENES[0].read_bytes()], parameters=parameters)
    *_, (_, last) = stream_image(images, InferRequest(model.name, None, "", [tensor]))
    (complete,) = answered(model, SCENES[:1], **parameters)
    np.testing.assert_array_equal(last.embedding, complete.embedding)


@pytest.mark.parametrize(
    ("tensor", "length"),
    [("/fine/fine.3/Relu_output_0", 48), ("output0", 400), ("/Sub_output_0", 400)],
)
def test_model_toml_names_a_tensor(tmp_path, tensor, length):
    folder = copied(tmp_path, "shapes-detector", f'embedding = "{tensor}"')
    model = open_model(folder)
    assert (model.embedding.tensor, model.embedding.reason) == (tensor, "model.toml")
    assert model.embedding.length == length
    (item,) = answered(model, SCENES[:1])
    assert item.embedding.shape == (length,)
    assert (
        item.predictions
        == answered(open_model(SAMPLE_MODELS / folder.name), SCENES[:1])[0].predictions
    )
    assert model.embedding_space != open_model(SAMPLE_MODELS / folder.name).embedding_space


@pytest.mark.parametrize(
    ("name", "written", "other_model"),
    [
        ("shapes-classifier", "none", ""),
        ("shapes-classifier", "model:shapes-detector", "shapes-detector"),
        ("shapes-image-text", "none", ""),
        ("shapes-image-text", "model:shapes-detector", "shapes-detector"),
    ],
)
def test_model_toml_names_no_embedding_or_another_model(tmp_path, name, written, other_model):
    model = open_model(copied(tmp_path, name, f'embedding = "{written}"'))
    assert (model.embedding.tensor, model.embedding.other_model) == (None, other_model)
    assert model.embedding_space is None
    assert model.embed(decode(SCENES[0].read_bytes())) is None
    (item,) = answered(model, SCENES[:1], **({"prompt": "a"} if "text" in name else {}))
    assert item.embedding is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("shapes-detector", r"'/coarse/coarse.1/Relu_output_0'.*, got '/coarse/coarse.1/Relu'"),
        ("shapes-image-text", "'none' or 'model:<name>' for an image-text model"),
    ],
)
def test_a_tensor_that_is_not_there_is_refused(tmp_path, name, expected):
    with pytest.raises(LoadError, match=expected):
        open_model(copied(tmp_path, name, 'embedding = "/coarse/coarse.1/Relu"'))


CONVOLUTIONS = [
    helper.make_node("Conv", ["image", "w"], ["a"], strides=[2, 2]),
    helper.make_node("Cast", ["a"], ["bytes"], to=TensorProto.UINT8),
    helper.make_node("MaxPool", ["bytes"], ["pooled"], kernel_shape=[2, 2]),
    helper.make_node("Shape", ["a"], ["sizes"]),
    helper.make_node("Relu", ["a"], ["b"]),
    helper.make_node("Conv", ["b", "w"], ["c"]),
    helper.make_node("Relu", ["c"], ["d"]),
    helper.make_node("ReduceMean", ["d"], ["e"], axes=[2, 3], keepdims=0),
    helper.make_node("Mul", ["e", "e"], ["logits"]),
]


def small(folder, monitor=""):
    """A classifier without a linear layer, of two convolutions."""
    weights = np.random.default_rng(1).random((3, 3, 2, 2), np.float32)
    save(
        folder / "model.onnx",
        CONVOLUTIONS,
        [value("image", ["batch", 3, 16, 16])],
        outputs=[value("logits", ["batch", 3])],
        initializers={"w": weights},
    )
    (folder / "model.toml").write_text(
        'family = "plain-classifier"\nlabels = ["a", "b", "c"]\n[monitor]\n' + monitor
    )
    return folder


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        ("pooled", "onnxruntime refuses it as an output"),
        ("bytes", "onnxruntime refuses it as an output"),
        ("sizes", "expected floating numbers, got INT64"),
    ],
)
def test_model_without_usable_tensor_has_no_embedding(tmp_path, caplog, tensor, expected):
    with caplog.at_level(logging.WARNING, "quadriga.models"):
        model = open_model(small(tmp_path, f'embedding = "{tensor}"'))
    assert model.embedding.tensor is None
    assert expected in model.embedding.reason
    assert expected in caplog.text
    (item,) = answered(model, SCENES[:1])
    assert item.predictions
    assert item.embedding is None


def test_weights_beside_the_file_are_found(tmp_path):
    expected = open_model(small(tmp_path / "inside"))
    folder = small(tmp_path / "outside")
    proto = onnx.load(folder / "model.onnx")
    (folder / "model.onnx").unlink()
    onnx.save(
        proto, folder / "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    model = open_model(folder)
    assert model.embedding.tensor == expected.embedding.tensor == "d"
    image = decode(SCENES[0].read_bytes())
    np.testing.assert_array_equal(model.embed(image), expected.embed(image))


def test_inspect_names_it(tmp_path):
    folder = str(SAMPLE_MODELS / "shapes-classifier")
    result = CliRunner().invoke(main, ["inspect", folder], env={"COLUMNS": "200"})
    assert "/ReduceMean_output_0, 64 numbers (what the last linear layer reads" in result.output
    result = CliRunner().invoke(main, ["inspect", folder, "--json"])
    assert json.loads(result.output)["embedding"] == {
        "tensor": "/ReduceMean_output_0",
        "pooling": "",
        "reason": "what the last linear layer reads, before 'logits'",
        "length": 64,
        "output": "/ReduceMean_output_0",
        "other": "",
    }


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([[1, 2], [3, 4]], np.float16), [[1, 2], [3, 4]]),
        (np.array([[[1, 2], [3, 4]]] * 2, np.float64), [[2, 3], [2, 3]]),
        (np.arange(16, dtype=np.float32).reshape(2, 2, 2, 2), [[1.5, 5.5], [9.5, 13.5]]),
        (np.array([[1, np.nan], [1, 2]], np.float32), [None, [1, 2]]),
        (np.array([[1, 1e300], [1, 2]], np.float64), [None, [1, 2]]),
        (np.zeros((3, 2), np.float32), [None, None]),
        (np.zeros((2, 0), np.float32), [None, None]),
        (np.zeros((2, 20_000), np.float32), [None, None]),
        (np.zeros((2, 3), np.int64), [None, None]),
        (np.zeros(2, np.float32), [None, None]),
    ],
    ids=[
        "rows",
        "tokens",
        "maps",
        "nan",
        "huge",
        "rows-of-others",
        "empty",
        "long",
        "integers",
        "flat",
    ],
)
def test_pooling_gives_one_vector_per_image(array, expected):
    vectors = pool_vectors(array, 2)
    assert [None if vector is None else vector.tolist() for vector in vectors] == expected
    assert all(vector is None or vector.dtype == np.float32 for vector in vectors)


def test_mean_of_tiles_needs_every_embedding():
    ones_vector = np.ones(2, np.float32)
    assert mean_vector([ones_vector, 3 * ones_vector]).tolist() == [2, 2]
    assert mean_vector([ones_vector, None]) is None
    assert mean_vector([]) is None
