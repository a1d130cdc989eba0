"""The decoder of a text model: it reads prompts about an image and generates token by token with a cache.

Tokens are chosen in `quadriga.tasks.generation`.

Source: names of Optimum and transformers.js; transformers 4.57, LLaVA (`get_placeholder_mask`) and
VisionEncoderDecoder.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.engine.models.image_text.files import TextFiles
from quadriga.engine.models.runners.session import DeviceArray, LoadError, Session
from quadriga.proto.datatypes import NUMPY_TYPES
from quadriga.proto.messages import TensorInfo
from quadriga.tasks.generation import Tokens
from quadriga.tasks.logits import Scores
from quadriga.tasks.parameters import ParameterError

PAST = "past_key_values."
_ENCODER = ".encoder."
"""Part of the name of a cache tensor that belongs to the encoder."""

_TOKENS = ("input_ids", "inputs_embeds")
_ENCODER_OUTPUTS = ("encoder_hidden_states", "encoder_attention_mask")
_MASKS = ("attention_mask", "decoder_attention_mask")
_OTHER_INPUTS = ("position_ids", "use_cache_branch", "num_logits_to_keep")
_KNOWN_INPUTS = (*_TOKENS, *_MASKS, *_ENCODER_OUTPUTS, *_OTHER_INPUTS)

_POSITIONS_FROM_ONE = ("paligemma", "gemma3")
"""Values of `model_type` in config.json whose positions start at one."""

Embed = Callable[[Tokens], npt.NDArray[Any]]
"""Function from token ids (rows, length) to their embeddings (rows, length, width)."""


class TextDecoder:
    """The graphs that read prompts and return the logits of the next token.

    `first` reads a complete prompt, `following` one more token with the cache of the previous ones; both may
    be the same. Without a cache every step reads the complete sequence. `embed` is for graphs that take
    embeddings.
    """

    def __init__(
        self, first: Session, following: Session | None, embed: Embed | None, first_position: int
    ) -> None:
        self.first = first
        self.following = following
        self.embed = embed
        self.first_position = first_position
        sessions = [first] if following is None else [first, following]
        self.inputs_by_session = {s: {info.name: info for info in s.inputs} for s in sessions}
        self.outputs_by_session = {s: {info.name for info in s.outputs} for s in sessions}
        self.can_pad = all(
            "position_ids" in inputs and any(name in inputs for name in _MASKS)
            for inputs in self.inputs_by_session.values()
        )
        """Whether prompts of different lengths may run together with unchanged answers: without position ids,
        padding would shift a prompt."""
        for session, inputs in self.inputs_by_session.items():
            unknown = [
                name for name in inputs if name not in _KNOWN_INPUTS and not name.startswith(PAST)
            ]
            if unknown or "logits" not in self.outputs_by_session[session]:
                problem = f"the input {unknown[0]!r}" if unknown else "no output 'logits'"
                raise LoadError(
                    f"expected a decoder as Optimum exports it in {session.path.name}, got {problem}"
                )
        following_inputs = self.inputs_by_session[following] if following is not None else {}
        self.cache_inputs = [name for name in following_inputs if name.startswith(PAST)]
        if missing := [
            name
            for name in self.cache_inputs
            if _present_name(name) not in self.outputs_by_session[first]
        ]:
            raise LoadError(
                f"expected an output {_present_name(missing[0])!r} in {first.path.name}, as the decoder takes "
                f"{missing[0]!r}, got none"
            )


class DecodingState:
    """Generation in progress: caches and masks of prompts. `logits` are those after the prompts.

    Args:
        decoder: The graphs.
        sequences: Token ids (length,) or embeddings (length, width) of each prompt; all of one length unless
            the decoder can pad.
        encoded: Output of the image encoder, (1, positions, width).
    """

    def __init__(
        self, decoder: TextDecoder, sequences: Sequence[npt.NDArray[Any]], encoded: npt.NDArray[Any]
    ) -> None:
        longest = max(map(len, sequences))
        self._decoder = decoder
        self._encoded = encoded
        self._cache: dict[str, DeviceArray] = {}
        self._mask = np.zeros((len(sequences), longest), np.int64)
        shape = *self._mask.shape, *sequences[0].shape[1:]
        self._whole = np.zeros(shape, sequences[0].dtype)
        for row, sequence in enumerate(sequences):
            self._mask[row, longest - len(sequence) :] = 1
            self._whole[row, longest - len(sequence) :] = sequence
        self.logits = self._run(decoder.first, self._whole)

    def step(self, tokens: Tokens, rows: Tokens) -> Scores:
        """Append a token to each row and return the next logits; a `quadriga.tasks.generation.Step`."""
        decoder = self._decoder
        self._choose(rows)
        ones_column = np.ones((len(rows), 1), np.int64)
        self._mask = np.concatenate([self._mask, ones_column], axis=1)
        inputs = tokens[:, None] if decoder.embed is None else decoder.embed(tokens[:, None])
        if decoder.following is not None:
            return self._run(decoder.following, inputs)
        self._whole = np.concatenate([self._whole, inputs], axis=1)
        return self._run(decoder.first, self._whole)

    def _choose(self, rows: Tokens) -> None:
        """Select these rows; the encoder's cache is the same in each of them."""
        count = len(self._mask)
        if len(rows) == count and (rows == np.arange(count)).all():
            return
        self._mask = self._mask[rows]
        if self._decoder.following is None:
            self._whole = self._whole[rows]
            return
        for name, array in self._cache.items():
            if not (_ENCODER in name and len(rows) == count):
                self._cache[name] = self._decoder.following.select_rows(array, rows)

    def _run(self, session: Session, tokens: npt.NDArray[Any]) -> Scores:
        """Read tokens, the last ones of the mask, and return the logits of the next token."""
        decoder = self._decoder
        input_infos = decoder.inputs_by_session[session]
        rows, length = tokens.shape[:2]
        positions = np.maximum(self._mask.cumsum(axis=1)[:, -length:] - 1, 0)
        inputs: dict[str, DeviceArray] = {
            **dict.fromkeys(_TOKENS, tokens),
            **dict.fromkeys(_MASKS, self._mask),
            "position_ids": positions + decoder.first_position,
            "use_cache_branch": np.array([bool(self._cache)]),
        }
        if "num_logits_to_keep" in input_infos:
            rank = len(input_infos["num_logits_to_keep"].shape)
            inputs["num_logits_to_keep"] = np.ones([1] * rank, np.int64)
        if any(name in input_infos for name in _ENCODER_OUTPUTS):
            if len(self._encoded) != rows:
                self._encoded = np.repeat(self._encoded[:1], rows, axis=0)
            inputs["encoder_hidden_states"] = self._encoded
            inputs["encoder_attention_mask"] = np.ones(self._encoded.shape[:2], np.int64)
        feeds: dict[str, DeviceArray] = {}
        for name, info in input_infos.items():
            if name in self._cache:
                feeds[name] = self._cache[name]
            elif name.startswith(PAST):
                feeds[name] = _empty_cache(info, rows)
            else:
                feeds[name] = inputs[name].astype(NUMPY_TYPES[info.datatype], copy=False)
        fresh = [
            name
            for name in decoder.cache_inputs
            if _present_name(name) in decoder.outputs_by_session[session]
            # after the first run, graphs return dummies for the encoder's keys and values
            and not (_ENCODER in name and name in self._cache)
        ]
        logits, device_arrays = session.run_on_device(
            feeds, "logits", [_present_name(name) for name in fresh]
        )
        self._cache |= {name: device_arrays[_present_name(name)] for name in fresh}
        return np.asarray(logits[:, -1], np.float32)


