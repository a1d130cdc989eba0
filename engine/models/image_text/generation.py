"""Image-text models of several graphs: loading their folder, and generating answers to prompts about an image.

Source: optimum-onnx 0.1 `exporters/onnx`; transformers.js 3 `models.js`.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from quadriga.engine.measures.stopwatch import Stopwatch
from quadriga.engine.models.embedding import Vector, encoder_embedding, pool_vectors
from quadriga.engine.models.image_graph import decode_image
from quadriga.engine.models.image_text.decoding import (
    CrossAttentionReader,
    DecodingState,
    ImageTokenReader,
    TokenizedPrompt,
)
from quadriga.engine.models.image_text.files import IncrementalDetokenizer, TextFiles
from quadriga.engine.models.recognition.decisions import Decision
from quadriga.engine.models.recognition.evidence import channels_axis, gather_evidence
from quadriga.engine.models.recognition.image_input import decide_image_input
from quadriga.engine.models.recognition.model_toml import ModelToml, RuntimeOptions, read_model_toml
from quadriga.engine.models.recognition.recognise import Recognition
from quadriga.engine.models.recognition.sidecars import PREPROCESSOR_FILE
from quadriga.engine.models.runners.session import GraphSource, LoadError, RunError, Session
from quadriga.tasks import full_name
from quadriga.tasks.budget import Budget
from quadriga.tasks.generation import generate, generate_stepwise
from quadriga.tasks.image import Image
from quadriga.tasks.image_text import ImageTextOptions, ImageTextToText
from quadriga.tasks.legacy import wants_legacy
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.predictions import Answer, OutputError, Prediction
from quadriga.tasks.resize import plain, preprocess
from quadriga.tasks.specification import InputSpec, ModelSpec

TASK = "IMAGE_TEXT_TO_TEXT"

VARIANTS = ("", "_fp16", "_quantized", "_int8", "_uint8", "_q4", "_q4f16", "_bnb4")
"""Suffixes of a graph's file name, by its precision, in order of preference."""

_VISION = ("vision_encoder", "embed_tokens", "decoder_model_merged")
_MERGED = ("encoder_model", "decoder_model_merged")
_PLAIN = ("encoder_model", "decoder_model")
_LAYOUTS = {
    "a vision encoder, token embeddings and a decoder with cache (transformers.js)": _VISION,
    "an encoder and a decoder with cache (Optimum, merged)": _MERGED,
    "an encoder, and a decoder in two graphs (Optimum)": (*_PLAIN, "decoder_with_past_model"),
    "an encoder and a decoder without cache (Optimum)": _PLAIN,
}
"""File names of the graphs, by the description of the layout."""


def describe_text_package(folder: Path) -> str | None:
    """Return the layout of the graphs in a folder; None if it holds no text package."""
    return next((reason for reason, stems in _LAYOUTS.items() if _find_graphs(folder, stems)), None)


