"""Errors of onnxruntime as it raised them, most of them by its CUDA build on a machine without a GPU."""

from pathlib import Path

import pytest

from quadriga.engine.models.runners.session import (
    first_line,
    has_lost_device,
    is_out_of_memory,
    load_advice,
)

CALL = (
    "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:{line} std::conditional_t<THRW, void, "
    "onnxruntime::common::Status> onnxruntime::CudaCall(ERRTYPE, const char*, const char*, SUCCTYPE, const char*, const "
    "char*, int) [with ERRTYPE = cudaError; bool THRW = true; SUCCTYPE = cudaError; std::conditional_t<THRW, void, "
    "common::Status> = void] "
)
OPTIONS = (
    "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_execution_provider_info.cc:63 static "
    "onnxruntime::CUDAExecutionProviderInfo onnxruntime::CUDAExecutionProviderInfo::FromProviderOptions(const "
    "onnxruntime::ProviderOptions&) [ONNXRuntimeError] : 1 : FAIL : "
)
PLACE = "hostname=secret-host ; file=/onnxruntime_src/onnxruntime/core/cuda.cc ; line=70 ; "


def cuda_failure(number, text, device=0):
    return (
        f"CUDA failure {number}: {text} ; GPU={device} ; {PLACE}expr=cudaMalloc((void**)&p, size); "
    )


LINES = {
    "no device": (
        (
            f'{OPTIONS}provider_options_utils.h:187 Parse Failed to parse provider option "device_id": '
            f"{cuda_failure(100, 'no CUDA-capable device is detected', -1)}\n"
        ),
        'Failed to parse provider option "device_id": CUDA failure 100: no CUDA-capable device is detected',
    ),
    "no device, raised twice": (
        CALL.format(line=154)
        + CALL.format(line=146)
        + cuda_failure(100, "no CUDA-capable device is detected", -1),
        "CUDA failure 100: no CUDA-capable device is detected",
    ),
    "an unknown option": (
        f'{OPTIONS}provider_options_utils.h:182 Parse Unknown provider option: "depth".\n',
        'Unknown provider option: "depth".',
    ),
    "a wrong value": (
        (
            f'{OPTIONS}provider_options_utils.h:187 Parse Failed to parse provider option "cudnn_conv_algo_search": '
            "provider_options_utils.h:56 NameToEnum Failed to map enum name to value: WRONG"
        ),
        'Failed to parse provider option "cudnn_conv_algo_search": Failed to map enum name to value: WRONG',
    ),
    "no TensorRT": (
        (
            "/onnxruntime_src/onnxruntime/python/onnxruntime_pybind_state.cc:729 void "
            "onnxruntime::python::RegisterTensorRTPluginsAsCustomOps(PySessionOptions&, const "
            "onnxruntime::ProviderOptions&) Please install TensorRT libraries (see the requirements).\n"
        ),
        "Please install TensorRT libraries (see the requirements).",
    ),
    "memory of a device": (
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Conv node. Name:'c' Status "
            f"Message: {CALL.format(line=154)}{cuda_failure(2, 'out of memory')}"
        ),
        (
            "Non-zero status code returned while running Conv node. Name:'c' Status Message: CUDA failure 2: out of memory on "
            "GPU 0"
        ),
    ),
    "memory of an arena": (
        (
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Add node. Name:'' Status "
            "Message: /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:378 void* "
            "onnxruntime::BFCArena::AllocateRawInternal(size_t, onnxruntime::Stream*) Failed to allocate memory for requested "
            "buffer of size 805306368"
        ),
        (
            "Non-zero status code returned while running Add node. Name:'' Status Message: Failed to allocate memory for "
            "requested buffer of size 805306368"
        ),
    ),
    "several lines": ("first\nsecond", "first"),
    "a place that is no function": (
        "CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=1 ; hostname=h",
        "CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED on GPU 1",
    ),
    "parentheses of a message": (
        "expected 2 (rows), got 3 (columns)",
        "expected 2 (rows), got 3 (columns)",
    ),
    "nothing": (" \n", "no reason given"),
    "a code alone": ("[ONNXRuntimeError] : 1 : FAIL : ", "no reason given"),
}


@pytest.mark.parametrize(("text", "line"), LINES.values(), ids=LINES)
def test_an_error_is_one_line_without_the_source_and_the_machine(text, line):
    assert first_line(text) == line
    advice = load_advice(text, Path("/folder/model.onnx"), "1.31.1")
    assert advice == f"onnxruntime refuses model.onnx: {line}"


MEMORY = {
    "a device": (cuda_failure(2, "out of memory"), True),
    "a library of CUDA": ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0", True),
    "an arena": ("Failed to allocate memory for requested buffer of size 8", True),
    "gpu_mem_limit": ("Available memory of 4 is smaller than requested bytes of 8", True),
    "the machine": ("std::bad_alloc", True),
    "another failure of CUDA": (cuda_failure(209, "no kernel image"), False),
    "a shape": ("Got invalid dimensions for input: x", False),
}


@pytest.mark.parametrize(("text", "expected"), MEMORY.values(), ids=MEMORY)
def test_errors_of_memory_are_known(text, expected):
    assert is_out_of_memory(text) == expected


LOST = {
    "an illegal address": (cuda_failure(700, "an illegal memory access was encountered"), True),
    "an assertion on the device": (cuda_failure(710, "device-side assert triggered"), True),
    "a failure of its memory": (cuda_failure(214, "uncorrectable ECC error encountered"), True),
    "no memory": (cuda_failure(2, "out of memory"), False),
    "no kernel": (cuda_failure(209, "no kernel image is available"), False),
    "a number that begins alike": (cuda_failure(7000, "?"), False),
    "a text of a model": ("expected 700 rows", False),
    "a node named like one": ("while running Add node. Name:'CUDA failure 700: '", False),
}


@pytest.mark.parametrize(("text", "expected"), LOST.values(), ids=LOST)
def test_a_lost_gpu_is_told_from_a_run_that_failed(text, expected):
    assert has_lost_device(text) == expected
