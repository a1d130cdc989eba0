"""Parameters of an evaluation of stored inferences."""

from typing import Annotated, Any

import msgspec

from quadriga.monitor.evaluation.slicing import slice_values
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.store.errors import QueryError
from quadriga.store.query.json_form import parse
from quadriga.store.query.request import decode_body

MAX_RESAMPLES = 1000
MAX_SLICE_KEYS = 20
"""Maximum number of keys, and of filters, to slice by."""

MAX_COMPARED = 10


class OtherModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model, or a version of it, to compare with."""

    model: str
    version: str | None = None
    """Version to compare with; None for the version of each image's newest inference."""
    where: Any = None
    """Filter that its inferences pass, in the form of a query's."""


class EvaluationParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The inferences to evaluate, and what to compute."""

    model: str
    version: str | None = None
    """Version to evaluate; None for all versions together."""
    where: Any = None
    """Filter of the inferences, in the form of a query's."""
    by: Annotated[list[str], msgspec.Meta(max_length=MAX_SLICE_KEYS)] = []
    """Keys to slice by: `meta.<path>`, `hour`, `day`, `month`."""
    slices: Annotated[dict[str, Any], msgspec.Meta(max_length=MAX_SLICE_KEYS)] = {}
    """Filters to slice by, by name."""
    compare: Annotated[list[OtherModel], msgspec.Meta(max_length=MAX_COMPARED)] = []
    """Models to compare on the images that both have predictions for."""
    resamples: Annotated[int, msgspec.Meta(ge=0, le=MAX_RESAMPLES)] = 200
    """Number of resamples of the bootstrap; 0 for no intervals."""
    seed: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0


def decode_parameters(body: bytes) -> EvaluationParameters:
    """Decode the parameters of an evaluation from JSON.

    Raises:
        QueryError: The parameters, a filter or a slice are invalid.
    """
    parameters = decode_body(body, EvaluationParameters)
    check_parameters(parameters)
    return parameters


def check_parameters(parameters: EvaluationParameters) -> None:
    """Check filters and slices; raises as `decode_parameters`."""
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
