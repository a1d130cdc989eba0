"""What is asked of an evaluation of stored inferences."""

from typing import Annotated, Any

import msgspec

from quadriga.monitor.evaluation.slicing import slice_values
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.store.errors import QueryError
from quadriga.store.query.json_form import parse
from quadriga.store.query.request import decode_body

MAX_RESAMPLES = 1000
MAX_SLICE_KEYS = 20
"""Keys and filters, each, to slice by."""

MAX_COMPARED = 10


class OtherModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model, or a version of it, to compare with."""

    model: str
    version: str | None = None
    """None: whichever version answered last."""
    where: Any = None
    """A filter that its answers pass, as of a query."""


class EvaluationParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to evaluate, and what to compute of it."""

    model: str
    version: str | None = None
    """None: all of them together."""
    where: Any = None
    """A filter, as of a query."""
    by: Annotated[list[str], msgspec.Meta(max_length=MAX_SLICE_KEYS)] = []
    """What to slice by: `meta.<path>`, `hour`, `day`, `month`."""
    slices: Annotated[dict[str, Any], msgspec.Meta(max_length=MAX_SLICE_KEYS)] = {}
    """Filters to slice by, by name."""
    compare: Annotated[list[OtherModel], msgspec.Meta(max_length=MAX_COMPARED)] = []
    """Models that are compared on the images that both answered."""
    resamples: Annotated[int, msgspec.Meta(ge=0, le=MAX_RESAMPLES)] = 200
    """Of the bootstrap; 0 for no intervals."""
    seed: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0


def decode_parameters(body: bytes) -> EvaluationParameters:
    """Read the parameters of an evaluation from JSON.

    Raises:
        QueryError: They are none, or name a filter or a slice that means nothing.
    """
    parameters = decode_body(body, EvaluationParameters)
    check_parameters(parameters)
    return parameters


def check_parameters(parameters: EvaluationParameters) -> None:
    """See that this means something, or raise as `decode_parameters`."""
    parse(parameters.where, 0)
    filters = {f"slices.{name:.80}": where for name, where in parameters.slices.items()}
    filters |= {f"compare[{index}]": other.where for index, other in enumerate(parameters.compare)}
    for name, where in filters.items():
        try:
            parse(where, 0)
        except QueryError as error:
            raise QueryError(f"{name}: {error}") from error
    try:
        for by in parameters.by:
            slice_values([], by)
    except EvaluationError as error:
        raise QueryError(str(error)) from error
    if repeated := set(parameters.by) & parameters.slices.keys():
        raise QueryError(f"expected each slice once, got {min(repeated)!r:.80} in by and in slices")