def _present_name(name: str) -> str:
    return "present." + name.removeprefix(PAST)


def _empty_cache(info: TensorInfo, rows: int) -> npt.NDArray[Any]:
    """Return a cache without tokens: (rows, heads, 0, width)."""
    shape = info.shape
    if len(shape) != 4 or shape[1] < 0 or shape[3] < 0:
        raise LoadError(
            f"expected {info.name!r} to be [batch, heads, length, width] with fixed heads and width, got "
            f"{list(shape)}"
        )
    return np.zeros((rows, shape[1], 0, shape[3]), NUMPY_TYPES[info.datatype])


class TokenizedPrompt(msgspec.Struct, frozen=True, eq=False):
    """One prompt as the decoder reads it."""

    tokens: list[int]
    sequence: npt.NDArray[Any]
    """Token ids (length,), or embeddings (length, width)."""


class CrossAttentionReader:
    """Prompt reader for a decoder with cross-attention to the encoded image."""

    def __init__(self, files: TextFiles, first: Session, following: Session | None = None) -> None:
        if following is None and any(tensor.name.startswith(PAST) for tensor in first.inputs):
            following = first
        self.decoder = TextDecoder(first, following, None, 0)
        self._files = files
        self._template = files.prompt_template(("prompt",), "{prompt}")
        self._start = files.decoder_start_token()

    def read(self, prompt: str, features: npt.NDArray[Any]) -> TokenizedPrompt:  # noqa: ARG002 - the decoder attends to them
        """Turn a prompt into the tokens with which the decoder begins."""
        text = self._template.replace("{prompt}", prompt)
        tokens = self._files.encode(text, add_special_tokens=False)
        if tokens[:1] != [self._start]:
            tokens = [self._start, *tokens]
        return TokenizedPrompt(tokens, np.array(tokens, np.int64))


