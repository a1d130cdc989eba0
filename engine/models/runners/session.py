"""onnxruntime: one session per model, shared by all threads. Nothing else imports it.

One thread per call and no spinning: concurrent calls use the cores better than threads inside one call (1.45x
more requests per second on two cores) at the price of a longer single call.

A `Runner` runs graphs: `LocalRunner` in this process, `IsolatedRunner` in one of the model's own. Errors of onnxruntime
become ours: what users can do comes first, and its codes are left out.
"""

import contextlib
import ctypes
import io
import logging
import os
import re
import resource
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import onnxruntime

from quadriga.engine.measures.model_counts import record_run
from quadriga.engine.models import onnx_file
from quadriga.engine.models.onnx_file import OnnxHeader, add_output, check_external_data, read_onnx
from quadriga.engine.models.runners.batched_runs import (
    BatchedRuns,
    Batching,
    DependentRowsError,
    Feeds,
    check_independent,
)
from quadriga.engine.models.runners.crashes import ModelRuns
from quadriga.proto.datatypes import NAMES
from quadriga.proto.errors import ModelNotReady, ProtocolError
from quadriga.proto.messages import TensorInfo
from quadriga.proto.request import check_deadline, current_deadline

LoadError = onnx_file.LoadError
"""Error of all that reads or opens the files of a model."""

ProviderOptions = tuple[str, dict[str, str]]
"""Name of a provider, and its options as onnxruntime takes them: texts."""

WrittenProvider = str | dict[str, str | int | float | bool]
"""A provider in model.toml: its name, or a table of its name and options."""

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"


_RECORDED_RUNS = ("enable_cuda_graph", "trt_cuda_graph_enable")
"""Options by which a run is recorded once, and then repeated on the memory of that run's inputs."""


def read_providers(written: Sequence[WrittenProvider]) -> list[ProviderOptions]:
    """Read providers in order of preference; options become texts, as onnxruntime wants them: `1` and `0` for truth.

    Source: onnxruntime, "CUDA Execution Provider", `enable_cuda_graph`: inputs stay at one address, and one thread runs.

    Raises:
        LoadError: A table has no name, or an option with which requests would get each other's answers.
    """
    providers: list[ProviderOptions] = []
    for provider in written:
        options = {"name": provider} if isinstance(provider, str) else dict(provider)
        name = options.pop("name", None)
        if not isinstance(name, str) or not name:
            raise LoadError(
                f"expected a provider such as {{name = {CPU!r}}}, got one without a name"
            )
        for option in _RECORDED_RUNS:
            if str(options.get(option, 0)).lower() not in ("0", "false"):
                raise LoadError(
                    f"expected {name} without {option}: a recorded run reads the memory of the first request, and several "
                    "threads run a model here"
                )
        texts = {
            key: str(int(value)) if isinstance(value, bool) else str(value)
            for key, value in options.items()
        }
        providers.append((name, texts))
    return providers


def choose_available(
    providers: Sequence[ProviderOptions], available: Sequence[str], *, may_fall_back: bool
) -> list[ProviderOptions]:
    """Return the providers that are installed.

    Raises:
        LoadError: One is not installed, and the next must not take its place; or none is.
    """
    absent = [name for name, _ in providers if name not in available]
    present = [provider for provider in providers if provider[0] in available]
    if absent and not (may_fall_back and present):
        raise LoadError(f"expected providers among {', '.join(available)}, got {', '.join(absent)}")
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


