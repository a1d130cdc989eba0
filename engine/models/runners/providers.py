"""Execution providers with their options, as model.toml names them; which ones run a graph is onnxruntime's to say.

Libraries of CUDA and cuDNN are loaded from where pip puts them, and named where they are missing.

Source: onnxruntime, "Install ONNX Runtime: CUDA and cuDNN", `preload_dlls`.
"""

import contextlib
import ctypes
import io
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

ProviderOptions = tuple[str, dict[str, str]]
"""Name of a provider, and its options as onnxruntime takes them: texts."""

WrittenProvider = str | dict[str, str | int | float | bool]
"""A provider in model.toml: its name, or a table of its name and options."""

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"


_RECORDED_RUNS = ("enable_cuda_graph", "trt_cuda_graph_enable")
"""Options by which a run is recorded once, and then repeated on the memory of that run's inputs."""


class ExecutionProviderError(ValueError):
    """A provider that is written wrongly, is not installed, or does not start."""


def read_providers(written: Sequence[WrittenProvider | ProviderOptions]) -> list[ProviderOptions]:
    """Read providers in order of preference; options become texts, as onnxruntime wants them.

    Raises:
        ExecutionProviderError: A table has no name, or an option with which requests would get each other's answers.
    """
    providers = []
    for provider in written:
        if isinstance(provider, str):
            providers.append((provider, dict[str, str]()))
        elif isinstance(provider, tuple):
            providers.append(provider)
        else:
            options = dict(provider)
            name = options.pop("name", None)
            if not isinstance(name, str) or not name:
                raise ExecutionProviderError(
                    f"expected a provider such as {{name = {CPU!r}}}, got one without a name"
                )
            providers.append((name, {key: _text(value) for key, value in options.items()}))
    for name, texts in providers:
        _check_options(name, texts)
    return providers


def _check_options(name: str, options: Mapping[str, str]) -> None:
    """Refuse CUDA graphs.

    Source: onnxruntime, "CUDA Execution Provider", `enable_cuda_graph`: inputs stay at one address, and one thread runs.
    """
    for option in _RECORDED_RUNS:
        if options.get(option, "0").lower() not in ("0", "false"):
            raise ExecutionProviderError(
                f"expected {name} without {option}: a recorded run reads the memory of the first request, and several "
                "threads run a model here"
            )


def _text(value: object) -> str:
    """Write truth as onnxruntime's providers read it: `1` and `0`."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def choose_available(
    providers: Sequence[ProviderOptions], available: Sequence[str], *, may_fall_back: bool
) -> list[ProviderOptions]:
    """Return the providers that are installed.

    Raises:
        ExecutionProviderError: One is not installed, and the next must not take its place; or none is.
    """
    absent = [name for name, _ in providers if name not in available]
    present = [provider for provider in providers if provider[0] in available]
    if absent and not (may_fall_back and present):
        raise ExecutionProviderError(
            f"expected providers among {', '.join(available)}, got {', '.join(absent)}"
        )
    return present


def fallen_back(providers: Sequence[ProviderOptions], active: Sequence[str]) -> list[str]:
    """Return the names of the providers that are wanted and do not run the graph."""
    return [name for name, _ in providers if name not in active]


def batching_advice(name: str, options: Mapping[str, str]) -> str:
    """Say what to do where rows are not answered alike alone and beside others.

    Args:
        name: The provider that runs the graph.
        options: Its options.
    """
    if name != CUDA or options.get("use_tf32") == "0":
        return "remove the key"
    return (
        f"with products in TF32, which has three digits, rows differ by more: write {{name = {CUDA!r}, use_tf32 = 0}} "
        "in providers, or remove the key"
    )


def device_number(options: Mapping[str, str]) -> int:
    """Return the number of the device that a provider uses; 0 where its options have none."""
    text = options.get("device_id", "0")
    return int(text) if text.isdecimal() else 0


PROVIDER_FILES = {
    "CUDAExecutionProvider": "libonnxruntime_providers_cuda.so",
    "TensorrtExecutionProvider": "libonnxruntime_providers_tensorrt.so",
}
"""File of each provider that needs these libraries, beside onnxruntime's own."""

DRIVER = "libcuda.so"
"""Library that only the driver brings."""

_lock = threading.Lock()


def load_cuda_libraries(providers: Iterable[str], preload: Callable[[], object]) -> None:
    """Load the libraries that a provider needs, before a graph is opened; the system's own are found without it.

    Args:
        providers: Names of the providers of the graph.
        preload: Loads them, as `onnxruntime.preload_dlls` does, which prints what it does not find; standard output
            is where the server prints its address.
    """
    if any(name in PROVIDER_FILES for name in providers):
        with _lock, contextlib.redirect_stdout(io.StringIO()):
            preload()


def missing_library(provider: str, folder: Path) -> str:
    """Return why the file of a provider cannot be loaded, in the words of the system; empty if it can.

    Args:
        provider: Name of the provider.
        folder: Folder of onnxruntime's libraries.
    """
    file = PROVIDER_FILES.get(provider)
    if file is None:
        return ""
    try:
        ctypes.CDLL(str(folder / file), mode=os.RTLD_LAZY)
    except OSError as error:
        text = str(error).removeprefix(f"{folder}/")
        return f"{text} (it comes with NVIDIA's driver)" if text.startswith(DRIVER) else text
    return ""