class ImageTokenReader:
    """Prompt reader for a language model that takes image features among its token embeddings.

    The features replace the image token; if the model has none, they come before the text.
    """

    def __init__(self, files: TextFiles, embedding: Session, decoder: Session) -> None:
        self._files = files
        self._embed = partial(
            _embed_tokens, embedding
        )  # not a method: a reference cycle would keep an unloaded model in memory
        first_position = int(files.config.get("model_type") in _POSITIONS_FROM_ONE)
        self.decoder = TextDecoder(decoder, decoder, self._embed, first_position)
        self._image_token = files.image_token()
        template = files.prompt_template(("prompt", "image"), "{image}{prompt}")
        prefix, placeholder, suffix = template.rpartition("{image}")
        if self._image_token is None and prefix:
            raise LoadError(
                "expected {image} first in [text] prompt_template, as the model has no image token, got "
                f"{template!r:.200}: name it with [text] image_token"
            )
        token_text = "" if self._image_token is None else files.token_text(self._image_token)
        if placeholder:
            self._template = f"{prefix}{token_text}{suffix}"
        else:  # a template may also hold the token itself
            self._template = (
                template if token_text and token_text in template else f"{token_text}{template}"
            )
        if self._image_token is not None and self._tokens("").count(self._image_token) != 1:
            raise LoadError(
                f"expected tokenizer.json to find the image token {token_text!r} ({self._image_token}) once in "
                f"[text] prompt_template, got {template!r:.200}"
            )

    def read(self, prompt: str, features: npt.NDArray[Any]) -> TokenizedPrompt:
        """Turn a prompt into embeddings that include the image features."""
        tokens = self._tokens(prompt)
        embeddings = self._embed(np.array([tokens], np.int64))[0]
        image = features[0].astype(embeddings.dtype, copy=False)
        if self._image_token is None:
            return TokenizedPrompt(tokens, np.concatenate([image, embeddings]))
        if tokens.count(self._image_token) != 1:
            raise ParameterError(
                f"expected parameters.prompts without the image token, got {prompt!r:.80}"
            )
        position = tokens.index(self._image_token)
        sequence = [*tokens[:position], *[self._image_token] * len(image), *tokens[position + 1 :]]
        return TokenizedPrompt(
            sequence, np.concatenate([embeddings[:position], image, embeddings[position + 1 :]])
        )

    def _tokens(self, prompt: str) -> list[int]:
        text = self._template.replace("{prompt}", prompt)
        return self._files.encode(text, add_special_tokens=True)


def _embed_tokens(embedding: Session, tokens: Tokens) -> npt.NDArray[Any]:
    name, output = embedding.inputs[0].name, embedding.outputs[0].name
    return embedding.run({name: tokens}, [output])[output]
