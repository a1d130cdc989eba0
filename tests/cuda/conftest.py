"""Models on a GPU; every test is skipped where onnxruntime's CUDA provider does not start."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quadriga.engine.models.inspection import open_model
from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.session import LoadError, Session
from tests.onnx_models import doubling
from tests.server_process import SAMPLE_MODELS

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"


@pytest.fixture(scope="session", autouse=True)
def cuda(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip the tests where the provider does not start, with its reason."""
    path = doubling(tmp_path_factory.mktemp("trial") / "model.onnx")
    try:
        Session(path, [CUDA, CPU])
    except LoadError as error:
        pytest.skip(f"needs an NVIDIA GPU, onnxruntime-gpu, CUDA and cuDNN: {error}")


def cuda_table(**options: Any) -> str:
    """Write CUDA and the CPU as `providers` of a model.toml."""
    pairs = "".join(f", {name} = {value}" for name, value in options.items())
    return f'providers = [{{name = "{CUDA}"{pairs}}}, "{CPU}"]'


def copy_model(source: Path, folder: Path, runtime: str) -> Path:
    """Copy a model's folder, with these lines as its table `[runtime]`; return the copy."""
    shutil.copytree(source, folder)
    with (folder / "model.toml").open("a") as file:
        file.write(f"\n[runtime]\n{runtime}\n")
    return folder


Opener = Callable[..., Model]


@pytest.fixture
def on_cuda(tmp_path: Path) -> Opener:
    """Opens a sample model on the GPU, with options of the provider and further lines of `[runtime]`."""

    def open_one(name: str, runtime: str = "", **options: Any) -> Model:
        folder = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        lines = f"{cuda_table(**options)}\n{runtime}"
        return open_model(copy_model(SAMPLE_MODELS / name, folder, lines))

    return open_one
