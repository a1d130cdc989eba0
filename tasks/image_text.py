"""Image and text to text: what a request may ask. How a text is made stands in `quadriga.tasks.generation`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from quadriga.tasks import parameters as read
from quadriga.tasks.generation import GenerationConfig
from quadriga.tasks.parameters import ParameterError

MAX_PROMPTS = 64
MAX_CHARACTERS = 32_768
"""Of one prompt."""
MAX_NEW_TOKENS = 4096
MAX_BEAMS = 16
MAX_SEQUENCES = 256
"""Prompts times beams, which all run at once: each keeps a cache of its own, some megabytes for a small
captioner and hundreds for a language model."""
PROMPTS = ("prompts", "prompt")
"""Two names of one parameter: an input that has either passes over both of the request."""

_MAX_SEED = 2**63 - 1


class ImageTextOptions(msgspec.Struct, frozen=True):
    """What a request asks about an image."""

    action: str
    prompts: tuple[str, ...]
    search: GenerationConfig


class ImageTextToText:
    """Reads the parameters of a request; what the model says holds where a request says nothing."""

    actions: tuple[str, ...] = ("predict", "generate")

    def __init__(self, search: GenerationConfig) -> None:
        self._search = search

    def options(self, parameters: Mapping[str, Any]) -> ImageTextOptions:
        """Read the prompts and how to search; `temperature` 0 means not to draw."""
        action = read.action(parameters, self.actions)
        prompts = read.texts(parameters, "prompts", MAX_PROMPTS, MAX_CHARACTERS)
        single = parameters.get("prompt")
        if single is not None:
            if prompts:
                raise ParameterError("expected parameters.prompts or parameters.prompt, got both")
            prompts = read.texts({"prompt": [single]}, "prompt", 1, MAX_CHARACTERS)
        if not prompts:
            raise ParameterError(
                f"expected parameters.prompts to be a list of 1 to {MAX_PROMPTS} texts, got none"
            )
        search = self._search
        temperature = read.number(parameters, "temperature", 0, 100, search.temperature)
        seed = read.whole_number(parameters, "seed", 0, _MAX_SEED, -1)
        new_tokens = read.whole_number(parameters, "max_new_tokens", 1, MAX_NEW_TOKENS, 0)
        asked = msgspec.structs.replace(
            search,
            max_new_tokens=new_tokens or search.max_new_tokens,
            do_sample=read.flag(parameters, "do_sample", default=search.do_sample)
            and temperature > 0,
            temperature=temperature,
            top_k=read.whole_number(parameters, "top_k", 0, 1_000_000, search.top_k),
            top_p=read.number(parameters, "top_p", 0, 1, search.top_p),
            num_beams=read.whole_number(parameters, "num_beams", 1, MAX_BEAMS, search.num_beams),
            seed=search.seed if seed < 0 else seed,
        )
        if len(prompts) * asked.num_beams > MAX_SEQUENCES:
            raise ParameterError(
                f"expected parameters.prompts times num_beams to be at most {MAX_SEQUENCES}, got "
                f"{len(prompts)} x {asked.num_beams}"
            )
        return ImageTextOptions(action, prompts, asked)
