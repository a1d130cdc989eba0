"""Libraries of CUDA and cuDNN: loaded from where pip puts them, and named where they are missing.

Source: onnxruntime, "Install ONNX Runtime: CUDA and cuDNN", `preload_dlls`.
"""

import contextlib
import ctypes
import io
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

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
