"""The files beside a text model's graphs: tokenizer, prompt template and generation settings.

Source: transformers 4.57, `GenerationConfig`.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from tokenizers import Tokenizer

from quadriga.engine.models.recognition.decisions import Decision
from quadriga.engine.models.recognition.evidence import read_json
from quadriga.engine.models.recognition.model_toml import convert
from quadriga.engine.models.runners.session import LoadError
from quadriga.tasks.generation import MAX_BEAMS, MAX_NEW_TOKENS, GenerationConfig

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


class _GenerationFile(msgspec.Struct, frozen=True):
    """Keys of generation_config.json that are read; others are ignored."""

    max_new_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_length: Annotated[int, Meta(ge=1)] | None = None
    do_sample: bool | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    num_beams: Annotated[int, Meta(ge=1, le=MAX_BEAMS)] | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    no_repeat_ngram_size: Annotated[int, Meta(ge=0)] | None = None
    min_length: int | None = None
    min_new_tokens: int | None = None
    forced_bos_token_id: _TokenId | None = None
    forced_eos_token_id: _TokenIds = None
    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None
    eos_token_id: _TokenIds = None
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
        self._generation = self._generation_file(folder / "generation_config.json")
        self.search = self._search()
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

    def _generation_file(self, path: Path) -> _GenerationFile:
        """Read generation_config.json; if there is none, the same keys of config.json, as in older exports."""
        content = read_json(path)
        for name, neutral in _UNSUPPORTED.items():
            value = content.get(name)
            if value not in (None, [], {}, neutral):
                raise LoadError(
                    f"expected {path.name} without {name}, as answers do not follow it, got {value!r:.80}: remove "
                    "the line if they may differ from those of transformers"
                )
        if not content:
            fields = _GenerationFile.__struct_fields__
            fallback = {**self._decoder, **self.config}
            content = {name: value for name, value in fallback.items() if name in fields}
        return convert(content, _GenerationFile, f"{path.name}:")

    def _search(self) -> GenerationConfig:
        file = self._generation
        ends = self.decide(
            "eos_token_ids",
            (_to_token_ids(self.table.eos_token_ids), "model.toml"),
            (_to_token_ids(file.eos_token_id), "generation_config.json"),
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
        new_tokens = self.table.max_new_tokens or file.max_new_tokens or default_tokens
        parameters = {
            name: getattr(file, name, None) for name in GenerationConfig.__struct_fields__
        }
        parameters["forced_eos_token_ids"] = _to_token_ids(file.forced_eos_token_id)
        parameters |= {"max_new_tokens": new_tokens, "eos_token_ids": ends}
        parameters["do_sample"] = bool(file.do_sample) and file.temperature != 0
        if file.temperature == 0:
            parameters["temperature"] = 1.0
        search = GenerationConfig(
            **{name: value for name, value in parameters.items() if value is not None}
        )
        for name in ("num_beams", "do_sample"):
            reason = "default" if getattr(file, name) is None else "generation_config.json"
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
