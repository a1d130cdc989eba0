"""The page of one inference: its image with all outlines, objects, ground truth, metadata, history and neighbours; and more like it."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec
import numpy as np
from litestar import Response
from litestar.params import FromPath

from quadriga.engine.api.store_queries import query_string
from quadriga.engine.console.cards import (
    Card,
    card,
    decoded,
    has_tensors,
    items_of,
    meant_labels,
    tensor_texts,
)
from quadriga.engine.console.filter_line import (
    INFERENCES_PATH,
    FilterLinks,
    InferenceFilter,
    Problem,
    absent,
    check,
    comparison_text,
    filter_from_url,
)
from quadriga.engine.console.frame import PageRequest, redirect
from quadriga.engine.console.pages.label import links_of, next_link
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.monitor.drift.parameters import SOURCE_KEYS
from quadriga.monitor.report.drift_texts import readable_number
from quadriga.monitor.report.outlines import DrawnItem
from quadriga.proto.request import current_caller
from quadriga.quoting import one_line
from quadriga.store.browsing.image_measures import UsualMeasures, find_usual_measures
from quadriga.store.browsing.neighbours import (
    NeighboursRequest,
    Surroundings,
    find_surroundings,
)
from quadriga.store.browsing.similar import (
    MAX_COMPARED,
    SimilarRequest,
    find_similar,
    has_direction,
)
from quadriga.store.changes.ground_truth import (
    statements_about,
)
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import NotFoundError, QueryError, QueryTimeoutError
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import (
    IMAGE_STATISTICS,
    REJECTED,
    StoredInference,
    StoredSignals,
    timestamp_text,
)

MAX_LISTED = 200
"""Maximum objects, and maximum values of metadata, that the page lists; the picture shows all objects."""
MAX_PICTURED = 2000
"""Maximum outlines of the picture that needs no script."""
AROUND = 3
"""Neighbours on each side of the inference in the strip below its image."""
MAX_SIMILAR = 48
"""Inferences of the page of those that resemble one."""
_MAX_HISTORY = 20
_DIGITS = 9
_MAX_LABELS = 100
_DEPTH = 8
_AROUND = timedelta(minutes=10)
_SOURCE_KEYS = (*SOURCE_KEYS, "camera", "source", "sensor", "device")
_DRAWN_FIELDS = ("predictions", "ground_truth")
_SCALES = {
    "brightness": "0 black, 100 white",
    "contrast": "0 of one lightness, 50 half black and half white",
    "blur": "0 sharp, 100 without an edge",
    "saturation": "0 grey, 1 pure colours",
    "colour_a": "about -128 green, 0 grey, 127 red",
    "colour_b": "about -128 blue, 0 grey, 127 yellow",
    "dark": "share of the image that is nearly black, 0 to 1",
    "burnt": "share of the image that is nearly white, 0 to 1",
}
"""Between which values a number that was measured on an image may be."""


class Pair(msgspec.Struct, frozen=True):
    """A field with its value, and the link to all inferences that have it; empty without one."""

    field: str
    value: str
    link: str = ""
    scale: str = ""
    """Between which values it may be, and which are usual; empty where it says so itself."""
    title: str = ""
    """The field with its value as in a filter, where the page shows another number; empty elsewhere."""


class SameImage(msgspec.Struct, frozen=True):
    """The other inferences of an image, the newest first."""

    answers: list[StoredInference] = []
    has_more: bool = False
    """Whether there are further ones."""
    truth: StoredInference | None = None
    """The newest one of the same task with truth, where this one has none."""


def read_inference(
    store: InferenceReader,
    inference_id: str,
    filter_: InferenceFilter,
    links: FilterLinks,
    *,
    labels: list[str],
) -> dict[str, Any]:
    """Read the content of the page.

    Args:
        store: What the caller sees of the store.
        inference_id: Id in the URL.
        filter_: The filter within which the neighbours are.
        links: Makes links to pages of inferences.
        labels: Labels that the model may answer, if they are known.

    Raises:
        NotFoundError: There is no such inference.
        QueryError: The id is none.
    """
    inference = store.get(inference_id)
    around, problem = _around(store, inference.id, filter_)
    line = "" if problem else filter_.line
    seq = int(inference.id)
    with store.snapshot() as connection:
        statements = statements_about(connection, seq, _MAX_HISTORY)
    is_stated = bool(statements) and statements[0].annotations is not None
    detections = items_of(inference.predictions)
    truth = None if inference.ground_truth is None else items_of(inference.ground_truth)
    signals = store.signals([seq]).get(seq)
    has_embedding = signals is not None and has_direction(signals.embedding)
    usual = _usual_measures(store, inference, signals)
    pairs = list(_pairs(inference, signals, links, usual=usual))
    seen = [item.label for item in [*(truth or []), *detections] if item.label]
    return {
        "card": card(inference, outlines=MAX_PICTURED),
        "problem": problem,
        "previous_link": links.inference(around.before[0]) if around.before else "",
        "next_link": links.inference(around.after[0]) if around.after else "",
        "is_partial": around.partial,
        "strip": _strip(store, inference, around, links),
        "predictions": _listed_predictions(inference, detections),
        "truth": None if truth is None else _listed(truth),
        "more": sum(max(len(items) - MAX_LISTED, 0) for items in (detections, truth or [])),
        "pairs": pairs[:MAX_LISTED],
        "usual_of": usual.images if usual.spans else 0,
        "more_pairs": max(len(pairs) - MAX_LISTED, 0),
        "same_image": _same_image(inference, links),
        "others": find_same_image(store, inference),
        "same_source": _same_source(inference, links),
        "more_like_this": links.similar(inference.id, line) if has_embedding else "",
        "truth_events": [(timestamp_text(time_ms(stated.id)), stated) for stated in statements],
        "feedback": inference.feedback if isinstance(inference.feedback, list) else [],
        "data": {
            "id": inference.id,
            "task": inference.task,
            "width": inference.input.width or 0,
            "height": inference.input.height or 0,
            **{name: _plain(getattr(inference, name)) for name in _DRAWN_FIELDS},
            "revision": str(statements[0].id) if is_stated else "",
            "source": current_caller().name,
            "labels": _ordered_labels(labels, seen),
            "meant": meant_labels(line),
        },
    }


def _around(
    store: InferenceReader, inference_id: str, filter_: InferenceFilter
) -> tuple[Surroundings, Problem | None]:
    """Find the neighbours of an inference within a filter; say why there are none if the filter is none."""
    nothing = Surroundings([], [], partial=False)
    problem = check(filter_.line)
    if problem is not None or filter_.queue is not None:
        return nothing, problem
    try:
        request = NeighboursRequest(filter_.line or {}, filter_.order)  # type: ignore[arg-type]  # one of ORDERS
        return find_surroundings(store, inference_id, request, AROUND), None
    except (QueryError, NotFoundError) as error:
        return nothing, absent(filter_.line, str(error))


def _ordered_labels(labels: list[str], seen: list[str]) -> list[str]:
    """Return the labels to choose from: those of the model in its order, so that each has the same digit on all pages.

    A model of more labels than digits begins with those of the page.
    """
    ordered = [*labels, *sorted(seen)]
    if not labels or len(labels) > _DIGITS:
        ordered = [*sorted(seen), *labels]
    return list(dict.fromkeys(ordered))[:_MAX_LABELS]


def _strip(
    store: InferenceReader, inference: StoredInference, around: Surroundings, links: FilterLinks
) -> list[tuple[Card, str]]:
    """Return the inference between its neighbours, each with the link to its page, its own empty; nothing where none of these has an image."""
    stored = store.by_id([*around.before, *around.after])
    cards = {id_: card(stored_inference, outlines=0) for id_, stored_inference in stored.items()}
    if not any(neighbour.has_image for neighbour in cards.values()):
        return []
    before, after = (
        [(cards[id_], links.inference(id_)) for id_ in side if id_ in cards]
        for side in (around.before, around.after)
    )
    return [*reversed(before), (card(inference, outlines=0), ""), *after]


def _plain(items: object) -> Any:
    """Return predictions or annotations as the scripts take them; an empty list where they are no such list."""
    if items is None:
        return None
    listed = decoded(items)
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []


def _listed_predictions(
    inference: StoredInference, detections: list[DrawnItem]
) -> list[tuple[str, float | None]]:
    """Return the predictions, in words and with their scores."""
    if not has_tensors(inference):
        return _listed(detections)
    return [(words, None) for words in tensor_texts(inference.predictions)[:MAX_LISTED]]


def _listed(items: list[DrawnItem]) -> list[tuple[str, float | None]]:
    return [
        (one_line(item.label, 60) if item.label else item.text, item.score)
        for item in items[:MAX_LISTED]
    ]


def _usual_measures(
    store: InferenceReader, inference: StoredInference, signals: StoredSignals | None
) -> UsualMeasures:
    """Return what is usual for the model; nothing where this image was not measured, or it takes too long."""
    if signals is not None and signals.picture:
        with suppress(QueryError, QueryTimeoutError, NotFoundError):
            return find_usual_measures(store, inference.model.name)
    return UsualMeasures(0, {})


def _scale(name: str, usual: UsualMeasures) -> str:
    """Return the scale of a number that was measured on the image, with what is usual for the model."""
    span = usual.spans.get(name)
    if span is None:
        return _SCALES[name]
    low, high = (f"{readable_number(f'image.{name}', bound):.4g}" for bound in span)
    return f"{_SCALES[name]}; usual {low} to {high}"


def _pairs(
    inference: StoredInference,
    signals: StoredSignals | None,
    links: FilterLinks,
    *,
    usual: UsualMeasures,
) -> Iterator[Pair]:
    """Yield the fields of an inference, those of a filter with a link."""
    model = f"{inference.model.name}:{inference.model.version}"
    yield Pair("model", model, links.to(comparison_text("model", model)))
    yield Pair("request_id", inference.request_id, links.to(comparison_text("request_id", inference.request_id)))  # fmt: skip
    for root, tree in (("meta", inference.metadata), ("std", inference.standard_metadata)):
        for path, value in _values(decoded(tree), root, _DEPTH):
            is_field = isinstance(value, str | int | float) and not path.endswith(".")
            link = links.to(comparison_text(path, value)) if is_field and root == "meta" else ""
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            yield Pair(path, one_line(text, 200), link)
    if signals and signals.picture and len(signals.picture) == 4 * len(IMAGE_STATISTICS):
        numbers = np.frombuffer(signals.picture, "<f4").tolist()
        for name, number in zip(IMAGE_STATISTICS, numbers, strict=True):
            field = f"sig.image.{name}"
            yield Pair(
                field,
                f"{readable_number(field.removeprefix('sig.'), number):.4g}",
                scale=_scale(name, usual),
                title=comparison_text(field, round(number, 4)),
            )
    source = inference.input
    if source.width and source.height:
        yield Pair("size", f"{source.width} \N{MULTIPLICATION SIGN} {source.height} px")
    if source.hash:
        yield Pair("input.hash", source.hash, _same_image(inference, links))
    yield Pair("id", inference.id)


def _values(node: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the values of metadata with their dotted paths."""
    if isinstance(node, dict) and node and depth:
        for key, value in node.items():
            yield from _values(value, f"{path}.{key}", depth - 1)
    elif node is not None and node != {}:
        yield path, node


