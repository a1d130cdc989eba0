"""The files beside a text model's graphs: what they say of tokens, prompts and the search.

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

from quadriga.engine.recognition.decisions import Decision
from quadriga.engine.recognition.evidence import read_json
from quadriga.engine.recognition.model_toml import convert
from quadriga.engine.session import LoadError
from quadriga.tasks.generation import GenerationConfig
from quadriga.tasks.image_text import MAX_BEAMS, MAX_NEW_TOKENS

_DEFAULT_NEW_TOKENS = 64
"""Where no file says how long an answer may be."""

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""A token that is one byte, as SentencePiece names it."""

_TokenId = Annotated[int, Meta(ge=0)]
_TokenIds = _TokenId | tuple[_TokenId, ...] | None


class TextTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[text]` of model.toml."""

    prompt_template: str | None = None
    """What the model reads: text with `{prompt}`, and `{image}` where the image stands."""
    image_token: str | _TokenId | None = None
    """The token whose places the image takes; where there is none, as "" says, it stands before the text."""
    max_new_tokens: Annotated[int, Meta(ge=1, le=MAX_NEW_TOKENS)] | None = None
    eos_token_ids: _TokenIds = None
    context_length: Annotated[int, Meta(ge=1)] | None = None
    """Most tokens that the decoder takes, image, prompt and answer together."""


class _GenerationFile(msgspec.Struct, frozen=True):
    """What is read of generation_config.json; other keys are passed over."""

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


_NOT_FOLLOWED: dict[str, int | None] = {
    **dict.fromkeys(("bad_words_ids", "constraints", "exponential_decay_length_penalty")),
    **dict.fromkeys(("force_words_ids", "forced_decoder_ids", "sequence_bias")),
    **dict.fromkeys(("diversity_penalty", "encoder_no_repeat_ngram_size", "penalty_alpha"), 0),
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale", "num_beam_groups"), 1),
}
"""Keys of generation_config.json that change answers in ways that `GenerationConfig` does not have, and the value
beside null that changes nothing."""


class TextFiles:
    """What the files of one folder say; every part of it is read when it is made."""

    def __init__(self, folder: Path, table: Mapping[str, Any]) -> None:
        self.table = convert(table, TextTable, "model.toml: [text]")
        self.decisions: list[Decision] = []
        self.config = read_json(folder / "config.json")
        named = (self.config.get(name) for name in ("decoder", "text_config", "llm_config"))
        self._decoder = next((each for each in named if isinstance(each, dict)), self.config)
        self._tokenizer = _tokenizer(folder / "tokenizer.json")
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {token for token, known in added.items() if known.special}
        templates = (folder / f"chat_template.{ending}" for ending in ("jinja", "json"))
        self._has_chat_template = any(path.is_file() for path in templates) or bool(
            read_json(folder / "tokenizer_config.json").get("chat_template")
        )
        self._generation = self._generation_file(folder / "generation_config.json")
        self.search = self._search()
        self.context_length: int | None = self._context_length()

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn an answer's tokens into text, without special tokens and surrounding space."""
        if tokens and tokens[-1] in self.search.eos_token_ids:
            tokens = tokens[:-1]
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    def settled(self, tokens: Sequence[int]) -> Sequence[int]:
        """Leave out what a further token may change: bytes at the end, and what is no text there."""
        count = len(tokens)
        while count and (
            (last := tokens[count - 1]) in self._special or _BYTE.fullmatch(self.token_text(last))
        ):
            count -= 1
        return tokens[:count]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Turn text into tokens; with the tokenizer's own beginning, where the text has none."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if not add_special_tokens:
            return tokens
        whole = self._tokenizer.encode(text, add_special_tokens=True)
        pairs = zip(whole.special_tokens_mask, whole.ids, strict=True)
        added = (token for _, token in takewhile(itemgetter(0), pairs))
        start = [token for token in added if token not in self.search.eos_token_ids]
        return tokens if tokens[: len(start)] == start else [*start, *tokens]

    def decide(self, field: str, *candidates: tuple[Any, str]) -> Any:
        """Take the first value that is given, and note where it comes from."""
        given = (each for each in candidates if each[0] is not None)
        value, reason = next(given, (None, "not given"))
        self.decisions.append(Decision(f"text.{field}", value, reason))
        return value

    def template(self, placeholders: Collection[str], default: str) -> str:
        """Give the prompt template."""
        written = self.table.prompt_template
        if written is None and self._has_chat_template and "image" in placeholders:
            raise LoadError(
                "expected prompt_template in model.toml, table [text], as the model has a chat template: "
                'write what that gives for one question, such as "USER: {image}\\n{prompt} ASSISTANT:"'
            )
        candidates = (written, "model.toml"), (default, "default")
        template: str = self.decide("prompt_template", *candidates)
        found = re.findall(r"\{(\w*)\}", template)
        if unknown := [name for name in found if name not in placeholders]:
            allowed = ", ".join(f"{{{name}}}" for name in placeholders)
            raise LoadError(
                f"expected placeholders of [text] prompt_template among {allowed}, got {{{unknown[0]}}}"
            )
        if template and (found.count("prompt") != 1 or found.count("image") > 1):
            raise LoadError(
                "expected [text] prompt_template to hold {prompt} once, and {image} at most once, got "
                f"{template!r:.200}"
            )
        return template

    def image_token(self) -> int | None:
        """Give the token whose places the image takes."""
        written = self.table.image_token
        if written is None and not self.config:
            like = [text for text in self._tokenizer.get_vocab() if "image" in text.lower()]
            lines = [f"  image_token = {json.dumps(text)}\n" for text in sorted(like, key=len)[:5]]
            raise LoadError(
                "expected image_token_id in config.json, or image_token in model.toml, got neither. Write one of "
                f"these lines in model.toml, [text]:\n{''.join(lines)}"
                '  image_token = ""  # the model has none: the image stands before the text'
            )
        if written == "":
            self.decide("image_token", ("", "model.toml"))
            return None
        token = self._tokenizer.token_to_id(written) if isinstance(written, str) else written
        if token is None and written is not None:
            raise LoadError(
                f"expected [text] image_token to be a token of tokenizer.json, got {written!r:.80}"
            )
        found: int | None = self.decide(
            "image_token",
            (token, "model.toml"),
            (self.config.get("image_token_id"), "config.json, image_token_id"),
            (self.config.get("image_token_index"), "config.json, image_token_index"),
        )
        if found is not None and self._tokenizer.id_to_token(found) is None:
            raise LoadError(f"expected image_token to be a token of tokenizer.json, got {found}")
        return found

    def token_text(self, token: int) -> str:
        """Give the text of a token, as the tokenizer reads it."""
        return str(self._tokenizer.id_to_token(token))

    def decoder_start_token(self) -> int:
        """Give the token with which a decoder behind an encoder starts."""
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
                "expected decoder_start_token_id in generation_config.json or config.json, got none"
            )
        return token

    def _generation_file(self, path: Path) -> _GenerationFile:
        """Read generation_config.json; what older exports keep in config.json where there is none."""
        content = read_json(path)
        for name, neutral in _NOT_FOLLOWED.items():
            value = content.get(name)
            if value not in (None, [], {}, neutral):
                raise LoadError(
                    f"expected {path.name} without {name}, as answers do not follow it, got {value!r:.80}: remove "
                    "the line if they may differ from those of transformers"
                )
        if not content:
            known = _GenerationFile.__struct_fields__
            older = {**self._decoder, **self.config}
            content = {name: value for name, value in older.items() if name in known}
        return convert(content, _GenerationFile, f"{path.name}:")

    def _search(self) -> GenerationConfig:
        file = self._generation
        ends = self.decide(
            "eos_token_ids",
            (_ids(self.table.eos_token_ids), "model.toml"),
            (_ids(file.eos_token_id), "generation_config.json"),
            (_ids(self.config.get("eos_token_id")), "config.json"),
            (_ids(self._decoder.get("eos_token_id")), "config.json, decoder"),
        )
        self.decide(
            "max_new_tokens",
            (self.table.max_new_tokens, "model.toml"),
            (file.max_new_tokens, "generation_config.json"),
            (file.max_length and f"{file.max_length} with the prompt", "generation_config.json"),
            (_DEFAULT_NEW_TOKENS, "default"),
        )
        usual = _DEFAULT_NEW_TOKENS if file.max_length is None else None
        new_tokens = self.table.max_new_tokens or file.max_new_tokens or usual
        given = {name: getattr(file, name, None) for name in GenerationConfig.__struct_fields__}
        given["forced_eos_token_ids"] = _ids(file.forced_eos_token_id)
        given |= {"max_new_tokens": new_tokens, "eos_token_ids": ends}
        given["do_sample"] = bool(file.do_sample) and file.temperature != 0
        if file.temperature == 0:
            given["temperature"] = 1.0
        search = GenerationConfig(
            **{name: value for name, value in given.items() if value is not None}
        )
        for name in ("num_beams", "do_sample"):
            reason = "default" if getattr(file, name) is None else "generation_config.json"
            self.decide(name, (getattr(search, name), reason))
        return search

    def _context_length(self) -> int | None:
        names = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len")
        places = [(config, name) for config in (self._decoder, self.config) for name in names]
        said = ((config.get(name), f"config.json, {name}") for config, name in places)
        written = (self.table.context_length, "model.toml")
        found: int | None = self.decide("context_length", written, *said)
        return found if found is None or found > 0 else None


class Growing:
    """The text of an answer that grows by tokens: gives what no later token can change.

    Bytes of a character that is not whole yet are held back, and so is space, which an answer does not
    end with. Runs of byte tokens are held back to their end: one that is no UTF-8 decodes to other text.
    """

    def __init__(self, files: TextFiles) -> None:
        self._files = files
        self._shown = ""

    def more(self, tokens: Sequence[int], *, ended: bool = False) -> str:
        """Give the text that is new since the call before, of all tokens so far."""
        text = self._files.decode(tokens if ended else self._files.settled(tokens))
        if not ended:
            text = text.rstrip("\ufffd").rstrip()
            if not text.startswith(self._shown):
                return ""
        new, self._shown = text[len(self._shown) :], text
        return new


def _tokenizer(path: Path) -> Tokenizer:
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


def _ids(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    return tuple(value) if isinstance(value, list | tuple) else (int(value),)
