"""What opens and runs the graphs of a model version: in this process, or in one of its own."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from quadriga.engine.models.runners.providers import CPU, ProviderOptions


class GraphOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is opened, and how it is run."""

    path: str
    """The ONNX file; loaded by path, so that external weights are found."""
    modified_model: bytes | None = None
    """Serialized model to load in place of the file."""
    providers: tuple[ProviderOptions, ...] = ((CPU, {}),)
    intra_op_threads: int = 1


class OpenedGraph(Protocol):
    """An opened graph, with the methods of onnxruntime's `InferenceSession` that are used."""

    def get_inputs(self) -> Sequence[Any]:
        """Return name, type and shape of each input."""

    def get_outputs(self) -> Sequence[Any]:
        """Return name, type and shape of each output."""

    def get_providers(self) -> Sequence[str]:
        """Return the names of the providers that run it."""

    def run(self, names: Sequence[str], feeds: dict[str, Any], options: Any = None) -> list[Any]:
        """Run once, with the `RunOptions` of onnxruntime; raises onnxruntime's errors or a `RunError`."""


class GraphSource(Protocol):
    """Opens the graphs of one model version."""

    shares_memory: bool
    """Whether outputs may stay on the device of the model, as it is opened in this process."""

    def end_loading(self) -> None:
        """Note that the model is loaded, so that its runs are no longer part of its warm-up."""

    def open(self, options: GraphOptions) -> OpenedGraph:
        """Open a graph; raises onnxruntime's errors or a `LoadError`."""
