"""Parameters of an evaluation of stored inferences."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import field
from msgspec.structs import replace

from quadriga.monitor.evaluation.metric_settings import MetricSettings, check_settings
from quadriga.monitor.evaluation.state import slice_values
from quadriga.monitor.report.schema import Metric
from quadriga.quoting import quoted
from quadriga.store.jobs.jobs import EndWebhook
from quadriga.store.query.filters.forms import parse
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import decode_body
from quadriga.store.records.errors import QueryError

MAX_RESAMPLES = 1000
MAX_SLICE_KEYS = 20
"""Maximum number of keys, and of filters, to slice by."""

MAX_COMPARED = 10
WINDOW_NAMES = {"start": "from", "end": "to"}
"""Names of the ends of a window in JSON."""


class OtherModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model, or a version of it, to compare with."""

    model: str
    version: str | None = None
    """Version to compare with; None for the version of each image's newest inference."""
    where: Any = None
    """Filter that its inferences pass, in the form of a query's."""


class ReferenceMetric(msgspec.Struct, frozen=True):
    """The metric of an earlier report, copied from it: reports are removed with their jobs."""

    report: str
    """Id of the report."""
    task: str
    metric: Metric


class ScheduledWindow(msgspec.Struct, frozen=True, kw_only=True, rename=WINDOW_NAMES):
    """The window of a schedule that an evaluation is about, and what its metric is compared with."""

    start: str
    end: str
    new_start: str
    """Start of the new window that this one is evaluated with, as in `DueWindow`."""
    series: str
    """Identity of the windows whose numbers can be compared with each other."""
    metric: str | None
    """The metric, as `parse_metric` takes it; None: the first of the report."""
    min_images: int
    reference: ReferenceMetric | Literal["first"] | None
    """What the metric is compared with: that of a report, or of the first window with enough ground truth."""
    at_least: float | None


class EvaluationParameters(MetricSettings, frozen=True, forbid_unknown_fields=True):
    """The inferences to evaluate, and what to compute."""

    model: str
    version: str | None = None
    """Version to evaluate; None for all versions together."""
    where: Any = None
    """Filter of the inferences, in the form of a query's."""
    by: Annotated[list[str], msgspec.Meta(max_length=MAX_SLICE_KEYS)] = field(default_factory=list)
    """Keys to slice by: `meta.<path>`, `hour`, `day`, `month`."""
    slices: Annotated[dict[str, Any], msgspec.Meta(max_length=MAX_SLICE_KEYS)] = field(
        default_factory=dict
    )
    """Filters to slice by, by name."""
    compare: Annotated[list[OtherModel], msgspec.Meta(max_length=MAX_COMPARED)] = field(
        default_factory=list
    )
    """Models to compare on the images that both have predictions for."""
    resamples: Annotated[int, msgspec.Meta(ge=0, le=MAX_RESAMPLES)] = 200
    """Number of resamples of the bootstrap; 0 for no intervals."""
    seed: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0
    schedule: ScheduledWindow | None = None
    """The window, where a schedule submitted this evaluation."""
    webhook: EndWebhook = msgspec.UNSET
    """URL that is called when the job has ended."""


def decode_parameters(body: bytes) -> EvaluationParameters:
    """Decode the parameters of an evaluation from JSON.

    Raises:
        QueryError: The parameters, a filter or a slice are invalid.
    """
    parameters = decode_body(body, EvaluationParameters)
    if parameters.schedule is not None:
        raise QueryError("expected no schedule: PUT it on the model's /evaluation-schedule instead")
    check_parameters(parameters)
    return parameters


def with_model_names(
    parameters: EvaluationParameters, inferences: InferenceReader
) -> EvaluationParameters:
    """Return parameters with each model under the name that its inferences are stored with.

    Raises:
        NotFoundError: A model, or a report of a filter, is not known.
    """
    for where in (parameters.where, *parameters.slices.values()):
        inferences.check_where(where)
    compare = []
    for other in parameters.compare:
        inferences.check_where(other.where)
        compare.append(replace(other, model=inferences.names.resolve(other.model)))
    return replace(parameters, model=inferences.names.resolve(parameters.model), compare=compare)


def check_parameters(parameters: EvaluationParameters) -> None:
    """Check filters, slices and thresholds; raises as `decode_parameters`."""
    parse(parameters.where, 0)
    filters = {f"slices.{name:.80}": where for name, where in parameters.slices.items()}
    filters |= {f"compare[{index}]": other.where for index, other in enumerate(parameters.compare)}
    for name, where in filters.items():
        try:
            parse(where, 0)
        except QueryError as error:
            raise QueryError(f"{name}: {error}") from error
    check_settings(parameters)
    for by in parameters.by:
        slice_values([], by)
    if repeated := set(parameters.by) & parameters.slices.keys():
        raise QueryError(
            f"expected each slice once, got {quoted(min(repeated), 80)} in by and in slices"
        )
