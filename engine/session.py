"""onnxruntime: one session per model, shared by all threads. Nothing else imports it.

One thread per call and no spinning: concurrent calls use the cores better than threads inside one call (1.45x
more requests per second on two cores) at the price of a longer single call.
"""

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from quadriga.engine.onnx_file import OnnxFileError, OnnxHeader, check_external_data, read_onnx
from quadriga.engine.stopwatch import Stopwatch
from quadriga.proto.datatypes import NAMES
from quadriga.proto.messages import TensorInfo

_NAMES = {"FP16": "float16", "FP32": "float", "FP64": "double", "BYTES": "string"}
"""onnxruntime's names of datatypes, where they differ from V2's in lower case."""
_DATATYPES = {f"tensor({_NAMES.get(name, name.lower())})": name for name in NAMES}

_DEVICES = {"CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "cuda"}
"""Device on which a provider may leave outputs; other providers return arrays."""

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"

DeviceArray = Any
"""An output left on the device of the model: an array on a CPU, elsewhere an onnxruntime OrtValue."""

onnxruntime.set_default_logger_severity(4)  # what matters is raised; the rest is noise on stderr


class LoadError(RuntimeError):
    """The model cannot be loaded; the message says why and what to do. All that reads its files raises it."""


class RunError(RuntimeError):
    """The model failed on an input."""


class Session:
    """A model ready to run.

    Args:
        path: The ONNX file; loaded by path, so that external weights are found.
        providers: Execution providers in order of preference.
        intra_op_threads: Threads inside one call; 0 leaves it to onnxruntime.
        stopwatch: Takes the time of each run.
        header: Header of the file, if it has been read already.
        modified_model: Serialized model to load in place of the file; its external weights stand beside it.
        hidden_output: Name of the output that `modified_model` has besides those of the file.
    """

    def __init__(
        self,
        path: Path,
        providers: Sequence[str] = ("CPUExecutionProvider",),
        intra_op_threads: int = 1,
        stopwatch: Stopwatch | None = None,
        *,
        header: OnnxHeader | None = None,
        modified_model: bytes | None = None,
        hidden_output: str = "",
    ) -> None:
        self.path = path
        self.stopwatch = stopwatch or Stopwatch()
        self._device = _DEVICES.get(providers[0], "") if providers else ""
        try:
            self.header = header or read_onnx(path)[0]
            check_external_data(path, self.header)
        except OnnxFileError as error:
            raise LoadError(str(error)) from error
        available = onnxruntime.get_available_providers()
        if absent := [name for name in providers if name not in available]:
            raise LoadError(
                f"expected providers among {', '.join(available)}, got {', '.join(absent)}"
            )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = intra_op_threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(path.parent.resolve()))
        try:
            self._session = onnxruntime.InferenceSession(
                modified_model or str(path), options, providers=list(providers)
            )
        except Exception as error:
            raise LoadError(_load_advice(str(error), path)) from error
        self.inputs = [_tensor_info(node) for node in self._session.get_inputs()]
        outputs = [_tensor_info(node) for node in self._session.get_outputs()]
        self.outputs = [tensor for tensor in outputs if tensor.name != hidden_output]
        self.hidden_output = next(
            (tensor for tensor in outputs if tensor.name == hidden_output), None
        )
        """The output that is not the model's own; it is computed only if its name is requested."""

    def run(
        self, feeds: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str] = (), batch: int = 1
    ) -> dict[str, npt.NDArray[Any]]:
        """Run the model once; safe from several threads.

        Args:
            feeds: Array by input name.
            outputs: Names of the requested outputs; empty for all.
            batch: Images or rows in the feeds, for the statistics.

        Returns:
            Array by output name, in the requested order.

        Raises:
            RunError: onnxruntime refused the input or failed.
        """
        try:
            names = list(outputs) or [output.name for output in self.outputs]
            started_ns = time.perf_counter_ns()
            results = self._session.run(names, dict(feeds))
            self.stopwatch.record_run(started_ns, batch)
        except Exception as error:
            raise RunError(_first_line(str(error))) from error
        return {name: np.asarray(array) for name, array in zip(names, results, strict=True)}

    def run_on_device(
        self, feeds: Mapping[str, DeviceArray], fetch: str, device_outputs: Sequence[str]
    ) -> tuple[npt.NDArray[Any], dict[str, DeviceArray]]:
        """Run once: return the output `fetch`, and leave `device_outputs` on the device for the next run.

        On a CPU they are arrays, which onnxruntime takes and gives without a copy: over a cache of two
        layers a run costs 14 us, 27 us through a binding, 54 us with values of its own; with large
        caches all cost the same.
        """
        if not self._device:
            outputs = self.run(feeds, [fetch, *device_outputs])
            return outputs.pop(fetch), outputs
        try:
            binding = self._session.io_binding()
            for name, value in feeds.items():
                if isinstance(value, np.ndarray):
                    binding.bind_cpu_input(name, np.ascontiguousarray(value))
                else:
                    binding.bind_ortvalue_input(name, value)
            binding.bind_output(fetch, "cpu")
            for name in device_outputs:
                binding.bind_output(name, self._device)
            started_ns = time.perf_counter_ns()
            self._session.run_with_iobinding(binding)
            self.stopwatch.record_run(started_ns, 1)
            fetched, *device_arrays = binding.get_outputs()
        except Exception as error:
            raise RunError(_first_line(str(error))) from error
        return fetched.numpy(), dict(zip(device_outputs, device_arrays, strict=True))

    def select_rows(self, array: DeviceArray, rows: npt.NDArray[np.int64]) -> DeviceArray:
        """Select rows of an output that stayed on the device, in any order and number."""
        if isinstance(array, np.ndarray):
            return array[rows]
        return onnxruntime.OrtValue.ortvalue_from_numpy(array.numpy()[rows], self._device, 0)


def _tensor_info(node: Any) -> TensorInfo:
    datatype = _DATATYPES.get(node.type)
    if datatype is None:
        if node.type.startswith("tensor("):
            raise LoadError(
                f"expected {node.name!r} to be one of {', '.join(_DATATYPES)}, got {node.type}"
            )
        raise LoadError(
            f"expected {node.name!r} to be a tensor, got {node.type}: "
            "export the model without sequences and maps (scikit-learn: zipmap=False)"
        )
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in node.shape)
    return TensorInfo(node.name, datatype, shape)


def _load_advice(text: str, path: Path) -> str:
    """Rewrite onnxruntime's errors that users meet, with the way out."""
    runtime = f"onnxruntime {onnxruntime.__version__}"
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
    operator = r"(\S+) is not a registered function/op|No Op registered for (\S+)"
    if match := re.search(operator, text):
        name = (match[1] or match[2]).rstrip(".")
        return (
            f"expected operators of ONNX, got {name}, which {runtime} does not know: "
            "export again without custom operators"
        )
    return f"onnxruntime refuses {path.name}: {_first_line(text)}"


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else "no reason given"
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", line)
