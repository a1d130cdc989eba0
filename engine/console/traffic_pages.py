"""The traffic of a model: which version answers how many requests, its shadow, and where the two differ."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody

from quadriga.engine.api.models import ModelEntry
from quadriga.engine.api.store_queries import StoreQueries
from quadriga.engine.api.traffic import TrafficControl, TrafficState
from quadriga.engine.console.compare_pages import LEAST_SCORE, ImageRow, Side, image_row
from quadriga.engine.console.forms import form_fields, single_field
from quadriga.engine.console.frame import Frame, PageRequest, opens, page_response, redirect
from quadriga.engine.console.page_queries import run_in_queries
from quadriga.engine.console.texts import text
from quadriga.engine.serving.traffic_rules import MAX_KEY_CHARACTERS, ShadowRule, TrafficRule
from quadriga.proto.access import current_caller
from quadriga.quoting import quoted
from quadriga.store.browsing.comparison import ComparisonRequest, ModelComparison, compare
from quadriga.store.errors import NotFoundError, QueryError
from quadriga.store.inferences import InferenceReader
from quadriga.store.replays import SHADOW_SUFFIX

SHOWN = 6
"""Images of the largest disagreements."""

_MAX_FORM_BYTES = 12 * MAX_KEY_CHARACTERS + 4000
_SHARE = "share-"
"""What the name of a share's field begins with, before the version."""


class ShadowComparison(msgspec.Struct, frozen=True):
    """What a shadow says beside the live version."""

    pair: tuple[Side, Side]
    comparison: ModelComparison
    rows: list[ImageRow]


def traffic_pages(
    frame: Frame,
    queries: StoreQueries,
    models: Callable[[], list[ModelEntry]],
    control: TrafficControl,
    options: dict[str, Any],
) -> list[HTTPRouteHandler]:
    """Return the handlers; `models` returns the models that the caller may see."""
    form_options = {**options, "status_code": 303, "request_max_body_size": _MAX_FORM_BYTES}

    @get("/console/models/{name:str}/traffic", need="read", **options)
    async def show_traffic(name: FromPath[str], request: PageRequest) -> Response[bytes]:
        """Show the shares, the shadow, and the images on which it differs most."""

        def show(store: InferenceReader) -> str:
            state = control.show(name)
            entry = next((entry for entry in models() if entry.name == state.model), None)
            return frame.html(
                "traffic",
                page="models",
                title=text("traffic_title", model=state.model),
                s=state,
                percent=_percent,
                shadow=_shadow_comparison(store, state, entry),
                may_operate=opens(current_caller(), "operate"),
            )

        return page_response(await run_in_queries(queries, request, show))

    @post("/console/models/{name:str}/traffic", sync_to_thread=True, need="operate", **form_options)
    def set_traffic(name: FromPath[str], body: RawBody) -> Response[bytes]:
        """Set shares, sticky key and shadow as the form says, and show them."""
        return _shown(frame, control.put(name, _rule_of_form(form_fields(body))))

    @post(
        "/console/models/{name:str}/traffic/promote",
        sync_to_thread=True,
        need="operate",
        **form_options,
    )
    def promote_version(name: FromPath[str], body: RawBody) -> Response[bytes]:
        """Let one version answer all, and show it."""
        version = single_field(form_fields(body), "version")
        return _shown(frame, control.promote(name, version))

    @post(
        "/console/models/{name:str}/traffic/reset",
        sync_to_thread=True,
        need="operate",
        **form_options,
    )
    def reset_traffic(name: FromPath[str]) -> Response[bytes]:
        """Let the highest version answer all again, and show it."""
        return _shown(frame, control.remove(name))

    return [show_traffic, set_traffic, promote_version, reset_traffic]


def _shown(frame: Frame, state: TrafficState) -> Response[bytes]:
    return redirect(frame.link(f"/console/models/{quote(state.model, safe='')}/traffic"))


def _rule_of_form(fields: dict[str, list[str]]) -> TrafficRule:
    """Return the rule that a form describes, with shares in percent.

    Raises:
        QueryError: A share is no number.
    """
    shares = {
        name.removeprefix(_SHARE): _share(values[0])
        for name, values in fields.items()
        if name.startswith(_SHARE)
    }
    if not any(shares.values()):
        shares = {}
    version, shadow = single_field(fields, "shadow"), None
    if version:
        shadow = ShadowRule(version, _share(single_field(fields, "shadow_share") or "100"))
    return TrafficRule(shares, single_field(fields, "sticky_by") or None, shadow)


def _share(percent: str) -> float:
    try:
        return round(float(percent.strip().replace(",", ".")) / 100, 9)
    except ValueError:
        raise QueryError(
            f"expected a share to be a number of percent, got {quoted(percent, 40)}"
        ) from None


def _percent(share: float) -> str:
    return f"{share * 100:g}"


def _shadow_comparison(
    store: InferenceReader, state: TrafficState, entry: ModelEntry | None
) -> ShadowComparison | None:
    """Return how the shadow differs from the live version; None where nothing of it is stored."""
    version = _compared_version(state, [] if entry is None else [v.version for v in entry.shadows])
    if version is None:
        return None
    request = ComparisonRequest(
        state.model, f"{state.model + SHADOW_SUFFIX}:{version}", score=LEAST_SCORE, limit=SHOWN
    )
    with suppress(QueryError, NotFoundError):  # removed since
        comparison = compare(store, request)
        live = comparison.a.version
        if comparison.pairs:
            pair = (
                Side(state.model, live or ""),
                Side(state.model + SHADOW_SUFFIX, version),
            )
            return ShadowComparison(pair, comparison, [*map(image_row, comparison.disagreements)])
    return None


def _compared_version(state: TrafficState, stored: Sequence[str]) -> str | None:
    """Return the version that is the shadow now if it has answered, else the one that was last."""
    if state.shadow is not None and state.shadow.version in stored:
        return state.shadow.version
    return stored[-1] if stored and state.shadow is None else None
