"""Stored inferences: pages, one after the other, and as tables of pandas, polars and Arrow."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import inf
from typing import Any

from .class_labels import ClassLabels
from .errors import BadAnswer, InputError, load_package, show_warnings
from .results import PREDICTION_COLUMNS, Predictions, prediction_row, summary


class StoredInference(Predictions):
    """An inference as the server keeps it.

    Args:
        raw: Its JSON.
        fetch_image: Reads the image of an inference by its id.
        labels: Knows the labels of models.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        fetch_image: Callable[[str], bytes],
        labels: ClassLabels | None = None,
    ) -> None:
        self.raw = raw
        """JSON of the server."""
        self.predictions = raw.get("predictions") or []
        self._fetch_image = fetch_image
        self.labels_of = None if labels is None else partial(labels.of, self.model)

    @property
    def id(self) -> str:
        """Id of the inference."""
        return str(self.raw["id"])

    @property
    def model(self) -> str:
        """Name of the model."""
        return str((self.raw.get("model") or {}).get("name", ""))

    @property
    def version(self) -> str:
        """Version of the model."""
        return str((self.raw.get("model") or {}).get("version", ""))

    @property
    def created_at(self) -> str:
        """Time of the inference, RFC 3339 in UTC."""
        return str(self.raw.get("created_at", ""))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the inference."""
        metadata: Mapping[str, Any] = self.raw.get("metadata") or {}
        return metadata

    @property
    def ground_truth(self) -> Any:
        """Ground truth that was stated for it; None if none was."""
        return self.raw.get("ground_truth")

    def image(self) -> bytes:
        """Fetch the image file from the server.

        Raises:
            NotFound: It was not stored, or is no longer.
        """
        return self._fetch_image(self.id)

    def _image_bytes(self) -> bytes:
        return self.image()

    def _size(self) -> tuple[int, int]:
        stored = self.raw.get("input") or {}
        width, height = stored.get("width"), stored.get("height")
        if not width or not height:
            raise InputError(f"expected inference {self.id} to have the size of an image, got none")
        return width, height

    def __repr__(self) -> str:
        return (
            f"StoredInference({self.id}, {self.model}:{self.version}, {summary(self.predictions)})"
        )


class Query:
    """Inferences that a filter finds; read page by page as they are iterated over.

    Args:
        request: Body of the query without cursor; its `limit` is that of a page.
        limit: Maximum inferences; None for all.
        read_page: Asks for a page with a body.
        make: Makes an inference of its JSON.
        count: Counts them.
    """

    def __init__(
        self,
        request: Mapping[str, Any],
        limit: int | None,
        *,
        read_page: Callable[[Mapping[str, Any]], Any],
        make: Callable[[Mapping[str, Any]], StoredInference],
        count: Callable[[], int],
    ) -> None:
        self._request = request
        self._limit = limit
        self._read_page = read_page
        self._make = make
        self.count = count
        """Returns how many inferences the filter finds, whatever the limit."""
        self._read = "not read yet"

    def __repr__(self) -> str:
        return f"<Inferences of {self._request.get('where') or 'all'!r}: {self._read}>"

    def pages(self) -> Iterator[list[StoredInference]]:
        """Yield lists of up to 1,000 inferences; every call begins anew.

        Where the first page is empty, as no inference has a metadata key of the filter, a `UserWarning` says so.

        Raises:
            BadAnswer: The server repeats a page, or answers without inferences.
        """
        cursor: str | None = None
        limit, read = inf if self._limit is None else self._limit, 0
        while read < limit:
            body = {**self._request, "limit": min(limit - read, self._request["limit"])}
            answer = self._read_page(body if cursor is None else {**body, "cursor": cursor})
            if not isinstance(answer, dict) or not isinstance(answer.get("inferences"), list):
                raise BadAnswer(f"expected a page of inferences, got {str(answer)[:200]}")
            show_warnings(answer)
            page = [self._make(row) for row in answer["inferences"]]
            previous, cursor = cursor, answer.get("cursor")
            read += len(page)
            self._read = f"{read}" if cursor is None else f"{read}, more to come"
            if page:
                yield page
            if cursor is None:
                return
            if cursor == previous:
                raise BadAnswer("expected another page, got the same cursor again")

    def __iter__(self) -> Iterator[StoredInference]:
        for page in self.pages():
            yield from page

    def to_pandas(self, *, detections: bool = False, annotations: bool = False) -> Any:
        """Return a `pandas.DataFrame` with a row for each inference, prediction or annotation of ground truth.

        See `rows`, `detections` and `annotations`, of which one is chosen.

        Raises:
            MissingPackage: pandas is not installed.
        """
        pandas = load_package("pandas", "to_pandas()")
        columns = self._columns(detections=detections, annotations=annotations)
        times = columns["created_at"]
        columns["created_at"] = pandas.to_datetime(times, utc=True, format="ISO8601")
        return pandas.DataFrame(columns)

    def to_polars(self, *, detections: bool = False, annotations: bool = False) -> Any:
        """Return a `polars.DataFrame` with a row for each inference, prediction or annotation of ground truth.

        See `rows`, `detections` and `annotations`, of which one is chosen.

        Raises:
            MissingPackage: polars is not installed.
        """
        polars = load_package("polars", "to_polars()")
        columns = self._columns(detections=detections, annotations=annotations)
        return polars.DataFrame(columns, infer_schema_length=None, strict=False)

    def to_arrow(self, *, detections: bool = False, annotations: bool = False) -> Any:
        """Return a `pyarrow.Table` with a row for each inference, prediction or annotation of ground truth.

        See `rows`, `detections` and `annotations`, of which one is chosen.

        Raises:
            MissingPackage: pyarrow is not installed.
        """
        pyarrow = load_package("pyarrow", "to_arrow()")
        return pyarrow.table(self._columns(detections=detections, annotations=annotations))

    def _columns(self, *, detections: bool, annotations: bool) -> dict[str, list[Any]]:
        if detections and annotations:
            raise InputError("expected detections or annotations, got both: make a table of each")
        if annotations:
            return table_columns(self.annotations(), DETECTION_COLUMNS)
        if detections:
            return table_columns(self.detections(), DETECTION_COLUMNS)
        return table_columns(self.rows(), INFERENCE_COLUMNS)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each inference as one flat row.

        The columns are `id`, `created_at`, `model`, `version`, `task`, `action`, `latency_ms`, `status`, `width`, `height`,
        `hash`, `labels`, `scores`, `predictions` (JSON), `ground_truth` (JSON, None without) and one `meta.<path>` for each key
        of the metadata.
        """
        yield from map(flat_row, self)

    def detections(self) -> Iterator[dict[str, Any]]:
        """Yield each prediction as one flat row; an inference without predictions has none.

        The columns are `id`, `created_at`, `model` and `version` of the inference, `number` of the prediction, from 0, its
        `label` and `score`, `xmin`, `ymin`, `xmax` and `ymax` of its box, or of that around a region, in pixels, `cx`, `cy`,
        `w`, `h` and `r` of a rotated box as the server's JSON has them, `answer`, `width` and `height` of the image, and one
        `meta.<path>` for each key of the metadata. What a prediction does not have is None.
        """
        for inference in self:
            yield from detection_rows(inference, inference.predictions)

    def annotations(self) -> Iterator[dict[str, Any]]:
        """Yield each annotation of the ground truth as one flat row, with the columns of `detections`.

        An inference without ground truth has none, nor has one whose image is stated to be empty. A `score` is None; several
        answers are JSON.
        """
        for inference in self:
            yield from detection_rows(inference, inference.ground_truth or [])


