"""Packages of several graphs that answer prompts about an image, from their folder to their answers.

Two layouts: an encoder with a decoder (Optimum), and a vision encoder whose features a language model
reads among its tokens (transformers.js).

Source: optimum-onnx 0.1 `exporters/onnx`; transformers.js 3 `models.js`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from engine.model_toml import ModelToml, read_model_toml
from engine.recognition import Decision, Recognition
from engine.schema import explain
from engine.session import LoadError, RunError, Session
from engine.sidecars import input_from_preprocessor
from engine.stopwatch import Stopwatch
from engine.text_files import TextFiles, read_json
from engine.text_prompts import Attending, Inserting, Read
from tasks import SHORT_NAMES
from tasks.generation import generate
from tasks.image import Image
from tasks.image_text import ImageTextOptions, ImageTextToText
from tasks.parameters import ParameterError
from tasks.predictions import Answer, OutputError, Prediction
from tasks.resize import preprocess
from tasks.specification import InputSpec, ModelSpec

TASK = "IMAGE_TEXT_TO_TEXT"

_VARIANTS = ("", "_fp16", "_quantized", "_int8", "_uint8", "_q4", "_q4f16", "_bnb4")
"""Endings of a graph's name, the first that is there is taken."""

_LAYOUTS: Mapping[str, tuple[Literal["encoder", "vision"], tuple[str, ...]]] = {
    "a vision encoder, token embeddings and a decoder with cache (transformers.js)": (
        "vision",
        ("vision_encoder", "embed_tokens", "decoder_model_merged"),
    ),
    "an encoder and a decoder with cache (Optimum, merged)": (
        "encoder",
        ("encoder_model", "decoder_model_merged"),
    ),
    "an encoder, and a decoder in two graphs (Optimum)": (
        "encoder",
        ("encoder_model", "decoder_model", "decoder_with_past_model"),
    ),
    "an encoder and a decoder without cache (Optimum)": (
        "encoder",
        ("encoder_model", "decoder_model"),
    ),
}


def is_text_package(folder: Path) -> str | None:
    """Say by which files a folder holds such a package; None where it holds none."""
    return next((reason for reason, (_, stems) in _LAYOUTS.items() if _graphs(folder, stems)), None)


