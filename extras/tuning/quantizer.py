"""A graph in int8, by onnxruntime's own quantizer: QDQ, that is QuantizeLinear and DequantizeLinear around operators.

What follows the last layers with weights stays in floating point: a detector's Sigmoid, its boxes and the Concat of
both lose most by 8 bits, and cost next to nothing.

Source: onnxruntime, "Quantize ONNX models"; `quantize_static`, "Choosing parameters for CPU inference".
"""

import logging
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy.typing as npt

Feeds = Mapping[str, npt.NDArray[Any]]
"""Array by input name."""

ONNX_MISSING = "quantizing needs the package onnx: pip install 'quadriga[quantize]'"

_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_MIN_WEIGHTS = 256
"""Smallest number of weights of a layer; what has fewer computes coordinates, as the DFL of YOLO does with 16."""
_PER_CHANNEL_OPSET = 13
_MAX_FILE_BYTES = 3 << 29
"""Size of a model above which weights are written to a file beside the graph; protocol buffers end at 2 GiB."""
_QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger")
_PREPARED = "prepared.onnx"
_VNNI = {"avx512_vnni", "avx_vnni", "amx_int8"}
"""Flags of processors that add products of 8 bits without overflow."""


class QuantizationError(RuntimeError):
    """The model cannot be quantized; the message says why and what to do."""


class QuantizedGraph(msgspec.Struct, frozen=True, kw_only=True):
    """What was quantized, and how."""

    activations: str
    """Datatype of activations: `uint8` on x86, where int8 is slow; `int8` on ARM."""
    per_channel: bool
    """Whether each channel of a weight has a scale of its own."""
    seven_bits: bool
    """Whether weights have 7 bits, for processors without VNNI, where sums of products of 8 bits take longer."""
    layers: int
    """Layers with weights that run in whole numbers."""
    excluded: tuple[str, ...]
    """Names of the nodes that stay in floating point."""


class _FeedReader:
    """Calibration data as onnxruntime reads it."""

    def __init__(self, feeds: Iterable[Feeds], on_read: Callable[[int], None]) -> None:
        self._feeds = iter(feeds)
        self._on_read = on_read
        self.count = 0

    def get_next(self) -> Feeds | None:
        feeds = next(self._feeds, None)
        if feeds is not None:
            self.count += 1
            self._on_read(self.count)
        return feeds


def check_installed() -> None:
    """Check that the quantizer can be imported.

    Raises:
        QuantizationError: The package onnx is missing.
    """
    if find_spec("onnx") is None:
        raise QuantizationError(ONNX_MISSING)


def quantize_graph(
    source: Path,
    target: Path,
    feeds: Iterable[Feeds],
    *,
    exclude: Sequence[str] = (),
    on_read: Callable[[int], None] = lambda _: None,
) -> QuantizedGraph:
    """Write a graph in int8 to `target`, which may have its weights in a file beside it.

    Args:
        source: ONNX file in floating point.
        target: File to write.
        feeds: Inputs of the graph that are like those in use; read one at a time.
        exclude: Patterns of the names of further nodes that stay in floating point, such as `/model.22/*`.
        on_read: Called with the number of feeds that were read.

    Raises:
        QuantizationError: The graph is quantized already, has nothing to quantize, or onnxruntime refuses it.
        OSError: The files cannot be written.
    """
    check_installed()
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static  # noqa: PLC0415 - an extra

    is_arm = platform.machine().lower() in ("aarch64", "arm64")
    seven_bits = not is_arm and not has_vnni()
    reader = _FeedReader(feeds, on_read)
    log = logging.getLogger()
    level = log.level
    log.setLevel(logging.ERROR)  # the quantizer's advice is followed here, or cannot be
    try:
        with TemporaryDirectory(prefix=".prepared-", dir=target.parent) as folder:
            prepared = Path(folder) / _PREPARED
            nodes, per_channel, is_large, metadata = _prepare(source, prepared, exclude)
            quantize_static(
                prepared,
                target,
                reader,
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QInt8 if is_arm else QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                per_channel=per_channel,
                reduce_range=seven_bits,
                nodes_to_exclude=list(nodes),
                use_external_data_format=is_large,
            )
        layers = _finish(target, metadata)
    except (QuantizationError, OSError):
        raise
    except Exception as error:
        text = str(error).partition("\n")[0] or type(error).__name__
        raise QuantizationError(
            f"onnxruntime cannot quantize {source.name}: {text:.500}"
        ) from error
    finally:
        log.setLevel(level)
    if not reader.count:
        raise QuantizationError("no image could be read to calibrate with")
    return QuantizedGraph(
        activations="int8" if is_arm else "uint8",
        per_channel=per_channel,
        seven_bits=seven_bits,
        layers=layers,
        excluded=tuple(nodes),
    )


