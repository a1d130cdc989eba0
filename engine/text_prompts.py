"""Prompts as a decoder reads them: two ways to bring text and image together.

Source: transformers 4.57, LLaVA (`get_placeholder_mask`) and VisionEncoderDecoder.
"""

from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from engine.session import LoadError, Session
from engine.text_decoding import PAST, Decoder
from engine.text_files import TextFiles
from tasks.generation import Tokens
from tasks.parameters import ParameterError

_POSITIONS_FROM_ONE = ("paligemma", "gemma3")
"""Architectures of config.json, model_type."""


class Read(msgspec.Struct, frozen=True, eq=False):
    """One prompt as the decoder reads it."""

    tokens: list[int]
    sequence: npt.NDArray[Any]
    """Token ids (length,), or embeddings (length, width)."""


class Attending:
    """A decoder that attends to what an encoder made of the image; it starts with the prompt."""

    def __init__(self, files: TextFiles, first: Session, following: Session | None = None) -> None:
        if following is None and any(tensor.name.startswith(PAST) for tensor in first.inputs):
            following = first
        self.decoder = Decoder(first, following, embed=None)
        self._files = files
        self._template = files.template(("prompt",), "{prompt}")
        self._start = files.decoder_start_token()

    def read(self, prompt: str, features: npt.NDArray[Any]) -> Read:  # noqa: ARG002 - the decoder attends to them
        """Turn a prompt into the tokens with which the decoder begins."""
        text = self._template.replace("{prompt}", prompt)
        tokens = self._files.encode(text, add_special_tokens=False)
        if tokens[:1] != [self._start]:
            tokens = [self._start, *tokens]
        return Read(tokens, np.array(tokens, np.int64))


class Inserting:
    """A language model that reads the image's features among the embeddings of its tokens.

    They take the place of the image token; where the model has none, they stand before the text.
    """

    def __init__(self, files: TextFiles, embedding: Session, decoder: Session) -> None:
        self._files = files
        self._embed = partial(_embed, embedding)  # not a method: no cycle keeps an unloaded model
        first_position = int(files.model_type in _POSITIONS_FROM_ONE)
        self.decoder = Decoder(decoder, decoder, self._embed, first_position)
        self._image_token = files.image_token()
        template = files.template(("prompt", "image"), "{image}{prompt}")
        before, marked, after = template.rpartition("{image}")
        if self._image_token is None and before:
            raise LoadError(
                "expected {image} first in [text] prompt_template, as the model has no image token, got "
                f"{template!r:.200}: name it with [text] image_token"
            )
        placed = "" if self._image_token is None else files.token_text(self._image_token)
        if marked:
            self._template = f"{before}{placed}{after}"
        else:  # a template may also hold the token itself
            self._template = template if placed and placed in template else f"{placed}{template}"
        if self._image_token is not None and self._tokens("").count(self._image_token) != 1:
            raise LoadError(
                f"expected tokenizer.json to find the image token {placed!r} ({self._image_token}) once in "
                f"[text] prompt_template, got {template!r:.200}"
            )

    def read(self, prompt: str, features: npt.NDArray[Any]) -> Read:
        """Turn a prompt into embeddings with the image's features in their place."""
        tokens = self._tokens(prompt)
        embeddings = self._embed(np.array([tokens], np.int64))[0]
        image = features[0].astype(embeddings.dtype, copy=False)
        if self._image_token is None:
            return Read(tokens, np.concatenate([image, embeddings]))
        if tokens.count(self._image_token) != 1:
            raise ParameterError(
                f"expected parameters.prompts without the image token, got {prompt!r:.80}"
            )
        at = tokens.index(self._image_token)
        whole = [*tokens[:at], *[self._image_token] * len(image), *tokens[at + 1 :]]
        return Read(whole, np.concatenate([embeddings[:at], image, embeddings[at + 1 :]]))

    def _tokens(self, prompt: str) -> list[int]:
        text = self._template.replace("{prompt}", prompt)
        return self._files.encode(text, add_special_tokens=True)


def _embed(embedding: Session, tokens: Tokens) -> npt.NDArray[Any]:
    name, output = embedding.inputs[0].name, embedding.outputs[0].name
    return embedding.run({name: tokens}, [output])[output]