class TextPackage:
    """A package that is ready to answer; safe to use from many threads.

    Args:
        folder: With the graphs, or with a folder `onnx` that has them.
        over: What goes before the folder's model.toml.
        stopwatch: Takes the time of each run.

    Raises:
        LoadError: A file is missing, or not as it must be.
    """

    def __init__(
        self,
        folder: Path,
        over: Mapping[str, Any] | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        reason = is_text_package(folder)
        if reason is None:
            raise LoadError(f"expected the graphs of a text model in {folder.name}, got none")
        layout, stems = _LAYOUTS[reason]
        toml = _read_toml(folder, over)
        self.paths = _graphs(folder, stems)
        """Of the graphs, and of the tokenizer."""
        if layout == "vision" and _graphs(folder, ("encoder_model",)):
            raise LoadError(
                f"expected {', '.join(stems)} alone, got an encoder_model too: a text encoder between "
                "image and decoder, as Florence-2 has, is not supported"
            )
        self._files = TextFiles(folder, toml.text)
        encoder, *others = (
            Session(path, toml.runtime.providers, toml.runtime.intra_op_threads, stopwatch)
            for path in self.paths
        )
        self.paths.append(folder / "tokenizer.json")
        decisions = [Decision("task", TASK, f"files: {reason}")]
        spec = _input(decisions, folder, toml.input, encoder)
        self._encoder = encoder
        self.stopwatch = encoder.stopwatch
        self._reader: Inserting | Attending = (
            Inserting(self._files, *others)
            if layout == "vision"
            else Attending(self._files, *others)
        )
        self.session = self._reader.decoder.first
        self._task = ImageTextToText(self._files.search)
        self.recognition = Recognition(
            TASK,
            "",
            ModelSpec(task=TASK, input=spec),
            toml.runtime,
            toml.store,
            (*decisions, *self._files.decisions),
        )
        self._spec = spec

    batch_size = -1
    """Images run one at a time; it is the prompts of an image that run together."""

    def options(self, parameters: Mapping[str, Any]) -> ImageTextOptions:
        """Validate the parameters of one input.

        Raises:
            ParameterError: An action is unknown, prompts are missing, or a value is out of range.
        """
        return self._task.options(parameters)

    def sha256(self) -> str:
        """Identify the package: a digest over its graphs and its tokenizer."""
        digest = hashlib.sha256()
        for path in self.paths:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def predict(
        self, images: Sequence[Image], options: Sequence[ImageTextOptions]
    ) -> list[list[Prediction]]:
        """Answer the prompts about each image, which is encoded once.

        Raises:
            ParameterError: A prompt is too long, or holds the token of the image.
            OutputError: The model gives no numbers.
            RunError: A graph failed.
        """
        return [self._answer(*each) for each in zip(images, options, strict=True)]

    def _answer(self, image: Image, options: ImageTextOptions) -> list[Prediction]:
        tensor, _ = preprocess(image, self._spec)
        (encoded,) = self._encoder.run(
            {self._spec.name: tensor[None]}, [self._encoder.outputs[0].name]
        ).values()
        features = encoded.reshape(1, -1, encoded.shape[-1])
        read: list[Read] = []
        limits: list[int] = []
        for prompt in options.prompts:
            read.append(self._reader.read(prompt, features))
            limits.append(self._limit(read, options))
        answers: dict[int, str] = {}
        for group in self._groups(read):
            mine = [read[index] for index in group]
            decoding = self._reader.start([item.sequence for item in mine], features)
            found = generate(
                [item.tokens for item in mine],
                decoding.logits,
                decoding.step,
                options.search,
                [limits[index] for index in group],
            )
            answers |= zip(group, map(self._files.decode, found), strict=True)
        return [Answer(prompt, answers[index]) for index, prompt in enumerate(options.prompts)]

    def _limit(self, read: Sequence[Read], options: ImageTextOptions) -> int:
        """Say how long the answer to the last prompt read may be."""
        length = len(read[-1].sequence)
        wanted = options.search.limit(length)
        context = self._files.context_length
        if context is None:
            return wanted
        if length >= context:
            raise ParameterError(
                f"expected parameters.prompts[{len(read) - 1}] to take fewer than {context} tokens with the "
                f"template and the image, got {length}"
            )
        return min(wanted, context - length)

    def _groups(self, read: Sequence[Read]) -> list[list[int]]:
        """Say which prompts run together: all where the decoder pads, else those of one length."""
        if self._reader.decoder.pads:
            return [list(range(len(read)))]
        groups: dict[int, list[int]] = {}
        for index, item in enumerate(read):
            groups.setdefault(len(item.sequence), []).append(index)
        return list(groups.values())

    def warm_up(self) -> None:
        """Answer once, so that the first request is fast and a wrong package fails here.

        Raises:
            LoadError: A graph fails, or gives what is no answer.
        """
        width, height = self._spec.size_wh
        gray = Image(np.full((height, width, 3), 114, np.uint8))
        try:
            self.predict([gray], [self.options({"prompts": ["a"], "max_new_tokens": 2})])
        except (RunError, OutputError, ParameterError) as error:
            raise LoadError(f"the model fails on a gray image: {error}") from error


def _graphs(folder: Path, stems: Sequence[str]) -> list[Path]:
    """Find the graphs of these names, in the folder or in its folder `onnx`; none unless all are there."""
    for place in (folder, folder / "onnx"):
        found = [
            next(
                (path for end in _VARIANTS if (path := place / f"{stem}{end}.onnx").is_file()), None
            )
            for stem in stems
        ]
        paths = [path for path in found if path is not None]
        if len(paths) == len(stems):
            return paths
    return []


def _read_toml(folder: Path, over: Mapping[str, Any] | None) -> ModelToml:
    toml = read_model_toml(folder, over)
    for name in ("family", "labels", "output", "defaults", "tiling"):
        if getattr(toml, name):
            raise LoadError(f"model.toml: expected no {name} for an image-text model, got one")
    if toml.task is not None and SHORT_NAMES.get(toml.task.lower(), toml.task.upper()) != TASK:
        raise LoadError(
            f"expected task in model.toml to be image-text, as the graphs are, got {toml.task!r}"
        )
    return toml


def _input(
    decisions: list[Decision], folder: Path, table: Mapping[str, Any], encoder: Session
) -> InputSpec:
    """Decide how an image becomes the encoder's input: model.toml, then preprocessor_config.json."""
    if len(encoder.inputs) != 1 or len(encoder.inputs[0].shape) != 4:
        got = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in encoder.inputs)
        raise LoadError(
            f"expected {encoder.path.name} to take one image, [batch, channels, height, width], got {got}"
        )
    tensor = encoder.inputs[0]
    dtypes = {"FP32": "float32", "FP16": "float16", "UINT8": "uint8"}
    if tensor.datatype not in dtypes:
        raise LoadError(
            f"expected input {tensor.name!r} to be FP32, FP16 or UINT8, got {tensor.datatype}"
        )
    file = "preprocessor_config.json"
    config = read_json(folder / file)
    if not config:  # where transformers 5 keeps it
        config = read_json(folder / "processor_config.json").get("image_processor", {})
    _, channels, height, width = tensor.shape
    sources: list[tuple[dict[str, Any], str]] = [
        (
            {"size_wh" if key == "size" else key: value for key, value in table.items()},
            "model.toml",
        ),
        (input_from_preprocessor(config) if config else {}, file),
        ({"size_wh": (width, height)} if min(width, height) > 0 else {}, "input shape"),
        ({"channels": channels} if channels > 0 else {}, "input shape"),
        ({"name": tensor.name, "dtype": dtypes[tensor.datatype]}, "input"),
    ]
    fields: dict[str, Any] = {}
    for source, reason in sources:
        for name, value in source.items():
            if name not in InputSpec.__struct_fields__:
                known = ", ".join(InputSpec.__struct_fields__)
                raise LoadError(
                    f"model.toml: expected a key of [input] among {known}, got {name!r}"
                )
            if name not in fields:
                fields[name] = value
                decisions.append(Decision(f"input.{name.removesuffix('_wh')}", value, reason))
    for name in ("resize", "size_wh"):
        if name not in fields:
            key = name.removesuffix("_wh")
            raise LoadError(f"expected input.{key} to be given by model.toml or {file}, got none")
    try:
        named = {"size" if name == "size_wh" else name: value for name, value in fields.items()}
        spec = msgspec.convert(named, InputSpec)
    except msgspec.ValidationError as error:
        raise LoadError(f"input: {explain(error, InputSpec)}") from error
    if min(width, height) > 0 and spec.size_wh != (width, height):
        raise LoadError(
            f"expected input.size to be {[width, height]} (width, height) as in {encoder.path.name}, got "
            f"{list(spec.size_wh)}"
        )
    return spec
