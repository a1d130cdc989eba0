"""Stored inferences one by one and in bulk, their ground truth, and saved filters."""

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError, TruthWarning, show_warnings
from ..inference import read_events
from ..masks import Labels, mask_annotations
from ..queries import StoredInference
from ..transport.calls import encode_json, json_call, path_of, present, read_bytes, read_call
from ..transport.connections import Call
from ..versions import model_body
from .jobs import Job
from .resource import Resource, Sender

Where = str | Mapping[str, Any] | None
"""A filter, as JSON or as one line of text; None for everything."""

Make = Callable[[dict[str, Any]], StoredInference]
_INFERENCE = "/api/inferences/{}"


class Inferences(Resource):
    """`client.inferences`: what the server keeps; `client.query` finds it.

    Args:
        sender: Sends requests.
        make: Makes an inference of its JSON.
    """

    def __init__(self, sender: Sender, make: Make) -> None:
        super().__init__(sender)
        self._make = make

    def get(self, inference_id: str) -> StoredInference:
        """Return one inference.

        Raises:
            NotFound: There is none with the id.
        """
        return self._make(self._get(_INFERENCE, inference_id))

    def image(self, inference_id: str, *, width: int | None = None) -> bytes:
        """Return the image file; with a width, in pixels, a thumbnail of it."""
        call = read_call(f"{_INFERENCE}/input", inference_id, query={"w": width})
        return self._sender.send(call, read_bytes)

    def presigned(self, inference_id: str) -> dict[str, Any]:
        """Return one inference with an address of its image that needs no key."""
        return self._get(_INFERENCE, inference_id, presign=True)

    def change_metadata(
        self,
        inference_id: str,
        values: Mapping[str, Any] | None = None,
        *,
        remove: Sequence[str] = (),
    ) -> Any:
        """Set top-level keys of the metadata, and remove others."""
        body = {"set": dict(values or {}), "remove": list(remove)}
        return self._request("POST", f"{_INFERENCE}/metadata", inference_id, body=body)

    def metadata_history(self, inference_id: str) -> Any:
        """Return who changed the metadata when."""
        return self._get(f"{_INFERENCE}/metadata/history", inference_id)

    def give_feedback(
        self,
        inference_id: str,
        kind: str,
        value: float | bool | None = None,  # noqa: FBT001 - a value, no flag
        *,
        comment: str = "",
        source: str = "",
    ) -> Any:
        """Say what a person thinks of an inference."""
        body = {"kind": kind, "value": value, "comment": comment, "source": source}
        return self._request("POST", f"{_INFERENCE}/feedback", inference_id, body=body)

    def neighbours(self, inference_id: str, *, q: str | None = None, order: str = "-ts") -> Any:
        """Return the inferences before and after one, among those that a filter finds."""
        return self._get(f"{_INFERENCE}/neighbours", inference_id, q=q, order=order)

    def similar(self, inference_id: str, *, q: str | None = None, limit: int | None = None) -> Any:
        """Return the inferences whose images are most alike to the model."""
        return self._get(f"{_INFERENCE}/similar", inference_id, q=q, limit=limit)

    def count(self, where: Where = None, *, consistency: str | None = None) -> int:
        """Return how many inferences a filter finds; `consistency` and warnings as for `Client.query`."""
        answer = self._read("/count", present(where=where, consistency=consistency))
        show_warnings(answer)
        return int(answer["count"])

    def aggregate(
        self,
        where: Where = None,
        *,
        group: Sequence[Any] = (),
        metrics: Sequence[str] | None = None,
    ) -> Any:
        """Return counts, latencies and error rates by groups, such as `[{"time": "1h"}, "model"]`."""
        return self._read("/aggregate", present(where=where, group=list(group), metrics=metrics))

    def facets(
        self,
        where: Where = None,
        *,
        fields: Sequence[str] | None = None,
        values: int | None = None,
        bins: int | None = None,
    ) -> Any:
        """Return which values of fields there are, and how often."""
        return self._read("/facets", present(where=where, fields=fields, values=values, bins=bins))

    def label_queue(
        self, where: Where = None, *, by: str | None = None, limit: int | None = None,
        after: str | None = None,
    ) -> Any:  # fmt: skip
        """Return the inferences that are worth a person's look first."""
        return self._read("/label-queue", present(where=where, by=by, limit=limit, after=after))

    def compare(
        self, a: str, b: str, *, consistency: str | None = "journal", **parameters: Any
    ) -> Any:
        """Return how two models or versions differ on the same images.

        Args:
            a: First model, as `name` or `name@version`.
            b: The model that it is compared with.
            consistency: `journal` waits for all inferences that were acknowledged before; None does not.
            parameters: `where`, `score`, `iou` and `limit` of `POST /api/inferences/comparison`.
        """
        body = present(a=a, b=b, consistency=consistency, **parameters)
        return self._read("/comparison", body)

    def disagreements(
        self, a: str, b: str, *, consistency: str | None = "journal", **parameters: Any
    ) -> Any:
        """Return the images on which two models or versions disagree; arguments as for `compare`."""
        body = present(a=a, b=b, consistency=consistency, **parameters)
        return self._read("/disagreements", body)

    def delete(
        self,
        where: Where = None,
        *,
        dry_run: bool = False,
        every: bool = False,
        erase: bool = False,
    ) -> Any:
        """Delete what a filter finds.

        Args:
            where: The filter.
            dry_run: Delete nothing, and say what would be.
            every: Delete everything, if there is no filter.
            erase: Remove the bytes everywhere, too.

        Raises:
            InputError: There is no filter, and `every` is not set.
        """
        if not where and not every:
            raise InputError("expected a filter, or every=True to delete everything")
        body = present(where=where) | {"dry_run": dry_run, "all": every, "erase": erase}
        return self._request("POST", "/api/inferences/delete", body=body)

    def tail(self, q: str | None = None, *, after: str | None = None) -> Iterator[Any]:
        """Yield new inferences as they are stored, without end; close the iterator to stop."""
        path = path_of("/api/inferences/tail", query={"q": q, "after": after})
        call = Call("GET", path, headers={"Accept": "text/event-stream"})
        yield from read_events(self._sender.open_stream(call))

    def bulk(self, model: str, source: str, **parameters: Any) -> dict[str, Any]:
        """Begin a job that runs a model over a folder or zip of the server; see `client.jobs.wait`."""
        body = model_body(model, {"source": source, **parameters})
        return Job(self._request("POST", "/api/inferences/bulk", body=body))

    def replay(self, model: str, where: Where = None, **parameters: Any) -> dict[str, Any]:
        """Begin a job that runs `name@version` over stored images and compares; `client.jobs.result` has its report.

        Args:
            model: The version to run, as `name@version`.
            where: Filter of the inferences to replay.
            parameters: As docs/serving.md has them, `from_` for `from`.
        """
        body = model_body(model, {**parameters, **present(where=where)})
        return Job(self._request("POST", "/api/replays", body=body))

    def export(
        self,
        where: Where = None,
        *,
        format_: str = "jsonl",
        images: bool | None = None,
        annotations: str | None = None,
        webhook: str | None = None,
    ) -> dict[str, Any]:
        """Begin a job that writes inferences to a file: `jsonl`, `parquet`, `chariot` or `coco`; see `client.jobs.result`.

        The server calls the URL `webhook` when the job has ended.
        """
        body = present(
            where=where, format=format_, images=images, annotations=annotations, webhook=webhook
        )
        return Job(self._request("POST", "/api/exports", body=body))

    def _read(self, path: str, body: Any) -> Any:
        return self._request("POST", "/api/inferences" + path, body=body, is_repeatable=True)


