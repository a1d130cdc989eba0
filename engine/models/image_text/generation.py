"""Image-text models of several graphs: loading their folder, and generating answers to prompts about an image.

The decoder reads prompts about an image and generates token by token with a cache. Tokens are chosen in
`quadriga.tasks.generation`.

Source: optimum-onnx 0.1 `exporters/onnx`; transformers.js 3 `models.js`; transformers 4.57, LLaVA
(`get_placeholder_mask`) and VisionEncoderDecoder.
"""

import json
import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta
from tokenizers import Tokenizer

from quadriga.engine.models.embedding import encoder_embedding
from quadriga.engine.models.image_graph import Vector, decode_image, pool_vectors, wants_legacy
from quadriga.engine.models.recognition.decisions import Decision
from quadriga.engine.models.recognition.evidence import channels_axis, gather_evidence, read_json
from quadriga.engine.models.recognition.image_input import decide_image_input
from quadriga.engine.models.recognition.model_toml import ModelToml, convert, read_model_toml
from quadriga.engine.models.recognition.recognise import Recognition
from quadriga.engine.models.recognition.sidecars import PREPROCESSOR_FILE
from quadriga.engine.models.runners.session import DeviceArray, LoadError, RunError, Runner, Session
from quadriga.proto.datatypes import NUMPY_TYPES
from quadriga.proto.messages import TensorInfo
from quadriga.tasks import full_name
from quadriga.tasks.generation import (
    MAX_NEW_TOKENS,
    GenerationConfig,
    ImageTextOptions,
    ImageTextToText,
    Scores,
    Tokens,
    generate,
    generate_stepwise,
)
from quadriga.tasks.image import Image
from quadriga.tasks.parameters import Budget, ParameterError
from quadriga.tasks.predictions import Answer, OutputError, Prediction
from quadriga.tasks.resize import plain, preprocess
from quadriga.tasks.specification import InputSpec, ModelSpec

_DEFAULT_NEW_TOKENS = 64
"""Maximum length of an answer if no file has one."""

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""A token that is one byte, as SentencePiece names it."""

_TokenId = Annotated[int, Meta(ge=0)]
_TokenIds = _TokenId | tuple[_TokenId, ...] | None


class TextTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[text]` of model.toml."""

    prompt_template: str | None = None
    """Text that the model reads, with `{prompt}`, and `{image}` at the position of the image."""
    image_token: str | _TokenId | None = None
    """Token that the image replaces; "" if the model has none: the image comes before the text."""
    max_new_tokens: Annotated[int, Meta(ge=1, le=MAX_NEW_TOKENS)] | None = None
    eos_token_ids: _TokenIds = None
    context_length: Annotated[int, Meta(ge=1)] | None = None
    """Maximum number of tokens of the decoder: image, prompt and answer together."""


class _GenerationTokens(msgspec.Struct, frozen=True):
    """Tokens in generation_config.json that `GenerationConfig` has in another form, or not at all."""

    eos_token_id: _TokenIds = None
    forced_eos_token_id: _TokenIds = None
    bos_token_id: _TokenId | None = None
    decoder_start_token_id: _TokenId | None = None


_UNSUPPORTED: dict[str, int | None] = {
    **dict.fromkeys(("bad_words_ids", "constraints", "exponential_decay_length_penalty")),
    **dict.fromkeys(("force_words_ids", "forced_decoder_ids", "sequence_bias")),
    **dict.fromkeys(("diversity_penalty", "encoder_no_repeat_ngram_size", "penalty_alpha"), 0),
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale", "num_beam_groups"), 1),
}
"""Keys of generation_config.json that change answers in unsupported ways, and the value (besides null)
that changes nothing."""


