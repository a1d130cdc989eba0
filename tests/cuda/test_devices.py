"""A GPU that is not there, and a GPU whose memory is full: a clear error, and the rest goes on."""

import json
import logging

import numpy as np
import pytest
from click.testing import CliRunner

from quadriga.engine.cli import main
from quadriga.engine.models.runners.session import LoadError, Session
from quadriga.proto.errors import ModelNotReady
from tests.cuda.conftest import CPU, CUDA, copy_model, cuda_table
from tests.onnx_models import doubling
from tests.server_process import IMAGES, SAMPLE_MODELS

pytestmark = pytest.mark.cuda

NO_SUCH_GPU = 99


def test_a_gpu_that_is_not_there_is_an_error_that_names_it(on_cuda):
    with pytest.raises(LoadError, match="device_id") as raised:
        on_cuda("shapes-classifier", device_id=NO_SUCH_GPU)
    assert "/onnxruntime_src" not in str(raised.value)
    assert "hostname" not in str(raised.value)


def test_a_gpu_that_is_not_there_may_be_replaced_by_the_cpu(on_cuda, caplog):
    with caplog.at_level(logging.WARNING, "quadriga.models"):
        model = on_cuda("shapes-classifier", "provider_fallback = true", device_id=NO_SUCH_GPU)
    assert model.session.providers == (CPU,)
    assert CUDA in caplog.text


def test_a_wrong_option_is_an_error_that_names_it(on_cuda):
    with pytest.raises(LoadError, match="no_such_option"):
        on_cuda("shapes-classifier", no_such_option=1)


def test_metadata_and_inspection_name_the_providers(on_cuda, tmp_path):
    model = on_cuda("shapes-classifier")
    assert model.info(["1"]).providers == (CUDA, CPU)
    folder = copy_model(SAMPLE_MODELS / "shapes-classifier", tmp_path / "inspected", cuda_table())
    result = CliRunner().invoke(main, ["inspect", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["providers"] == [CUDA, CPU]


def test_a_run_that_needs_more_than_the_memory_of_the_device_fails_and_the_next_one_answers(
    tmp_path,
):
    limit = 64 << 20
    session = Session(
        doubling(tmp_path / "model.onnx"), [{"name": CUDA, "gpu_mem_limit": limit}, CPU]
    )
    large = np.ones((limit // 4, 3), np.float32)
    with pytest.raises(ModelNotReady, match="the device has no memory left"):
        session.run({"x": large})
    small = np.ones((2, 3), np.float32)
    assert session.run({"x": small})["y"].tolist() == [[2, 2, 2]] * 2


def test_a_model_is_profiled_beside_cuda(tmp_path):
    image = str(IMAGES / "classification" / "scene_11.jpg")
    model = str(SAMPLE_MODELS / "shapes-classifier")
    result = CliRunner().invoke(
        main, ["profile", model, "--image", image, "--seconds", "0.3", "--json"]
    )
    assert result.exit_code == 0, result.output
    variants = json.loads(result.output)["variants"]
    assert CUDA in [v["value"] for v in variants if v["kind"] == "provider" and v["ms"]]
    folder = copy_model(SAMPLE_MODELS / "shapes-classifier", tmp_path / "on-cuda", cuda_table())
    result = CliRunner().invoke(
        main, ["profile", str(folder), "--image", image, "--load", "4", "--seconds", "0.3"]
    )
    assert result.exit_code == 0, result.output
    assert CUDA in result.output