class Truth(Resource):
    """`client.truth`: what is really in an image.

    Args:
        sender: Sends requests.
        make: Makes an inference of its JSON.
    """

    def __init__(self, sender: Sender, make: Make) -> None:
        super().__init__(sender)
        self._make = make

    def get(self, inference_id: str) -> dict[str, Any]:
        """Return the ground truth of an inference with its revision.

        Raises:
            NotFound: None is stated.
        """
        return self._get(f"{_INFERENCE}/ground-truth", inference_id)

    def history(self, inference_id: str) -> Any:
        """Return who stated the ground truth when, newest first."""
        return self._get(f"{_INFERENCE}/ground-truth/history", inference_id)

    def state(
        self,
        inference_id: str,
        annotations: str | Sequence[Mapping[str, Any]],
        *,
        source: str = "",
        review: str | None = None,
        revision: str | None = None,
    ) -> StoredInference:
        """State the ground truth of an inference.

        Args:
            inference_id: The inference.
            annotations: Predictions without scores; none for an empty image. A text is the label of the whole image.
            source: Who says so.
            review: `needs_review`, `approved` or `rejected`.
            revision: Revision that it replaces; None replaces any.

        Raises:
            InputError: `annotations` is neither a list of objects nor a text.
            TruthWarning: The model does not have a label; as a warning of Python, since the truth is stated nevertheless.
            Conflict: Somebody else changed it meanwhile.
        """
        body = {
            "annotations": annotation_list(annotations),
            "source": source,
            **present(review=review),
        }
        headers = None if revision is None else {"If-Match": f'"{revision}"'}
        path = f"{_INFERENCE}/ground-truth"
        stated = self._request("PUT", path, inference_id, body=body, headers=headers)
        return self._make(_warned(stated))

    def state_mask(
        self,
        inference_id: str,
        mask: Any,
        labels: Labels,
        *,
        ignore: Collection[int] = (),
        **options: Any,
    ) -> StoredInference:
        """State a mask of classes as the ground truth of a segmentation.

        Args:
            inference_id: The inference.
            mask: PNG or array of the size of the image; see `mask_annotations`, which makes annotations for `bulk` of it.
            labels: Label of each value, such as `{1: "lake", 2: "wood"}`, or one for all pixels that are not 0.
            ignore: Values that are not stated; 0 is the background anyway, unless it has a label.
            options: `source`, `review` and `revision`, as for `state`, whose errors this raises too.

        Raises:
            InputError: It is no such mask, has another size than the image, or a value without a label.
        """
        stored = self._get(_INFERENCE, inference_id).get("input") or {}
        width, height = stored.get("width"), stored.get("height")
        size = (width, height) if width and height else None
        annotations = mask_annotations(mask, labels, ignore=ignore, size=size)
        return self.state(inference_id, annotations, **options)

    def withdraw(self, inference_id: str, *, revision: str | None = None) -> StoredInference:
        """Remove the ground truth of an inference."""
        headers = None if revision is None else {"If-Match": f'"{revision}"'}
        path = f"{_INFERENCE}/ground-truth"
        return self._make(self._request("DELETE", path, inference_id, headers=headers))

    def bulk(
        self,
        items: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
        *,
        join: str | None = None,
        **parameters: Any,
    ) -> dict[str, Any]:
        """State the ground truth of many inferences, stored already or later.

        Args:
            items: `{"value", "annotations"}`, one for each value of the field; or the lines of a Chariot dataset, each with
                `path`, `datum_id`, `data_hash`, `inference_id` or `request_id` and `annotations`; or the path of a file of JSON
                lines of either. `annotations` may be a text, the label of the whole image.
            join: Field that `value` is of: `id` (the default), `request_id`, `input.hash` or `meta.<path>`. Lines name their
                field themselves: `path` is `meta.path`.
            parameters: `source`, `task`, `model`, `review`, and for `{"value", …}` also `where`, as docs/store.md has them.

        Raises:
            InputError: The items are neither, or the file cannot be read.
            TruthWarning: As for `state`.
        """
        call = statements_call(items, join, present(**parameters))
        return _warned(self._sender.send(call))