class GraphOptions(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """What is opened, and how it is run."""

    path: str
    """The ONNX file; loaded by path, so that external weights are found."""
    added_output: tuple[str, str] | None = None
    """Tensor that becomes one more output, and the name of its average over a map; see `add_output`."""
    providers: tuple[ProviderOptions, ...] = ((CPU, {}),)
    intra_op_threads: int = 1


class GraphTensor(msgspec.Struct, frozen=True, array_like=True):
    """An input or output of a graph, with onnxruntime's name of its type."""

    name: str
    type: str
    shape: list[int | str | None]


class OpenedGraph(msgspec.Struct, frozen=True, tag="opened"):
    """A graph that a runner has opened."""

    number: int
    """Number of the graph among those of the runner."""
    inputs: list[GraphTensor]
    outputs: list[GraphTensor]
    providers: list[str]
    """Names of the providers that run it."""


class Runner(Protocol):
    """Opens and runs the graphs of one model version: in this process, or in one of their own."""

    def open(self, options: GraphOptions) -> OpenedGraph:
        """Open a graph; raises onnxruntime's errors or a `LoadError`."""

    def end_loading(self) -> None:
        """Note that the model is loaded, so that its runs are no longer part of its warm-up."""

    def run(
        self, graph: int, names: Sequence[str], feeds: dict[str, Any], options: Any = None
    ) -> list[Any]:
        """Run a graph once, with the `RunOptions` of onnxruntime; raises onnxruntime's errors or a `RunError`."""


_NAMES = {"FP16": "float16", "FP32": "float", "FP64": "double", "BYTES": "string"}
"""onnxruntime's names of datatypes, where they differ from V2's in lower case."""
_DATATYPES = {f"tensor({_NAMES.get(name, name.lower())})": name for name in NAMES}

MAPS = "MAPS"
"""Datatype of an output that ZipMap makes: one map for each row, from classes to scores."""
_MAPS = re.compile(r"seq\(map\((int64|string),tensor\(float\)\)\)")

_DEVICES = {"CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "cuda"}
"""Device on which a provider may leave outputs; other providers return arrays."""

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"

_WHOLE_PRODUCTS = "session.x64quantprecision"
"""Keeps sums of products of 8 bits from overflowing, and scores from being wrong by a tenth, on x86 processors without VNNI.

Weights of more than 7 bits are slower there then. Source: onnxruntime's `onnxruntime_session_options_config_keys.h`.
"""
_IN_FLOATING_POINT = "session.disable_quant_qdq"
"""Lets a graph that was quantized compute in floating point: as right, and slower."""
_SHARED_WEIGHTS = "Attempt to replace the existing tensor"
"""What onnxruntime 1.31 says of `_WHOLE_PRODUCTS` where two nodes share a quantized tensor."""

_LARGE_GROWTH_BYTES = 256 * 2**20
"""Growth of the process beyond which memory that onnxruntime keeps between runs is given back to the system."""
_LONG_RUN_S = 0.005
"""Shortest run that is looked at: to fill so much memory takes longer."""
_KEPT_S = 30.0
"""Seconds until memory is given back."""

DeviceArray = Any
"""An output left on the device of the model: an array on a CPU, elsewhere an onnxruntime OrtValue."""

_log = logging.getLogger("quadriga.models")

onnxruntime.set_default_logger_severity(4)  # what matters is raised; the rest is noise on stderr


class RunError(RuntimeError):
    """The model failed on an input."""


def run_options() -> Any:
    """Return onnxruntime's options of a run, whose `terminate` stops it between two operators."""
    return onnxruntime.RunOptions()


def available_providers() -> list[str]:
    """Return the execution providers of the installed onnxruntime, in its order of preference."""
    return list(onnxruntime.get_available_providers())


class LocalRunner:
    """Runs graphs in this process; a `Runner`.

    Args:
        runs: Counts the model as running while a graph is opened; runs are counted by whoever asks for them.
        load_s: Seconds within which the runs of the warm-up must end; None for no limit.
        ends_with_device: Whether this process ends, to be started again, once it cannot use its GPU any more.
    """

    def __init__(
        self,
        runs: ModelRuns | None = None,
        load_s: float | None = None,
        *,
        ends_with_device: bool = False,
    ) -> None:
        self._runs = runs
        self._ends_with_device = ends_with_device
        self._load_s = load_s
        self._load_deadline_s = None if load_s is None else time.monotonic() + load_s
        """Time of `time.monotonic` by which a run must end; None once the model is loaded."""
        self._sessions: list[Any] = []
        self._first_bytes = 0
        self._release: threading.Timer | None = None

    def open(self, options: GraphOptions) -> OpenedGraph:
        """Open a graph; raises onnxruntime's errors."""
        model: str | bytes = options.path
        if options.added_output is not None:
            model = add_output(Path(options.path).read_bytes(), *options.added_output)
        session_options = onnxruntime.SessionOptions()
        session_options.intra_op_num_threads = options.intra_op_threads
        session_options.inter_op_num_threads = 1
        session_options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        folder = str(Path(options.path).parent.resolve())
        session_options.add_session_config_entry(_WEIGHTS_FOLDER, folder)
        load_cuda_libraries([name for name, _ in options.providers], onnxruntime.preload_dlls)
        session_options.add_session_config_entry(_WHOLE_PRODUCTS, "1")
        make_session = partial(
            onnxruntime.InferenceSession,
            model,
            session_options,
            providers=list(options.providers),
            enable_fallback=0,  # it would print that it takes other providers, and go on
        )
        with nullcontext() if self._runs is None else self._runs.running():
            try:
                session = make_session()
            except Exception as error:
                if _SHARED_WEIGHTS not in str(error):
                    raise
                session_options.add_session_config_entry(_WHOLE_PRODUCTS, "0")
                session_options.add_session_config_entry(_IN_FLOATING_POINT, "1")
                session = make_session()
        self._sessions.append(session)
        self._first_bytes = _resident_bytes()
        inputs, outputs = (
            [GraphTensor(node.name, node.type, node.shape) for node in nodes]
            for nodes in (session.get_inputs(), session.get_outputs())
        )
        return OpenedGraph(len(self._sessions) - 1, inputs, outputs, session.get_providers())

    def end_loading(self) -> None:
        """Let runs take any time: the model is loaded."""
        self._load_deadline_s = None

    def run(
        self, graph: int, names: Sequence[str], feeds: dict[str, Any], options: Any = None
    ) -> list[Any]:
        """Run a graph once; raises onnxruntime's errors, or a `LoadError` where the warm-up takes too long."""
        session = self._sessions[graph]
        began_s = time.monotonic()
        try:
            if self._load_deadline_s is not None:
                return self._run_in_time(partial(session.run, names, feeds), options)
            results: list[Any] = session.run(names, feeds, options)
        except Exception as error:
            self._end_if_device_is_lost(error, session)
            raise
        finally:
            if time.monotonic() - began_s > _LONG_RUN_S and self._release is None:
                self._look_at_memory(session, feeds)
        return results

    def _run_in_time(self, run: Callable[[Any], list[Any]], options: Any) -> list[Any]:
        """Run with the options of onnxruntime, and stop it at the deadline of loading.

        Raises:
            LoadError: It did not end in time.
        """
        deadline_s, options = self._load_deadline_s or 0.0, options or run_options()
        stop = partial(setattr, options, "terminate", True)
        timer = threading.Timer(max(deadline_s - time.monotonic(), 0.0), stop)
        timer.daemon = True
        timer.start()
        try:
            return run(options)
        except Exception as error:
            if time.monotonic() < deadline_s:
                raise
            raise LoadError(
                f"its warm-up did not end within {self._load_s:g} s: see the setting load_timeout_s"
            ) from error
        finally:
            timer.cancel()

    def run_on_device(
        self,
        graph: int,
        feeds: Mapping[str, DeviceArray],
        outputs: Mapping[str, tuple[str, int]],
        options: Any,
    ) -> list[Any]:
        """Run a graph once on a device; raises onnxruntime's errors.

        Args:
            graph: Number of the graph.
            feeds: Arrays, and what stayed on the device, by input.
            outputs: Device and its number, on which each output is left, by its name.
            options: Options of the run.

        Returns:
            onnxruntime's values, in the order of the outputs.
        """
        session = self._sessions[graph]
        binding = session.io_binding()
        for name, value in feeds.items():
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input(name, np.ascontiguousarray(value))
            else:
                binding.bind_ortvalue_input(name, value)
        for name, (device, number) in outputs.items():
            binding.bind_output(name, device, number)
        try:
            session.run_with_iobinding(binding, options)
        except Exception as error:
            self._end_if_device_is_lost(error, session)
            raise
        values: list[Any] = binding.get_outputs()
        return values

    def _end_if_device_is_lost(self, error: Exception, session: Any) -> None:
        """End this process as a crash does if its GPU is lost and it may: each further run on it would fail.

        What the CPU alone runs is not asked: a node of a model may be named like an error of CUDA.
        """
        if (
            self._ends_with_device
            and session.get_providers() != [CPU]
            and has_lost_device(str(error))
        ):
            _log.critical("this process lost its GPU and ends: %s", first_line(str(error)))
            os.abort()

    def _look_at_memory(self, session: Any, feeds: Mapping[str, npt.NDArray[Any]]) -> None:
        """Let memory be given back later if the process has become much larger than it was at first."""
        limit = self._first_bytes + _LARGE_GROWTH_BYTES
        # The peak costs no file: most processes never pass the limit.
        if _peak_bytes() > limit and _resident_bytes() > limit:
            inputs = {name: (array.shape, array.dtype) for name, array in feeds.items()}
            # an unloaded model must not wait for its timer
            arguments = weakref.ref(self), weakref.ref(session), inputs
            self._release = threading.Timer(_KEPT_S, _release_memory, arguments)
            self._release.daemon = True
            self._release.start()


def _release_memory(
    runner: "weakref.ref[LocalRunner]", session: "weakref.ref[Any]", inputs: Mapping[str, Any]
) -> None:
    """Give memory between runs back to the system, by a run that ends before its first operator.

    What the first run took stays, which is a warm-up with zeros as a rule.

    Args:
        runner: The runner; it may be gone.
        session: Its session of onnxruntime.
        inputs: Shape and type of each input.

    Source: onnxruntime, onnxruntime_run_options_config_keys.h, `memory.enable_memory_arena_shrinkage`.
    """
    opened, graph = runner(), session()
    if opened is None or graph is None:
        return
    options = onnxruntime.RunOptions()
    options.terminate = True
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    feeds = {
        name: np.full(shape, "" if dtype.kind in "OUS" else 0, dtype)
        for name, (shape, dtype) in inputs.items()
    }
    with suppress(Exception):  # it ends with an error, as it is to
        graph.run(None, feeds, options)
    opened._release = None  # noqa: SLF001 - of this module


def _peak_bytes() -> int:
    """Return the most memory that this process has ever used, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resident_bytes() -> int:
    """Return the memory of this process that is in use, in bytes (proc(5), `/proc/self/statm`)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Session:
    """A model ready to run.

    Args:
        path: The ONNX file; loaded by path, so that external weights are found.
        providers: Execution providers in order of preference, each a name or a table of its name and options.
        intra_op_threads: Threads inside one call; 0 leaves it to onnxruntime.
        header: Header of the file, if it has been read already.
        added_output: Tensor that becomes a hidden output, and the name of its average over a map; see `add_output`.
        runner: Opens and runs the graph; default: in this process.
        provider_fallback: Whether the next provider takes the place of one that is not installed or does not start.
    """

    def __init__(
        self,
        path: Path,
        providers: Sequence[WrittenProvider] = (CPU,),
        intra_op_threads: int = 1,
        *,
        header: OnnxHeader | None = None,
        added_output: tuple[str, str] | None = None,
        runner: Runner | None = None,
        provider_fallback: bool = False,
    ) -> None:
        self.path = path
        self._runner: Runner = runner or LocalRunner()
        if intra_op_threads > (max_threads := 4 * (os.cpu_count() or 1)):
            raise LoadError(
                f"expected intra_op_threads of at most {max_threads}, four per core, got {intra_op_threads}"
            )
        self.header = header or read_onnx(path)[0]
        check_external_data(path, self.header.external_data)
        wanted = read_providers(providers)
        chosen = choose_available(wanted, available_providers(), may_fall_back=provider_fallback)
        options = GraphOptions(
            path=str(path),
            added_output=added_output,
            providers=tuple(chosen),
            intra_op_threads=intra_op_threads,
        )
        opened = _open(self._runner, options, may_fall_back=provider_fallback)
        self._graph = opened.number
        self.providers = tuple(opened.providers)
        """Names of the providers that run the graph, in order; the last ones take what the first cannot run."""
        if fallen := fallen_back(wanted, self.providers):
            self._note_fallen(fallen, may_fall_back=provider_fallback)
        self._provider = next(iter(self.providers), "")
        self._provider_options = dict(chosen).get(self._provider, {})
        device = self._provider_options.get("device_id", "0")
        self._device = _DEVICES.get(self._provider, ""), int(device) if device.isdecimal() else 0
        self.inputs = [_tensor_info(node) for node in opened.inputs]
        if not self.inputs:
            raise LoadError(
                "expected a graph with inputs, got one without: no request could say anything"
            )
        hidden_output = "" if added_output is None else added_output[1] or added_output[0]
        outputs = [_tensor_info(node) for node in opened.outputs]
        self.outputs = [tensor for tensor in outputs if tensor.name != hidden_output]
        self.tensor_outputs = [info.name for info in self.outputs if info.datatype != MAPS]
        """Names of the outputs that are tensors."""
        self.hidden_output = next(
            (tensor for tensor in outputs if tensor.name == hidden_output), None
        )
        """The output that is not the model's own; it is computed only if its name is requested."""
        self.batched_runs: BatchedRuns | None = None
        """Runs that requests share; None where each runs alone."""

    def _note_fallen(self, fallen: Sequence[str], *, may_fall_back: bool) -> None:
        """Log that providers cannot be used and others run the graph.

        Raises:
            LoadError: They may not.
        """
        load_cuda_libraries(fallen, onnxruntime.preload_dlls)
        libraries = Path(onnxruntime.__file__).parent / "capi"
        # empty where it is not known, as onnxruntime says so in its own log alone
        reason = next(filter(None, (missing_library(name, libraries) for name in fallen)), "")
        if not may_fall_back:
            raise LoadError(
                f"expected {', '.join(fallen)} to start, got a graph run by {', '.join(self.providers)}: "
                f"{reason or 'is its device there?'} (provider_fallback = true under [runtime] lets the next provider "
                "take its place)"
            )
        _log.warning(
            "%s: %s cannot be used, so %s runs the graph%s",
            self.path.parent.name,
            ", ".join(fallen),
            ", ".join(self.providers),
            f": {reason}" if reason else "",
        )

    def share_runs(
        self,
        batching: Batching,
        examples: Sequence[Feeds],
        runs_at_once: int,
        paused: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Let requests share runs from now on, if the graph answers rows alike alone and beside others.

        Args:
            batching: How they share them.
            examples: Inputs of one row each, which differ.
            runs_at_once: Maximum runs at the same time.
            paused: Notes that the current thread waits.

        Raises:
            LoadError: The graph does not, or it cannot be known.
        """
        if fixed := [info for info in self.inputs if info.shape[:1] != (-1,)]:
            raise LoadError(
                f"batching in model.toml: expected inputs whose first axis is open, for any number of rows, got "
                f"{fixed[0].name!r} of shape {list(fixed[0].shape)}: export it with a dynamic first axis, or remove the key"
            )
        names = [info.name for info in (*self.outputs, self.hidden_output) if info is not None]
        try:
            check_independent(partial(self.run, outputs=names), examples, batching.max)
        except DependentRowsError as error:
            advice = batching_advice(self._provider, self._provider_options)
            raise LoadError(f"batching in model.toml: {error}; {advice}") from error
        except RunError as error:
            raise LoadError(
                f"batching in model.toml: cannot try {batching.max} rows together, as the model refuses the input that "
                f"was made up for it: {error}"
            ) from error
        self.batched_runs = BatchedRuns(
            partial(self._runner.run, self._graph),
            run_options,
            batching,
            runs_at_once=runs_at_once,
            paused=paused,
        )

    def run(
        self, feeds: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str] = (), batch: int = 1
    ) -> dict[str, npt.NDArray[Any]]:
        """Run the model once; safe from several threads.

        Args:
            feeds: Array by input name.
            outputs: Names of the requested outputs; empty for all.
            batch: Images or rows in the feeds, for the statistics.

        Returns:
            Array by output name, in the requested order; of the datatype `MAPS`, (N,) dictionaries.

        Raises:
            RunError: onnxruntime refused the input or failed.
            quadriga.proto.errors.ProtocolError: The request was stopped; see `Deadline.check`.
            LoadError: The model is still loading, and its warm-up takes too long.
            quadriga.proto.errors.ModelNotReady: The model has a process of its own, which has ended, or its device has no
                memory left.
        """
        names = list(outputs) or [output.name for output in self.outputs]
        options = None if self.batched_runs else _interruptible_options()
        try:
            if self.batched_runs is not None:
                results = self.batched_runs.run(names, dict(feeds))
            else:
                started_ns = time.perf_counter_ns()
                results = self._runner.run(self._graph, names, dict(feeds), options)
                record_run(started_ns, batch)
        except (LoadError, ProtocolError):
            raise
        except UnicodeDecodeError as error:
            raise RunError(f"expected the texts it answers in UTF-8, got: {error}") from error
        except Exception as error:
            check_deadline()
            raise self._failure(error) from error
        return {name: np.asarray(array) for name, array in zip(names, results, strict=True)}

    def run_on_device(
        self, feeds: Mapping[str, DeviceArray], fetch: str, device_outputs: Sequence[str]
    ) -> tuple[npt.NDArray[Any], dict[str, DeviceArray]]:
        """Run once: return the output `fetch`, and leave `device_outputs` on the device for the next run.

        On a CPU they are arrays, which onnxruntime takes and gives without a copy: over a cache of two
        layers a run costs 14 us, 27 us through a binding, 54 us with values of its own; with large
        caches all cost the same.
        """
        runner, (device, _) = self._runner, self._device
        if not device or not isinstance(runner, LocalRunner):
            outputs = self.run(feeds, [fetch, *device_outputs])
            return outputs.pop(fetch), outputs
        options = _interruptible_options()
        started_ns = time.perf_counter_ns()
        try:
            places = {fetch: ("cpu", 0), **dict.fromkeys(device_outputs, self._device)}
            fetched, *values = runner.run_on_device(self._graph, feeds, places, options)
        except Exception as error:
            check_deadline()
            raise self._failure(error) from error
        record_run(started_ns, 1)
        return fetched.numpy(), dict(zip(device_outputs, values, strict=True))

    def _failure(self, error: Exception) -> RunError | ModelNotReady:
        """Return what is raised for an error of a run: where the memory of a device is full, it may go well later."""
        text = first_line(str(error))
        if self.providers[:1] != (CPU,) and is_out_of_memory(str(error)):
            return ModelNotReady(f"the device has no memory left for this run: {text}")
        return RunError(text)

    def select_rows(self, array: DeviceArray, rows: npt.NDArray[np.int64]) -> DeviceArray:
        """Select rows of an output that stayed on the device, in any order and number."""
        if isinstance(array, np.ndarray):
            return array[rows]
        return onnxruntime.OrtValue.ortvalue_from_numpy(array.numpy()[rows], *self._device)


def _open(runner: Runner, options: GraphOptions, *, may_fall_back: bool) -> OpenedGraph:
    """Open a graph; with the rest of its providers, if the first ones refuse to start and may be left out.

    Raises:
        LoadError: It cannot be opened.
    """
    try:
        return runner.open(options)
    except LoadError:
        raise
    except Exception as error:
        if may_fall_back and len(options.providers) > 1:
            _log.warning("%s does not start: %s", options.providers[0][0], first_line(str(error)))
            rest = msgspec.structs.replace(options, providers=options.providers[1:])
            return _open(runner, rest, may_fall_back=True)
        raise LoadError(
            load_advice(str(error), Path(options.path), onnxruntime.__version__)
        ) from error


def _interruptible_options() -> onnxruntime.RunOptions | None:
    """Return options with which the request of this thread is stopped during a run; None outside of a request.

    onnxruntime looks at them between two operators: an operator that runs is not interrupted. Options cost 0.3 us.
    """
    deadline = current_deadline()
    if deadline is None:
        return None
    options = onnxruntime.RunOptions()
    deadline.interrupt_by(partial(setattr, options, "terminate", True))
    return options


def _tensor_info(node: Any) -> TensorInfo:
    datatype = _DATATYPES.get(node.type)
    if _MAPS.fullmatch(node.type):
        return TensorInfo(node.name, MAPS, (-1,))
    if datatype is None:
        if node.type.startswith("tensor("):
            raise LoadError(
                f"expected {node.name!r} to be one of {', '.join(_DATATYPES)}, got {node.type}"
            )
        raise LoadError(
            f"expected {node.name!r} to be a tensor, got {node.type}: "
            "export the model without sequences and maps"
        )
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in node.shape)
    return TensorInfo(node.name, datatype, shape)


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
