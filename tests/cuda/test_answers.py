"""A model answers on the GPU as it does on the CPU: outputs within a tolerance, and the same predictions."""

import msgspec
import numpy as np
import pytest

from quadriga.engine.models.inspection import open_model
from quadriga.tasks.image import MAX_PIXELS
from tests.cuda.conftest import CPU, CUDA
from tests.server_process import IMAGES, MODELS, SAMPLE_MODELS

pytestmark = pytest.mark.cuda

VISION = {folder: name for folder, name in MODELS.items() if folder != "image-text"}
EXACT = 1e-4
"""Largest difference of an output in 32 bits, as a share of its largest number."""
TF32 = 2e-2
"""The same where products are of TF32, which has 10 bits after the point."""


def images(folder, predictor):
    files = sorted(path for path in (IMAGES / folder).iterdir() if path.name.startswith("scene"))
    assert files
    return [predictor.decode(file.read_bytes(), MAX_PIXELS) for file in files]


def largest_difference(expected, got):
    """Return the largest difference of all outputs, each as a share of its largest number."""
    assert expected.keys() == got.keys()
    return max(
        float(np.max(np.abs(expected[name] - got[name])) / np.max(np.abs(expected[name])))
        for name in expected
    )


@pytest.mark.parametrize(("options", "tolerance"), [({"use_tf32": 0}, EXACT), ({}, TF32)])
@pytest.mark.parametrize("folder", VISION)
def test_outputs_are_those_of_the_cpu(on_cuda, folder, options, tolerance):
    reference = open_model(SAMPLE_MODELS / VISION[folder]).image_predictor
    model = on_cuda(VISION[folder], **options)
    assert model.session.providers == (CUDA, CPU)
    differences = [
        largest_difference(reference.outputs_for(image), model.image_predictor.outputs_for(image))
        for image in images(folder, reference)
    ]
    assert max(differences) < tolerance


@pytest.mark.parametrize("folder", VISION)
def test_predictions_and_embeddings_are_those_of_the_cpu(on_cuda, folder):
    reference = open_model(SAMPLE_MODELS / VISION[folder])
    model = on_cuda(VISION[folder], use_tf32=0)
    for image in images(folder, reference.image_predictor):
        options = reference.image_predictor.read_options({})
        ((expected, expected_vector),) = reference.image_predictor.predict([image], [options])
        ((got, vector),) = model.image_predictor.predict([image], [options])
        assert_alike(msgspec.to_builtins(expected), msgspec.to_builtins(got))
        assert np.allclose(vector, expected_vector, rtol=1e-3, atol=1e-4)


def assert_alike(expected, got):
    """Compare predictions: numbers within a thousandth, and a pixel; texts exactly."""
    if isinstance(expected, dict):
        assert expected.keys() == got.keys()
        for key, value in expected.items():
            assert_alike(value, got[key])
    elif isinstance(expected, list):
        assert len(expected) == len(got)
        for one, other in zip(expected, got, strict=True):
            assert_alike(one, other)
    elif isinstance(expected, float):
        assert got == pytest.approx(expected, rel=1e-3, abs=1e-2)
    else:
        assert expected == got


QUESTIONS = {
    "one prompt": {"prompts": ["Describe the image."]},
    "prompts of several lengths": {
        "prompts": [
            "How many shapes are there?",
            "Describe the image.",
            "What shape is the largest one?",
        ]
    },
    "beams": {"prompts": ["Describe the image."], "num_beams": 3},
    "beams of two prompts": {
        "prompts": ["How many shapes are there?", "Describe the image."],
        "num_beams": 2,
    },
    "prompts that run out": {"prompts": ["Describe the image."], "max_new_tokens": 3},
}


@pytest.mark.parametrize("options", [{"use_tf32": 0}, {}], ids=["32 bits", "TF32"])
@pytest.mark.parametrize("parameters", QUESTIONS.values(), ids=QUESTIONS)
def test_texts_that_are_generated_on_the_device_are_those_of_the_cpu(on_cuda, parameters, options):
    reference = open_model(SAMPLE_MODELS / MODELS["image-text"]).image_predictor
    predictor = on_cuda(MODELS["image-text"], **options).image_predictor
    read = predictor.read_options(parameters)
    for image in images("image-text", reference):
        ((expected, vector),) = reference.predict([image], [read])
        ((got, got_vector),) = predictor.predict([image], [read])
        assert got == expected
        tolerance = EXACT if options else TF32
        assert np.max(np.abs(got_vector - vector)) < tolerance * np.max(np.abs(vector))


def test_a_text_is_streamed_from_the_device(on_cuda):
    predictor = on_cuda(MODELS["image-text"]).image_predictor
    (first, *_) = images("image-text", predictor)
    options = predictor.read_options({"prompts": ["Describe the image."]})
    ((expected, _),) = predictor.predict([first], [options])
    pieces = []
    stream = predictor.stream(first, options)
    try:
        while True:
            pieces.append(next(stream))
    except StopIteration as ended:
        pieces.append(ended.value[0])
    assert len(pieces) > 2
    assert "".join(pieces) == expected[0].answer


def test_a_cache_stays_on_the_device_between_two_tokens(on_cuda):
    package = on_cuda(MODELS["image-text"]).image_predictor
    kept = []
    session = package.session
    run = session.run_on_device

    def watched(feeds, fetch, device_outputs):
        kept.extend(v.device_name() for v in feeds.values() if not isinstance(v, np.ndarray))
        return run(feeds, fetch, device_outputs)

    session.run_on_device = watched
    (first, *_) = images("image-text", package)
    package.predict([first], [package.read_options({"prompts": ["Describe the image."]})])
    assert kept
    assert set(kept) == {"cuda"}
