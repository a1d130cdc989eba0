"""Requests that share runs on the GPU are answered as those that run alone."""

import threading

import numpy as np
import pytest

from quadriga.engine.models.runners.session import LoadError
from quadriga.tasks.image import MAX_PIXELS
from tests.server_process import IMAGES, MODELS

pytestmark = pytest.mark.cuda

VISION = {folder: name for folder, name in MODELS.items() if folder != "image-text"}
BATCHING = "batching = {max = 16, delay_ms = 20}"


@pytest.mark.parametrize("folder", VISION)
def test_runs_are_shared_without_tf32(on_cuda, folder):
    alone = on_cuda(VISION[folder], use_tf32=0).image_predictor
    shared = on_cuda(VISION[folder], BATCHING, use_tf32=0)
    predictor = shared.image_predictor
    files = sorted(path for path in (IMAGES / folder).iterdir() if path.name.startswith("scene"))
    images = [alone.decode(file.read_bytes(), MAX_PIXELS) for file in files[:8]]
    outputs = [None] * len(images)

    def ask(index):
        outputs[index] = predictor.outputs_for(images[index])

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for image, got in zip(images, outputs, strict=True):
        expected = alone.outputs_for(image)
        assert expected.keys() == got.keys()
        for name, array in expected.items():
            scale = np.maximum(np.abs(array), 1.0)
            assert float(np.max(np.abs(array - got[name]) / scale)) < 1e-4


def test_with_tf32_rows_differ_by_more_than_rounding_and_the_text_says_what_to_do(on_cuda):
    with pytest.raises(LoadError, match="use_tf32 = 0"):
        on_cuda(VISION["detection"], BATCHING)