def _same_image(inference: StoredInference, links: FilterLinks) -> str:
    source = inference.input.hash
    return links.to(comparison_text("input.hash", source)) if source else ""


def _same_source(inference: StoredInference, links: FilterLinks) -> str:
    """Return the link to what the same camera, or other source, sent around that time; empty if none is known."""
    metadata = decoded(inference.metadata)
    for key in _SOURCE_KEYS:
        value = metadata.get(key) if isinstance(metadata, dict) else None
        if isinstance(value, str | int | float):
            at = datetime.fromisoformat(inference.created_at)
            low, high = ((at + span).strftime("%Y-%m-%dT%H:%M:%SZ") for span in (-_AROUND, _AROUND))
            return links.to(f"{comparison_text(f'meta.{key}', value)} & ts=ge:{low} & ts=lt:{high}")
    return ""


SHOWN = 4
"""Maximum other inferences that are named."""


def find_same_image(store: InferenceReader, inference: StoredInference) -> SameImage:
    """Return the other inferences of the same bytes; truth that was rejected counts as none."""
    source = inference.input.hash
    if not source:
        return SameImage()
    of_image = {"input.hash": source}
    newest = _newest(store, of_image, SHOWN + 2)  # this one may be among them
    others = [other for other in newest if other.id != inference.id]
    with_truth: list[StoredInference] = []
    if others and inference.ground_truth is None:
        has_truth = {"ground_truth": {"exists": True}, "task": inference.task}
        is_rejected = {"ground_truth.review": REJECTED}
        with_truth = _newest(store, {"and": [of_image, has_truth, {"not": is_rejected}]}, 1)
    return SameImage(others[:SHOWN], len(others) > SHOWN, next(iter(with_truth), None))


