"""Image and text to text: parameters of a request. `quadriga.tasks.generation` generates the text."""

from collections.abc import Mapping
from typing import Any

import msgspec

from quadriga.tasks import parameters as read
from quadriga.tasks.generation import GenerationConfig
from quadriga.tasks.parameters import ParameterError

MAX_PROMPTS = 64
MAX_CHARACTERS = 32_768
"""Maximum characters of one prompt."""
MAX_NEW_TOKENS = 4096
MAX_BEAMS = 16
MAX_SEQUENCES = 256
"""Maximum prompts times beams. All run at once, each with a cache of its own: some megabytes for a small
captioner, hundreds for a language model."""
PROMPTS = ("prompts", "prompt")
"""Two names of one parameter: an input that has either overrides both of the request."""

FLAGS = ("do_sample",)
"""Parameters that are true or false."""

_MAX_SEED = 2**63 - 1


class ImageTextOptions(msgspec.Struct, frozen=True):
    """Options of one image: the prompts and how to generate answers."""

    action: str
    prompts: tuple[str, ...]
    search: GenerationConfig


class ImageTextToText:
    """Reads the parameters of a request; the configuration of the model supplies the defaults."""

    actions: tuple[str, ...] = ("predict", "generate")

    def __init__(self, config: GenerationConfig) -> None:
        self._config = config

    def options(self, parameters: Mapping[str, Any]) -> ImageTextOptions:
        """Read the prompts and the generation parameters; `temperature` 0 turns sampling off."""
        action = read.action(parameters, self.actions)
        prompts = _prompts(parameters)
        defaults = self._config
        temperature = read.number(
            parameters, "temperature", low=0, high=100, default=defaults.temperature
        )
        seed = read.whole_number(parameters, "seed", low=0, high=_MAX_SEED, default=-1)
        new_tokens = read.whole_number(
            parameters, "max_new_tokens", low=1, high=MAX_NEW_TOKENS, default=0
        )
        config = msgspec.structs.replace(
            defaults,
            max_new_tokens=new_tokens or defaults.max_new_tokens,
            do_sample=read.flag(parameters, "do_sample", default=defaults.do_sample)
            and temperature > 0,
            temperature=temperature,
            top_k=read.whole_number(
                parameters, "top_k", low=0, high=1_000_000, default=defaults.top_k
            ),
            top_p=read.number(parameters, "top_p", low=0, high=1, default=defaults.top_p),
            num_beams=read.whole_number(
                parameters, "num_beams", low=1, high=MAX_BEAMS, default=defaults.num_beams
            ),
            seed=defaults.seed if seed < 0 else seed,
        )
        if len(prompts) * config.num_beams > MAX_SEQUENCES:
            raise ParameterError(
                f"expected parameters.prompts times num_beams to be at most {MAX_SEQUENCES}, got "
                f"{len(prompts)} x {config.num_beams}"
            )
        return ImageTextOptions(action, prompts, config)


def _prompts(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    prompts = read.texts(parameters, "prompts", MAX_PROMPTS, MAX_CHARACTERS)
    prompt = parameters.get("prompt")
    if prompt is not None:
        if prompts:
            raise ParameterError("parameters.prompts and parameters.prompt cannot be used together")
        return read.texts({"prompt": [prompt]}, "prompt", 1, MAX_CHARACTERS)
    if not prompts:
        raise ParameterError(
            f"parameters.prompts is required: a list of 1 to {MAX_PROMPTS} texts; or an input named question "
            "beside that of the image"
        )
    return prompts