class TextPackage:
    """A loaded package; safe to use from many threads."""

    def __init__(
        self,
        folder: Path,
        overrides: Mapping[str, Any] | None = None,
        stopwatch: Stopwatch | None = None,
        open_graphs: Callable[[RuntimeOptions], GraphSource] | None = None,
    ) -> None:
        reason = describe_text_package(folder)
        if reason is None:
            raise LoadError(f"graphs of a text model not found in {folder.name}")
        stems = _LAYOUTS[reason]
        toml = _read_toml(folder, overrides)
        self.paths = _find_graphs(folder, stems)
        """Paths of the graphs and of the tokenizer."""
        if stems == _VISION and _find_graphs(folder, ("encoder_model",)):
            raise LoadError(
                f"expected {', '.join(stems)} alone, got an encoder_model too: a text encoder between "
                "image and decoder, as Florence-2 has, is not supported"
            )
        self._files = TextFiles(folder, toml.text)
        runtime = toml.runtime
        graphs = None if open_graphs is None else open_graphs(runtime)
        encoder, *other_sessions = (
            Session(
                path,
                runtime.providers,
                runtime.intra_op_threads,
                stopwatch,
                graphs=graphs,
                provider_fallback=runtime.provider_fallback,
            )
            for path in self.paths
        )
        self.paths.append(folder / "tokenizer.json")
        decisions = [Decision("task", TASK, f"files: {reason}")]
        self._spec = _decide_input(decisions, folder, toml, encoder)
        self._encoder = encoder
        self.embedding = encoder_embedding(toml, encoder.outputs[0].name)
        """Embedding of images: the encoder's output."""
        self.stopwatch = encoder.stopwatch
        self._task = ImageTextToText(self._files.search)
        reader = ImageTokenReader if stems == _VISION else CrossAttentionReader
        self._reader: ImageTokenReader | CrossAttentionReader = reader(self._files, *other_sessions)
        self.session = self._reader.decoder.first
        decisions.extend(self._files.decisions)
        spec = ModelSpec(task=TASK, input=self._spec)
        self.recognition = Recognition(TASK, "", spec, decisions=tuple(decisions), written=toml)

    task = TASK
    batch_size = -1
    """Images run one at a time; the prompts of an image run together."""

    def read_options(self, parameters: Mapping[str, Any]) -> ImageTextOptions:
        """Validate the parameters of one input."""
        options = self._task.options(parameters)
        wants_legacy(parameters, self.task)  # raises: texts have one format
        return options

    def format_predictions(self, predictions: Any, _: ImageTextOptions, __: int, ___: int) -> Any:
        """Return the predictions: texts have one format."""
        return predictions

    def predict(
        self,
        images: Sequence[Image],
        options: Sequence[ImageTextOptions],
        *,
        with_embedding: bool = True,
    ) -> list[tuple[list[Prediction], Vector | None]]:
        """Answer the prompts about each image, which is encoded once; see `ImageGraph.predict`."""
        answers = []
        for image, image_options in zip(images, options, strict=True):
            predictions, features = self._answer(image, image_options)
            answers.append((predictions, self._vector(features) if with_embedding else None))
        return answers

    def decode(self, data: bytes, max_pixels: int, budget: Budget | None = None) -> Image:
        """Decode an image file as the encoder takes it; see `decode_image`."""
        return decode_image(data, self._spec, max_pixels, budget)

    def count_tiles(self, _: Image, __: ImageTextOptions) -> int:
        """Return 0, as an image runs in one piece."""
        return 0

    def count_tokens(self, options: ImageTextOptions) -> int:
        """Return the maximum number of tokens to generate for one image, in all its prompts and beams."""
        search = options.search
        return len(options.prompts) * search.num_beams * search.limit(0)

    def embed(self, image: Image) -> Vector | None:
        """Return the embedding of an image; None if the model has none."""
        return self._vector(self._encode(image))

    def stream(
        self, image: Image, options: ImageTextOptions
    ) -> Generator[str, None, tuple[str, Vector | None]]:
        """Answer one prompt about an image in pieces; joined they are the answer of `predict`.

        Pieces come as tokens do. With beam search, whose best answer is known only at the end, there is one.

        Returns:
            The last piece, which may be empty, and the image's embedding.
        """
        if len(options.prompts) != 1:
            raise ParameterError(f"expected one prompt, got {len(options.prompts)}")
        features, (read,), limits = self._read(image, options)
        decoding = DecodingState(self._reader.decoder, [read.sequence], features)
        text = IncrementalDetokenizer(self._files)
        tokens: list[int] = []
        search = options.search
        for (tokens,) in generate_stepwise(
            [read.tokens], decoding.logits, decoding.step, config=search, limits=limits
        ):
            piece = text.append(tokens) if search.num_beams == 1 else ""
            if piece:
                yield piece
        return text.append(tokens, ended=True), self._vector(features)

    def _read(
        self, image: Image, options: ImageTextOptions
    ) -> tuple[npt.NDArray[Any], list[TokenizedPrompt], list[int]]:
        """Encode an image and read its prompts.

        Returns:
            Features (1, positions, width), prompts, and the maximum answer length of each.
        """
        features = self._encode(image)
        context = self._files.context_length
        prompts: list[TokenizedPrompt] = []
        limits: list[int] = []
        for index, prompt in enumerate(options.prompts):
            prompts.append(self._reader.read(prompt, features))
            length = len(prompts[-1].sequence)
            limits.append(options.search.limit(length))
            if context is None:
                continue
            if length >= context:  # refused before the next prompt takes memory
                raise ParameterError(
                    f"expected parameters.prompts[{index}] to take fewer than {context} tokens with the "
                    f"template and the image, got {length}"
                )
            limits[-1] = min(limits[-1], context - length)
        return features, prompts, limits

    def _encode(self, image: Image) -> npt.NDArray[Any]:
        tensor, _ = preprocess(image, self._spec)
        output = self._encoder.outputs[0].name
        encoded = self._encoder.run({self._spec.name: tensor[None]}, [output])[output]
        return encoded.reshape(1, -1, encoded.shape[-1])

    def _vector(self, features: npt.NDArray[Any]) -> Vector | None:
        return pool_vectors(features, 1)[0] if self.embedding.tensor is not None else None

    def _answer(
        self, image: Image, options: ImageTextOptions
    ) -> tuple[list[Prediction], npt.NDArray[Any]]:
        """Return the answers to the prompts about an image, and its features."""
        features, prompts, limits = self._read(image, options)
        answers: dict[int, str] = {}
        groups: dict[int, list[int]] = {}  # prompts of one length, unless the decoder can pad
        for index, item in enumerate(prompts):
            length = 0 if self._reader.decoder.can_pad else len(item.sequence)
            groups.setdefault(length, []).append(index)
        for group in groups.values():
            sequences = [prompts[index].sequence for index in group]
            tokens = [prompts[index].tokens for index in group]
            max_new_tokens = [limits[index] for index in group]
            decoding = DecodingState(self._reader.decoder, sequences, features)
            generated = generate(
                tokens, decoding.logits, decoding.step, config=options.search, limits=max_new_tokens
            )
            answers |= zip(group, map(self._files.decode, generated), strict=True)
        predictions = [
            Answer(prompt, answers[index]) for index, prompt in enumerate(options.prompts)
        ]
        return list(predictions), features

    def warm_up(self) -> Vector | None:
        """Answer a prompt about a gray image, as `ImageGraph.warm_up` does."""
        options = self.read_options({"prompts": ["a"], "max_new_tokens": 2})
        try:
            ((_, vector),) = self.predict([plain(self._spec)], [options])
        except (RunError, OutputError, ParameterError) as error:
            raise LoadError(f"the model fails on a gray image: {error}") from error
        return vector