def _newest(store: InferenceReader, where: Any, limit: int) -> list[StoredInference]:
    with suppress(QueryError, QueryTimeoutError, NotFoundError):
        return store.query(QueryRequest(where, limit=limit)).inferences
    return []


def inference_pages(services: Services, store: ConsoleStore) -> None:
    """Register the handlers of the page of one inference, and of those that resemble it."""
    frame, models = services.frame, services.models

    @services.page(INFERENCES_PATH + "/{inference_id:str}")
    async def show_inference(inference_id: FromPath[str], request: PageRequest) -> Response[bytes]:
        """Show one inference, within a filter."""
        filter_ = filter_from_url(query_string(request))
        links = FilterLinks(filter_, frame.link, INFERENCES_PATH)
        if not filter_.is_canonical:
            return redirect(links.inference(inference_id))

        def show(inferences: InferenceReader) -> Response[bytes]:
            model = inferences.get(inference_id).model.name
            labels = next((entry.labels for entry in models() if entry.name == model), [])
            content = read_inference(inferences, inference_id, filter_, links, labels=labels)
            to_list = links.current()
            if filter_.queue is not None:
                to_list = links_of(frame, filter_, filter_.queue)
                content["next_link"] = next_link(frame, filter_, content["card"].of.id)
            return frame.page(
                "inference",
                page="inferences",
                title=f"Inference {content['card'].of.id}",
                query=filter_.line,
                chips=links.chips(),
                filter_options=filter_.options,
                p=content,
                links_=links,
                to_list=to_list,
                inference_path=f"{frame.base}/api/inferences/{content['card'].of.id}",
            )

        return await store.queries.run(request, show)

    @services.page(INFERENCES_PATH + "/{inference_id:str}/similar")
    async def show_similar(inference_id: FromPath[str], request: PageRequest) -> Response[bytes]:
        """Show the inferences of a filter that resemble one, the most similar first."""
        filter_ = filter_from_url(query_string(request))
        links = FilterLinks(filter_, frame.link, INFERENCES_PATH)
        if not filter_.is_canonical:
            return redirect(links.similar(inference_id, filter_.line))

        def show(inferences: InferenceReader) -> Response[bytes]:
            similar = find_similar(
                inferences, inference_id, SimilarRequest(filter_.line or {}, MAX_SIMILAR)
            )
            origin = inferences.get(inference_id)
            by_id = inferences.by_id(item.id for item in similar.inferences)
            return frame.page(
                "similar",
                page="inferences",
                title=f"More like inference {origin.id}",
                query=filter_.line,
                chips=links.chips(),
                origin=card(origin),
                cards=[
                    (card(by_id[item.id]), f"similarity {item.similarity:.3f}")
                    for item in similar.inferences
                    if item.id in by_id  # unless it was deleted meanwhile
                ],
                compared=similar.compared,
                is_partial=similar.partial,
                bound=MAX_COMPARED,
                back=links.inference(origin.id),
                among_all=links.similar(origin.id, "") if filter_.line else "",
            )

        return await store.queries.run(request, show)