def flat_row(inference: StoredInference) -> dict[str, Any]:
    """Return an inference as a row of a table; see `Query.rows`."""
    stored = inference.raw.get("input") or {}
    labelled = [row for row in inference.predictions if "label" in row]
    truth = inference.ground_truth
    return {
        **{name: getattr(inference, name) for name in _IDENTITY},
        **{name: inference.raw.get(name) for name in _OF_REQUEST},
        **{name: stored.get(name) for name in (*_SIZE, "hash")},
        "labels": [str(prediction["label"]) for prediction in labelled],
        "scores": [_number(prediction.get("score")) for prediction in labelled],
        "predictions": json.dumps(inference.predictions, ensure_ascii=False),
        "ground_truth": None if truth is None else json.dumps(truth, ensure_ascii=False),
        **dict(_flat(inference.metadata, "meta.")),
    }


def detection_rows(
    inference: StoredInference, predictions: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield predictions or annotations of an inference as rows of a table; see `Query.detections`."""
    stored = inference.raw.get("input") or {}
    of_inference = {
        **{name: getattr(inference, name) for name in _IDENTITY},
        **{name: stored.get(name) for name in _SIZE},
        **dict(_flat(inference.metadata, "meta.")),
    }
    for number, prediction in enumerate(predictions):
        yield {**of_inference, "number": number, **prediction_row(prediction)}


def table_columns(rows: Iterable[Mapping[str, Any]], names: Iterable[str]) -> dict[str, list[Any]]:
    """Return the columns of a table, each with values of one type: mixed ones are JSON texts.

    Args:
        rows: The rows; a name that one of them lacks is None.
        names: Columns that the table has in any case, the first.
    """
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for count, row in enumerate(rows):
        for name in [name for name in row if name not in columns]:
            columns[name] = [None] * count
        for name, values in columns.items():
            values.append(row.get(name))
    return {name: _of_one_type(values) for name, values in columns.items()}


_IDENTITY = ("id", "created_at", "model", "version")
_OF_REQUEST = ("task", "action", "latency_ms", "status")
_SIZE = ("width", "height")
_STATED = ("labels", "scores", "predictions", "ground_truth")
DETECTION_COLUMNS = (*_IDENTITY, "number", *PREDICTION_COLUMNS, *_SIZE)
INFERENCE_COLUMNS = (*_IDENTITY, *_OF_REQUEST, *_SIZE, "hash", *_STATED)


def _of_one_type(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    is_large = int in kinds and any(type(v) is int and not -(2**63) <= v < 2**63 for v in values)
    if len(kinds) > 1 or is_large:
        return [None if value is None else _text(value) for value in values]
    return values


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _flat(metadata: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of metadata by their paths; lists as JSON."""
    for key, value in metadata.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | Mapping):
            yield f"{prefix}{key}", json.dumps(value, ensure_ascii=False)
        else:
            yield f"{prefix}{key}", value