def has_vnni(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Check whether this machine's processor adds products of 8 bits in 32 bits at once."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return not _VNNI.isdisjoint(flags.split())


def _prepare(
    source: Path, prepared: Path, exclude: Sequence[str]
) -> tuple[list[str], bool, bool, dict[str, str]]:
    """Write the graph with its constants folded and its shapes inferred.

    Returns:
        Names of the nodes to leave, whether weights can have a scale for each channel, whether the weights need a
        file of their own, and the metadata of the source.
    """
    import onnx  # noqa: PLC0415 - an extra
    from onnxruntime.quantization.shape_inference import quant_pre_process  # noqa: PLC0415 - an extra

    original = onnx.load(source, load_external_data=False)
    operators = {node.op_type for node in original.graph.node}
    if not operators.isdisjoint(_QUANTIZED):
        raise QuantizationError(f"{source.name} is quantized already")
    files = {source, *(source.parent / name for name in _external_names(original))}
    is_large = sum(file.stat().st_size for file in files) > _MAX_FILE_BYTES
    # Symbolic shape inference writes into the current folder where it fails, and needs sympy.
    quant_pre_process(
        source,
        prepared,
        skip_symbolic_shape=True,
        save_as_external_data=is_large,
        all_tensors_to_one_file=True,
        external_data_location=f"{prepared.name}.data" if is_large else None,
    )
    model = onnx.load(prepared, load_external_data=False)
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"
    onnx.save(model, prepared)
    opset = max(
        (o.version for o in original.opset_import if o.domain in ("", "ai.onnx")), default=0
    )
    metadata = {entry.key: entry.value for entry in original.metadata_props}
    names = dict.fromkeys(_tail_names(model.graph))
    names |= dict.fromkeys(
        node.name
        for node in model.graph.node
        if any(fnmatchcase(node.name, pattern) for pattern in exclude)
    )
    return list(names), opset >= _PER_CHANNEL_OPSET, is_large, metadata


def _external_names(model: Any) -> Iterator[str]:
    """Yield the names of the files beside a model that hold its weights."""
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                yield entry.value


def _tail_names(graph: Any) -> Iterator[str]:
    """Yield the nodes after which no layer with weights follows: what reads the outputs of the last ones."""
    sizes: dict[str, int] = {}
    for tensor in graph.initializer:
        sizes[tensor.name] = 1
        for size in tensor.dims:
            sizes[tensor.name] *= size
    needed: set[str] = set()
    """Tensors from which a layer is computed."""
    for node in reversed(graph.node):  # the quantizer has sorted them
        weights = max((sizes.get(name, 0) for name in node.input), default=0)
        is_layer = node.op_type in _LAYERS and weights >= _MIN_WEIGHTS
        if is_layer or not needed.isdisjoint(node.output):
            needed.update(node.input)
        elif node.name:
            yield node.name


def _finish(target: Path, metadata: Mapping[str, str]) -> int:
    """Give the quantized graph the metadata of its source; return the number of layers in whole numbers."""
    import onnx  # noqa: PLC0415 - an extra

    model = onnx.load(target, load_external_data=False)
    dequantized = {
        name
        for node in model.graph.node
        if node.op_type == "DequantizeLinear"
        for name in node.output
    }
    layers = sum(
        node.op_type in _LAYERS and set(node.input[:2]) <= dequantized for node in model.graph.node
    )
    if not layers:
        raise QuantizationError(
            "nothing to quantize: no Conv, Gemm or MatMul with weights that onnxruntime can run in int8"
        )
    known = {entry.key for entry in model.metadata_props}
    for key, value in metadata.items():
        if key not in known:
            entry = model.metadata_props.add()
            entry.key, entry.value = key, value
    onnx.save(model, target)
    return layers