def _find_graphs(folder: Path, stems: Sequence[str]) -> list[Path]:
    """Find the graphs of these names in the folder or in its subfolder `onnx`; none unless all exist."""
    for directory in (folder, folder / "onnx"):
        candidates = ([directory / f"{stem}{end}.onnx" for end in VARIANTS] for stem in stems)
        existing = [[path for path in paths if path.is_file()] for paths in candidates]
        if all(existing):
            return [paths[0] for paths in existing]
    return []


def _read_toml(folder: Path, overrides: Mapping[str, Any] | None) -> ModelToml:
    toml = read_model_toml(folder, overrides)
    for name in ("family", "labels", "output", "defaults", "tiling", "then"):
        if getattr(toml, name):
            raise LoadError(f"model.toml: {name} has no use for an image-text model: remove it")
    if toml.task is not None and full_name(toml.task) != TASK:
        raise LoadError(
            f"expected task in model.toml to be image-text, as the graphs are, got {toml.task!r}"
        )
    return toml


def _decide_input(
    decisions: list[Decision], folder: Path, model_toml: ModelToml, encoder: Session
) -> InputSpec:
    """Decide how an image becomes the encoder's input, as for every image model."""
    image = encoder.inputs[0]
    if len(encoder.inputs) != 1 or len(image.shape) != 4 or channels_axis(image) is None:
        got = ", ".join(map(str, encoder.inputs))
        raise LoadError(
            f"expected {encoder.path.name} to take one image, [batch, channels, height, width] as FP32, FP16 or "
            f"UINT8, got {got}"
        )
    evidence = gather_evidence(folder, encoder, model_toml)
    spec = decide_image_input(
        decisions, evidence, image, has_no_default=True, has_image_processor=True
    )
    size_wh = evidence.preprocessing.get("size_wh", spec.size_wh)
    if "size" not in model_toml.input and size_wh != spec.size_wh:
        raise LoadError(
            f"expected size in {PREPROCESSOR_FILE} to be {list(spec.size_wh)} (width, height) as in "
            f"{encoder.path.name}, got {list(size_wh)}"
        )
    if spec.channels not in (1, 3) or spec.bit_depth != 8:
        raise LoadError(
            f"expected {encoder.path.name} to take 1 or 3 channels of 8 bits, got {spec.channels} of "
            f"{spec.bit_depth}"
        )
    return spec
