"""Errors of onnxruntime in our words: what users can do comes first, and its codes are left out."""

import re
from pathlib import Path

_OPERATOR = re.compile(r"(?<!\S)(\S+) is not a registered function/op|No Op registered for (\S+)")
"""onnxruntime's text about an unknown operator, which begins after a space: the file's names may be long."""

_SOURCE = re.compile(
    r"(?:/onnxruntime_src/)\S+:\d+ [^()]*\([^()]*\)(?: const)?(?: \[with [^\]]*\])? "
)
"""Place in onnxruntime's source with the signature of a function, with which its exceptions begin."""
_PARSER = re.compile(r"\b\w+\.h:\d+ \w+ ")
"""The same of its parsers of options."""
_CUDA_FAILURE = re.compile(
    r"(?P<failure>\b[A-Z]{1,20} failure \d{1,9}: .{0,500}?) ; GPU=(?P<device>-?\d{1,4})"
    r" ; hostname=.{0,500}?(?: ; expr=[^;]{0,500};|$) ?"
)
"""An error of CUDA's libraries, which names the machine, a source file and an expression."""
_MEMORY = (
    "Failed to allocate memory",
    "bad_alloc",
    "bad allocation",
    "is smaller than requested bytes of",  # gpu_mem_limit
    "CUDA failure 2:",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
_LOST = (214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911)
"""Errors of CUDA after which a process must be started again."""


def load_advice(text: str, path: Path, version: str) -> str:
    """Rewrite onnxruntime's errors that users meet when they load a model, with the way out.

    Args:
        text: Text of the error.
        path: The ONNX file.
        version: Version of onnxruntime.
    """
    runtime = f"onnxruntime {version}"
    ir_version = r"Unsupported model IR version: (\d+), max supported IR version: (\d+)"
    if match := re.search(ir_version, text):
        return (
            f"expected IR version {match[2]} or lower in {path.name}, got {match[1]}: export again with an "
            f"older opset, or set model.ir_version = {match[2]} with the onnx package"
        )
    if match := re.search(r"Opset (\d+) is under development", text):
        return (
            f"expected an operator set that {runtime} supports in {path.name}, got {match[1]}: "
            "export again with a lower opset"
        )
    if match := _OPERATOR.search(text):
        name = (match[1] or match[2]).rstrip(".")
        return (
            f"expected operators of ONNX, got {name}, which {runtime} does not know: "
            "export again without custom operators"
        )
    return f"onnxruntime refuses {path.name}: {first_line(text)}"


def first_line(text: str) -> str:
    """Return the first line of an error of onnxruntime: neither its codes, nor its source, nor the name of the machine."""
    line = text.strip().splitlines()[0] if text.strip() else "no reason given"
    line = _CUDA_FAILURE.sub(_cuda_failure, _SOURCE.sub("", line))
    line = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ :\s*", "", line)
    return _PARSER.sub("", line).strip() or "no reason given"


def _cuda_failure(match: re.Match[str]) -> str:
    device = "" if match["device"].startswith("-") else f" on GPU {match['device']}"
    return f"{match['failure']}{device} "


def is_out_of_memory(text: str) -> bool:
    """Check whether an error of onnxruntime is one of memory, of the machine or of a device."""
    return any(part in text for part in _MEMORY)


def has_lost_device(text: str) -> bool:
    """Check whether an error of onnxruntime says that this process cannot use its GPU any more.

    Source: CUDA Runtime API 13.0, `cudaError_t`: "the process must be terminated and relaunched".
    """
    match = re.search(r"\bCUDA failure (\d+): [^;]* ; GPU=-?\d+ ; hostname=", text)
    return match is not None and int(match[1]) in _LOST
