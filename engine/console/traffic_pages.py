"""The traffic of a model: which version answers how many requests."""

from asyncio import to_thread
from typing import Any
from urllib.parse import quote

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody

from quadriga.engine.api.traffic import TrafficControl, TrafficState
from quadriga.engine.console.forms import form_fields, single_field
from quadriga.engine.console.frame import Frame, opens, redirect
from quadriga.engine.console.texts import text
from quadriga.engine.serving.traffic import MAX_KEY_CHARACTERS, TrafficRule
from quadriga.proto.request import current_caller
from quadriga.quoting import quoted
from quadriga.store.records.errors import QueryError

_MAX_FORM_BYTES = 12 * MAX_KEY_CHARACTERS + 4000
_SHARE = "share-"
"""What the name of a share's field begins with, before the version."""


def traffic_pages(
    frame: Frame, control: TrafficControl, options: dict[str, Any]
) -> list[HTTPRouteHandler]:
    """Return the handlers."""
    form_options = {**options, "status_code": 303, "request_max_body_size": _MAX_FORM_BYTES}

    # Not `sync_to_thread`: of two handlers of one path, litestar 2 wraps the first twice.
    @get("/console/models/{name:str}/traffic", need="read", **options)
    async def show_traffic(name: FromPath[str]) -> Response[bytes]:
        """Show the shares."""
        state = await to_thread(control.show, name)
        return frame.page(
            "traffic",
            page="models",
            title=text("traffic_title", model=state.model),
            s=state,
            percent=_percent,
            may_operate=opens(current_caller(), "operate"),
        )

    @post("/console/models/{name:str}/traffic", sync_to_thread=True, need="operate", **form_options)
    def set_traffic(name: FromPath[str], body: RawBody) -> Response[bytes]:
        """Set shares and sticky key as the form says, and show them."""
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
    return TrafficRule(shares, single_field(fields, "sticky_by") or None)


def _share(percent: str) -> float:
    try:
        return round(float(percent.strip().replace(",", ".")) / 100, 9)
    except ValueError:
        raise QueryError(
            f"expected a share to be a number of percent, got {quoted(percent, 40)}"
        ) from None


def _percent(share: float) -> str:
    return f"{share * 100:g}"