def _warned(answer: dict[str, Any]) -> dict[str, Any]:
    """Raise the warnings of an answer as those of Python, and return the answer."""
    show_warnings(answer, TruthWarning)
    return answer


class Views(Resource):
    """`client.views`: filters with names, which the console shows."""

    def list(self) -> Any:
        """Return the saved views."""
        return self._get("/api/views")

    def save(self, view: str, query: str, *, order: str = "-ts") -> Any:
        """Save a filter, as one line of text, under a name."""
        body = {"query": query, "order": order}
        return self._request("PUT", "/api/views/{}", view, body=body)

    def delete(self, view: str) -> Any:
        """Remove a view."""
        return self._request("DELETE", "/api/views/{}", view)


LINE_KEYS = {
    "path": "meta.path",
    "datum_id": "meta.datum_id",
    "data_hash": "input.hash",
    "inference_id": "id",
    "request_id": "request_id",
}
"""Keys of a line that select inferences, and the fields that they stand for."""

_OF_LINES = {"source", "task", "model", "review"}


def annotation_list(annotations: Any, place: str = "annotations") -> list[Any]:
    """Return annotations as the server takes them; a text is the label of the whole image.

    Raises:
        InputError: They are neither a list of objects nor a text.
    """
    if isinstance(annotations, str):
        return [{"label": annotations}]
    row_form = 'an object such as {"label": "star"}'
    return _objects(annotations, place, f"{place} to be a list of objects or one label", row_form)


