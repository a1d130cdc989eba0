"""Pages of models: all of them, and one with its versions, labels and what its monitoring last said."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from urllib.parse import quote

from litestar import Response
from litestar.params import FromPath, RawBody

from quadriga.engine.api.session_cookies import server_url
from quadriga.engine.api.traffic import TrafficState
from quadriga.engine.console.frame import (
    Frame,
    PageRequest,
    form_fields,
    problems_of,
    redirect,
    wants_page,
)
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.engine.serving.traffic import MAX_KEY_CHARACTERS, TrafficRule
from quadriga.proto.errors import InvalidRequest, NotFound
from quadriga.quoting import quoted
from quadriga.store.records.errors import QueryError


def model_pages(services: Services, store: ConsoleStore | None) -> None:
    """Register the handlers; `store` is None where nothing is stored."""
    frame, models = services.frame, services.models

    @services.page("/console/models")
    def show_models() -> Response[bytes]:
        """Show all models."""
        return frame.page(
            "models",
            page="models",
            title="Models",
            models=models(),
        )

    @services.page("/console/models/{name:str}")
    def show_model(name: FromPath[str], request: PageRequest) -> Response[bytes]:
        """Show one model."""
        entry = next((entry for entry in models() if entry.name.lower() == name.lower()), None)
        if entry is None:
            raise NotFound("expected a model that is served or has stored inferences")
        state = None
        if store is not None and any(version.state for version in entry.versions):
            with suppress(NotFound):  # it was removed at this moment
                state = services.traffic.show(entry.name)
        return frame.page(
            "model",
            page="models",
            title=entry.name,
            m=entry,
            traffic=state,
            server=server_url(request, frame.public_url),
        )


_MAX_FORM_BYTES = 12 * MAX_KEY_CHARACTERS + 4000
_SHARE = "share-"
"""What the name of a share's field begins with, before the version."""


def traffic_pages(services: Services) -> None:
    """Register the handlers."""
    frame, control = services.frame, services.traffic
    form = partial(services.form, request_max_body_size=_MAX_FORM_BYTES)

    def page(
        name: str, fields: Mapping[str, str], error: Exception | None = None
    ) -> Response[bytes]:
        """Return the page of the shares, with what was typed into its form."""
        state = control.show(name)
        stored = {f"{_SHARE}{version}": _percent(share) for version, share in state.shares.items()}
        return frame.page(
            "traffic",
            status=200 if error is None else 400,
            page="models",
            values=fields or {**stored, "sticky_by": state.sticky_by or ""},
            problems=problems_of(error),
            title=f"Traffic of {state.model}",
            s=state,
            percent=_percent,
        )

    @services.page("/console/models/{name:str}/traffic")
    def show_traffic(name: FromPath[str]) -> Response[bytes]:
        """Show the shares."""
        return page(name, {})

    @form("/console/models/{name:str}/traffic", "operate")
    def set_traffic(name: FromPath[str], request: PageRequest, body: RawBody) -> Response[bytes]:
        """Set shares and sticky key as the form says, and show them."""
        fields = form_fields(body)
        try:
            return _shown(frame, control.put(name, _rule_of_form(fields)))
        except (QueryError, InvalidRequest) as error:
            if not wants_page(request):
                raise
            return page(name, fields, error)

    @form("/console/models/{name:str}/traffic/promote", "operate")
    def promote_version(name: FromPath[str], body: RawBody) -> Response[bytes]:
        """Let one version answer all, and show it."""
        version = form_fields(body).get("version", "")
        return _shown(frame, control.promote(name, version))

    @form("/console/models/{name:str}/traffic/reset", "operate")
    def reset_traffic(name: FromPath[str]) -> Response[bytes]:
        """Let the highest version answer all again, and show it."""
        return _shown(frame, control.remove(name))


def _shown(frame: Frame, state: TrafficState) -> Response[bytes]:
    return redirect(frame.link(f"/console/models/{quote(state.model, safe='')}/traffic"))


def _rule_of_form(fields: Mapping[str, str]) -> TrafficRule:
    """Return the rule that a form describes, with shares in percent.

    Raises:
        QueryError: A share is no number.
    """
    shares = {
        name.removeprefix(_SHARE): _share(value)
        for name, value in fields.items()
        if name.startswith(_SHARE)
    }
    if not any(shares.values()):
        shares = {}
    return TrafficRule(shares, fields.get("sticky_by", "") or None)


def _share(percent: str) -> float:
    try:
        return round(float(percent.strip().replace(",", ".")) / 100, 9)
    except ValueError:
        raise QueryError(
            f"expected a share to be a number of percent, got {quoted(percent, 40)}"
        ) from None


def _percent(share: float) -> str:
    return f"{share * 100:g}"