class TextFiles:
    """Tokenizer and settings of one folder; all files are read by the constructor."""

    def __init__(self, folder: Path, table: Mapping[str, Any]) -> None:
        self.table = convert(table, TextTable, "model.toml: [text]")
        self.decisions: list[Decision] = []
        self.config = read_json(folder / "config.json")
        configs = (self.config.get(name) for name in ("decoder", "text_config", "llm_config"))
        self._decoder = next(
            (config for config in configs if isinstance(config, dict)), self.config
        )
        self._tokenizer = _load_tokenizer(folder / "tokenizer.json")
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {token for token, added_token in added.items() if added_token.special}
        templates = (folder / f"chat_template.{ending}" for ending in ("jinja", "json"))
        self._has_chat_template = any(path.is_file() for path in templates) or bool(
            read_json(folder / "tokenizer_config.json").get("chat_template")
        )
        content = self._generation_file(folder / "generation_config.json")
        self._generation = convert(content, _GenerationTokens, "generation_config.json:")
        self.search = self._search(content)
        self.context_length: int | None = self._context_length()

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode an answer's tokens to text, without special tokens and surrounding space."""
        if tokens and tokens[-1] in self.search.eos_token_ids:
            tokens = tokens[:-1]
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    def complete_tokens(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens whose text is final: without bytes and special tokens at the end."""
        count = len(tokens)
        while count and (
            (last := tokens[count - 1]) in self._special or _BYTE.fullmatch(self.token_text(last))
        ):
            count -= 1
        return tokens[:count]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Encode text to tokens, with the tokenizer's start tokens unless the text has them."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if not add_special_tokens:
            return tokens
        encoding = self._tokenizer.encode(text, add_special_tokens=True)
        pairs = zip(encoding.special_tokens_mask, encoding.ids, strict=True)
        added = (token for _, token in takewhile(itemgetter(0), pairs))
        start = [token for token in added if token not in self.search.eos_token_ids]
        return tokens if tokens[: len(start)] == start else [*start, *tokens]

    def decide(self, field: str, *candidates: tuple[Any, str]) -> Any:
        """Return the first value that is not None, and record the reason of the decision."""
        available = (candidate for candidate in candidates if candidate[0] is not None)
        value, reason = next(available, (None, "not given"))
        self.decisions.append(Decision(f"text.{field}", value, reason))
        return value

    def prompt_template(self, placeholders: Collection[str], default: str) -> str:
        """Return the prompt template."""
        configured = self.table.prompt_template
        if configured is None and self._has_chat_template and "image" in placeholders:
            raise LoadError(
                "expected prompt_template in model.toml, table [text], as the model has a chat template: "
                'write what that gives for one question, such as "USER: {image}\\n{prompt} ASSISTANT:"'
            )
        candidates = (configured, "model.toml"), (default, "default")
        template: str = self.decide("prompt_template", *candidates)
        names = re.findall(r"\{(\w*)\}", template)
        if unknown := [name for name in names if name not in placeholders]:
            allowed = ", ".join(f"{{{name}}}" for name in placeholders)
            raise LoadError(
                f"expected placeholders of [text] prompt_template among {allowed}, got {{{unknown[0]}}}"
            )
        if template and (names.count("prompt") != 1 or names.count("image") > 1):
            raise LoadError(
                "expected [text] prompt_template to hold {prompt} once, and {image} at most once, got "
                f"{template!r:.200}"
            )
        return template

    def image_token(self) -> int | None:
        """Return the token that the image replaces; None if the model has none."""
        configured = self.table.image_token
        if configured is None and not self.config:
            candidates = [text for text in self._tokenizer.get_vocab() if "image" in text.lower()]
            lines = [
                f"  image_token = {json.dumps(text)}\n" for text in sorted(candidates, key=len)[:5]
            ]
            raise LoadError(
                "image_token_id in config.json, or image_token in model.toml, is required. Write one of "
                f"these lines in model.toml, [text]:\n{''.join(lines)}"
                '  image_token = ""  # the model has none: the image stands before the text'
            )
        if configured == "":
            self.decide("image_token", ("", "model.toml"))
            return None
        token = (
            self._tokenizer.token_to_id(configured) if isinstance(configured, str) else configured
        )
        if token is None and configured is not None:
            raise LoadError(
                f"expected [text] image_token to be a token of tokenizer.json, got {configured!r:.80}"
            )
        token_id: int | None = self.decide(
            "image_token",
            (token, "model.toml"),
            (self.config.get("image_token_id"), "config.json, image_token_id"),
            (self.config.get("image_token_index"), "config.json, image_token_index"),
        )
        if token_id is not None and self._tokenizer.id_to_token(token_id) is None:
            raise LoadError(f"expected image_token to be a token of tokenizer.json, got {token_id}")
        return token_id

    def token_text(self, token: int) -> str:
        """Return the text of a token in the tokenizer's vocabulary."""
        return str(self._tokenizer.id_to_token(token))

    def decoder_start_token(self) -> int:
        """Return the token with which the decoder of an encoder-decoder model starts."""
        token: int | None = self.decide(
            "decoder_start_token_id",
            (self._generation.decoder_start_token_id, "generation_config.json"),
            (self.config.get("decoder_start_token_id"), "config.json"),
            (self._decoder.get("decoder_start_token_id"), "config.json, decoder"),
            (self._generation.bos_token_id, "generation_config.json, bos_token_id"),
            (self.config.get("bos_token_id"), "config.json, bos_token_id"),
            (self._decoder.get("bos_token_id"), "config.json, decoder, bos_token_id"),
        )
        if token is None:
            raise LoadError(
                "decoder_start_token_id is required in generation_config.json or config.json"
            )
        return token

    def _generation_file(self, path: Path) -> dict[str, Any]:
        """Read generation_config.json; if there is none, the same keys of config.json, as in older exports."""
        content = read_json(path)
        for name, neutral in _UNSUPPORTED.items():
            value = content.get(name)
            if value not in (None, [], {}, neutral):
                raise LoadError(
                    f"expected {path.name} without {name}, as answers do not follow it, got {value!r:.80}: remove "
                    "the line if they may differ from those of transformers"
                )
        content = content or {**self._decoder, **self.config}
        return {name: value for name, value in content.items() if value is not None}

    def _search(self, content: dict[str, Any]) -> GenerationConfig:
        file = convert(content, GenerationConfig, "generation_config.json:")
        ends = self.decide(
            "eos_token_ids",
            (_to_token_ids(self.table.eos_token_ids), "model.toml"),
            (_to_token_ids(self._generation.eos_token_id), "generation_config.json"),
            (_to_token_ids(self.config.get("eos_token_id")), "config.json"),
            (_to_token_ids(self._decoder.get("eos_token_id")), "config.json, decoder"),
        )
        self.decide(
            "max_new_tokens",
            (self.table.max_new_tokens, "model.toml"),
            (file.max_new_tokens, "generation_config.json"),
            (file.max_length and f"{file.max_length} with the prompt", "generation_config.json"),
            (_DEFAULT_NEW_TOKENS, "default"),
        )
        default_tokens = _DEFAULT_NEW_TOKENS if file.max_length is None else None
        search = msgspec.structs.replace(
            file,
            max_new_tokens=self.table.max_new_tokens or file.max_new_tokens or default_tokens,
            do_sample=file.do_sample and file.temperature != 0,
            temperature=file.temperature or 1.0,
            seed=None,
            eos_token_ids=ends or (),
            forced_eos_token_ids=_to_token_ids(self._generation.forced_eos_token_id) or (),
        )
        for name in ("num_beams", "do_sample"):
            reason = "generation_config.json" if name in content else "default"
            self.decide(name, (getattr(search, name), reason))
        return search

    def _context_length(self) -> int | None:
        names = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len")
        keys = [(config, name) for config in (self._decoder, self.config) for name in names]
        candidates = ((config.get(name), f"config.json, {name}") for config, name in keys)
        configured = (self.table.context_length, "model.toml")
        length: int | None = self.decide("context_length", configured, *candidates)
        return length if length is None or length > 0 else None


class IncrementalDetokenizer:
    """Detokenizes a growing answer: returns only text that no later token can change.

    Bytes of an incomplete character are held back, and so is trailing space, which an answer does not end
    with. Byte tokens are held back until the run of them ends: a run that is not UTF-8 decodes differently.
    """

    def __init__(self, files: TextFiles) -> None:
        self._files = files
        self._shown = ""

    def append(self, tokens: Sequence[int], *, ended: bool = False) -> str:
        """Return the text that is new since the previous call; `tokens` are all tokens so far."""
        text = self._files.decode(tokens if ended else self._files.complete_tokens(tokens))
        if not ended:
            text = text.rstrip("\ufffd").rstrip()
            if not text.startswith(self._shown):
                return ""
        new, self._shown = text[len(self._shown) :], text
        return new


def _load_tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise LoadError(
            "expected tokenizer.json beside the model, got no such file: save it with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise LoadError(f"expected tokenizer.json to be a tokenizer, got: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _to_token_ids(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    return tuple(value) if isinstance(value, list | tuple) else (int(value),)


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


ReadPrompt = tuple[list[int], npt.NDArray[Any]]
"""The tokens of a prompt; and what the decoder reads: token ids (length,), or embeddings (length, width)."""


class CrossAttentionReader:
    """Prompt reader for a decoder with cross-attention to the encoded image."""

    def __init__(self, files: TextFiles, first: Session, following: Session | None = None) -> None:
        if following is None and any(tensor.name.startswith(PAST) for tensor in first.inputs):
            following = first
        self.decoder = TextDecoder(first, following, None, 0)
        self._files = files
        self._template = files.prompt_template(("prompt",), "{prompt}")
        self._start = files.decoder_start_token()

    def read(self, prompt: str, features: npt.NDArray[Any]) -> ReadPrompt:  # noqa: ARG002 - the decoder attends to them
        """Turn a prompt into the tokens with which the decoder begins."""
        text = self._template.replace("{prompt}", prompt)
        tokens = self._files.encode(text, add_special_tokens=False)
        if tokens[:1] != [self._start]:
            tokens = [self._start, *tokens]
        return tokens, np.array(tokens, np.int64)


class ImageTokenReader:
    """Prompt reader for a language model that takes image features among its token embeddings.

    The features replace the image token; if the model has none, they come before the text.
    """

    def __init__(self, files: TextFiles, embedding: Session, decoder: Session) -> None:
        self._files = files
        # not a method: a reference cycle would keep an unloaded model in memory
        self._embed = partial(_embed_tokens, embedding)
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

    def read(self, prompt: str, features: npt.NDArray[Any]) -> ReadPrompt:
        """Turn a prompt into embeddings that include the image features."""
        tokens = self._tokens(prompt)
        embeddings = self._embed(np.array([tokens], np.int64))[0]
        image = features[0].astype(embeddings.dtype, copy=False)
        if self._image_token is None:
            return tokens, np.concatenate([image, embeddings])
        if tokens.count(self._image_token) != 1:
            raise ParameterError(
                f"expected parameters.prompts without the image token, got {prompt!r:.80}"
            )
        position = tokens.index(self._image_token)
        sequence = [*tokens[:position], *[self._image_token] * len(image), *tokens[position + 1 :]]
        parts = [embeddings[:position], image, embeddings[position + 1 :]]
        return sequence, np.concatenate(parts)

    def _tokens(self, prompt: str) -> list[int]:
        text = self._template.replace("{prompt}", prompt)
        return self._files.encode(text, add_special_tokens=True)


def _embed_tokens(embedding: Session, tokens: Tokens) -> npt.NDArray[Any]:
    name, output = embedding.inputs[0].name, embedding.outputs[0].name
    return embedding.run({name: tokens}, [output])[output]


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
        self, folder: Path, toml: ModelToml | None = None, runner: Runner | None = None
    ) -> None:
        reason = describe_text_package(folder)
        if reason is None:
            raise LoadError(f"graphs of a text model not found in {folder.name}")
        stems = _LAYOUTS[reason]
        toml = toml or read_model_toml(folder)
        _check_toml(toml)
        self.paths = _find_graphs(folder, stems)
        """Paths of the graphs and of the tokenizer."""
        if stems == _VISION and _find_graphs(folder, ("encoder_model",)):
            raise LoadError(
                f"expected {', '.join(stems)} alone, got an encoder_model too: a text encoder between "
                "image and decoder, as Florence-2 has, is not supported"
            )
        self._files = TextFiles(folder, toml.text)
        runtime = toml.runtime
        encoder, *other_sessions = (
            Session(
                path,
                runtime.providers,
                runtime.intra_op_threads,
                runner=runner,
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
        return [
            self._answer(image, image_options, with_embedding=with_embedding)
            for image, image_options in zip(images, options, strict=True)
        ]

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
        features, ((prompt, sequence),), limits = self._read(image, options)
        decoding = DecodingState(self._reader.decoder, [sequence], features)
        text = IncrementalDetokenizer(self._files)
        tokens: list[int] = []
        search = options.search
        for (tokens,) in generate_stepwise(
            [prompt], decoding.logits, decoding.step, config=search, limits=limits
        ):
            piece = text.append(tokens) if search.num_beams == 1 else ""
            if piece:
                yield piece
        return text.append(tokens, ended=True), self._vector(features)

    def _read(
        self, image: Image, options: ImageTextOptions
    ) -> tuple[npt.NDArray[Any], list[ReadPrompt], list[int]]:
        """Encode an image and read its prompts.

        Returns:
            Features (1, positions, width), prompts, and the maximum answer length of each.
        """
        features = self._encode(image)
        context = self._files.context_length
        prompts: list[ReadPrompt] = []
        limits: list[int] = []
        for index, prompt in enumerate(options.prompts):
            prompts.append(self._reader.read(prompt, features))
            length = len(prompts[-1][1])
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
        self, image: Image, options: ImageTextOptions, *, with_embedding: bool
    ) -> tuple[list[Prediction], Vector | None]:
        """Return the answers to the prompts about an image, and its embedding."""
        features, prompts, limits = self._read(image, options)
        predictions: dict[int, Prediction] = {}
        groups: dict[int, list[int]] = {}  # prompts of one length, unless the decoder can pad
        for index, (_, sequence) in enumerate(prompts):
            length = 0 if self._reader.decoder.can_pad else len(sequence)
            groups.setdefault(length, []).append(index)
        for group in groups.values():
            tokens, sequences = zip(*(prompts[index] for index in group), strict=True)
            max_new_tokens = [limits[index] for index in group]
            decoding = DecodingState(self._reader.decoder, sequences, features)
            generated = generate(
                tokens, decoding.logits, decoding.step, config=options.search, limits=max_new_tokens
            )
            for index, answer in zip(group, map(self._files.decode, generated), strict=True):
                predictions[index] = Answer(options.prompts[index], answer)
        vector = self._vector(features) if with_embedding else None
        return [predictions[index] for index in sorted(predictions)], vector

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


def _check_toml(toml: ModelToml) -> None:
    """Refuse keys that an image-text model has no use for."""
    for name in ("family", "labels", "output", "defaults", "tiling", "then"):
        if getattr(toml, name):
            raise LoadError(f"model.toml: {name} has no use for an image-text model: remove it")
    if toml.task is not None and full_name(toml.task) != TASK:
        raise LoadError(
            f"expected task in model.toml to be image-text, as the graphs are, got {toml.task!r}"
        )


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