def statements_call(
    items: str | os.PathLike[str] | Iterable[Any], join: str | None, parameters: Mapping[str, Any]
) -> Call:
    """Make a request that states the ground truth of many inferences; see `Truth.bulk`.

    Raises:
        InputError: The items are of no form that the server takes.
    """
    rows = read_rows(items) if isinstance(items, str | os.PathLike) else _rows(items)
    if any("value" in row for row in rows) or not rows:
        statements = [_item(row, f"items[{number}]") for number, row in enumerate(rows)]
        body = {"join": join or "id", "items": statements, **parameters}
        return json_call("POST", "/api/ground-truth", body=body)
    if further := sorted(parameters.keys() - _OF_LINES):
        raise InputError(
            f"expected items with value and annotations beside {', '.join(further)}, got lines"
        )
    lines = [
        encode_json(_line(row, f"items[{number}]", join, parameters), f"items[{number}]")
        for number, row in enumerate(rows)
    ]
    headers = {"Content-Type": "application/x-ndjson"}
    return Call("POST", "/api/ground-truth", (b"\n".join(lines),), headers)


def read_rows(path: str | os.PathLike[str]) -> list[Mapping[str, Any]]:
    """Return the objects of a file of JSON lines, or of one JSON list.

    Raises:
        InputError: It cannot be read, or has something else.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {os.fspath(path)!r}: {error}") from error
    if text.lstrip().startswith("["):
        return _rows(_parsed(text, os.fspath(path)))
    numbered = enumerate(text.split("\n"), 1)
    lines = [(number, line) for number, line in numbered if line.strip()]
    return _rows(_parsed(line, f"{os.fspath(path)}, line {number}") for number, line in lines)


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected JSON in {place}: {error}") from error


def _rows(items: Iterable[Any]) -> list[Mapping[str, Any]]:
    return _objects(items, "items", "a list of objects or a path", "an object")


def _objects(rows: Any, place: str, form: str, row_form: str) -> list[Mapping[str, Any]]:
    """Return the rows as a list; raise an `InputError` unless they are objects, whose form the message names."""
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise InputError(f"expected {form}, got {type(rows).__name__}")
    listed = list(rows)
    for number, row in enumerate(listed):
        if not isinstance(row, Mapping):
            raise InputError(f"expected {place}[{number}] to be {row_form}, got {row!r:.80}")
    return listed


def _item(row: Mapping[str, Any], place: str) -> dict[str, Any]:
    if "value" not in row or "annotations" not in row:
        raise InputError(f"expected {place} to have value and annotations, got {_names(row)}")
    return {**row, "annotations": _annotations(row, place)}


def _line(
    row: Mapping[str, Any], place: str, join: str | None, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    fields = {LINE_KEYS[key] for key in row.keys() & LINE_KEYS.keys()}
    if len(fields) != 1 or "annotations" not in row:
        raise InputError(
            f"expected {place} to have annotations and value, or one of {', '.join(LINE_KEYS)}, got {_names(row)}"
        )
    if join is not None and {join} != fields:
        raise InputError(f"expected {place} to be joined on {join}, got one of {fields.pop()}")
    return {**parameters, **row, "annotations": _annotations(row, place)}


def _annotations(row: Mapping[str, Any], place: str) -> list[Any] | None:
    stated = row["annotations"]
    return None if stated is None else annotation_list(stated, f"{place}.annotations")


def _names(row: Mapping[str, Any]) -> str:
    return ", ".join(map(str, row)) or "nothing"
