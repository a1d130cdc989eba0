"""What to label next: the page of the queue, and the way from one inference of it to the next."""

import math
from functools import partial
from typing import Any

import msgspec
from litestar import Response

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.models import ModelEntry
from quadriga.engine.api.store_queries import query_string
from quadriga.engine.console.cards import card
from quadriga.engine.console.filter_line import (
    INFERENCES_PATH,
    QUEUE_ORDERS,
    FilterLinks,
    InferenceFilter,
    Problem,
    QueuePlace,
    absent,
    check,
    comparison_text,
    filter_from_url,
    meant_lines,
    parts,
)
from quadriga.engine.console.frame import Frame, PageRequest, redirect
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.monitor.report.metric_texts import format_interval, format_number
from quadriga.store.browsing.label_queue import (
    CONSIDERED,
    LabelQueue,
    LabelQueueRequest,
    find_label_queue,
)
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotFoundError

PATH = "/console/label"
SHOWN = 20
"""Inferences of the page."""


def label_pages(services: Services, store: ConsoleStore) -> None:
    """Register the handlers."""
    frame = services.frame
    queries, models = store.queries, services.models

    @services.page(PATH, "annotate")
    async def show_queue(request: PageRequest) -> Response[bytes]:
        """Show what to label next among the inferences of a filter, and why."""
        filter_ = filter_from_url(query_string(request))
        place = filter_.queue or QueuePlace()
        filter_ = msgspec.structs.replace(filter_, queue=place)
        if not filter_.is_canonical:
            return redirect(links_of(frame, filter_, place))
        links = FilterLinks(filter_, frame.link, INFERENCES_PATH)
        stays = FilterLinks(filter_, partial(_queue_link, frame, place), PATH)

        def show(inferences: InferenceReader) -> Response[bytes]:
            listed = _read_queue(inferences, filter_)
            content: dict[str, Any] = {"problem": None}
            if isinstance(listed, Problem):
                reports = store.reports.within(caller_scope())
                meant = meant_lines(inferences, filter_.line, stays, reports)
                content = {"problem": listed, "status": listed.status, "meant": meant}
            else:
                content["listed"] = listed
                content["rows"] = [
                    (card(inferences.get(queued.id)), links.inference(queued.id), queued)
                    for queued in listed.inferences
                ]
            return frame.page(
                "label",
                page="label",
                title="Label next",
                query=filter_.line,
                chips=stays.chips(),
                filter_path=PATH,
                filter_options={
                    name: value for name, value in _kept_options(place).items() if value
                },
                place=place,
                bound=CONSIDERED,
                orders=[(by, links_of(frame, filter_, place, by=by)) for by in QUEUE_ORDERS],
                to_list=links.current(),
                expected=expected_interval(models(), filter_.line, place.target - place.done),
                **content,
            )

        return await queries.run(request, show)

    @services.page(f"{PATH}/next", "annotate")
    async def show_next(request: PageRequest) -> Response[bytes]:
        """Go on to what follows an inference in the queue; back to the page of the queue after the last."""
        filter_ = filter_from_url(query_string(request))
        place = filter_.queue or QueuePlace()

        def find(store: InferenceReader) -> str:
            listed, has_truth = _following(store, filter_)
            moved = msgspec.structs.replace(place, done=place.done + has_truth, after="")
            if not listed.inferences or moved.is_reached:
                return links_of(frame, filter_, moved)
            moved_filter = msgspec.structs.replace(filter_, queue=moved)
            return FilterLinks(moved_filter, frame.link, INFERENCES_PATH).inference(
                listed.inferences[0].id
            )

        return redirect(await queries.run(request, find))


def expected_interval(entries: list[ModelEntry], line: str, more: int) -> str:
    """Say how sure the last evaluation of a filter's model is, and what so many further images with truth make of it.

    The interval narrows with the square root of the number of images. Empty without such a model, evaluation or interval.
    """
    named = {comparison_text("model", entry.name): entry for entry in entries}
    texts = [part.text for part in parts(line)]
    chosen = [named[part] for part in texts if part in named]
    entry = chosen[0] if len(chosen) == 1 else None
    last = None if entry is None else entry.evaluation
    if entry is None or last is None or last.headline is None or last.headline.ci95 is None:
        return ""
    low, high = last.headline.ci95
    if low is None or high is None or not last.n:
        return ""
    reach = (high - low) / 2
    value, interval = format_number(last.headline.value), format_interval(last.headline)
    sentence = f"Last evaluation of {entry.name}: {last.headline.type} {value} ({interval}) on {last.n:,} images."
    if more <= 0:
        return sentence
    narrowed = reach * math.sqrt(last.n / (last.n + more))
    return f"{sentence} With {more} more it is known to about {narrowed:.3f} on each side, instead of {reach:.3f}."


def links_of(frame: Frame, filter_: InferenceFilter, place: QueuePlace, **changes: str) -> str:
    """Return the link to the page of the queue, with changed options."""
    return frame.link(PATH, **{"q": filter_.line, **place.options, **changes})


def _queue_link(frame: Frame, place: QueuePlace, path: str, **parameters: str) -> str:
    """Return the link of a path with the order and the target of the queue; what is done is counted anew for another filter."""
    return frame.link(path, **{**_kept_options(place), **parameters})


def _kept_options(place: QueuePlace) -> dict[str, str]:
    """Return the parameters of a URL that stay when the filter changes."""
    return {name: value for name, value in place.options.items() if name != "done"}


def _read_queue(store: InferenceReader, filter_: InferenceFilter) -> LabelQueue | Problem:
    """Return the beginning of the queue of a filter, or why it is no filter."""
    if (problem := check(filter_.line)) is not None:
        return problem
    try:
        return find_label_queue(store, _request(filter_, limit=SHOWN))
    except NotFoundError as error:
        return absent(filter_.line, str(error))


def next_link(frame: Frame, filter_: InferenceFilter, inference_id: str) -> str:
    """Return the link to what follows an inference in the queue of a filter; empty where the filter has none."""
    if filter_.queue is None:
        return ""
    options = filter_.queue.options | {"after": inference_id}
    return frame.link(f"{PATH}/next", q=filter_.line, **options)


def _following(store: InferenceReader, filter_: InferenceFilter) -> tuple[LabelQueue, bool]:
    """Return what follows the inference of a URL, and whether it has truth now; all if it was deleted meanwhile."""
    after = "" if filter_.queue is None else filter_.queue.after
    if after:
        try:
            has_truth = store.get(after).ground_truth is not None
            return find_label_queue(store, _request(filter_, after=after)), has_truth
        except NotFoundError:
            pass
    return find_label_queue(store, _request(filter_)), False


def _request(
    filter_: InferenceFilter, *, limit: int = 1, after: str | None = None
) -> LabelQueueRequest:
    by = "score" if filter_.queue is None else filter_.queue.by
    return LabelQueueRequest(filter_.line or {}, by, limit, after)  # type: ignore[arg-type]  # one of QUEUE_ORDERS
