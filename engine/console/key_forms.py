"""Forms for administrators: a new key, whose secret is shown once, and the end of a key."""

from typing import Any, get_args

from litestar import Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody

from quadriga.engine.api.access import check_sees_everything
from quadriga.engine.console.forms import form_fields, single_field
from quadriga.engine.console.frame import Frame, redirect
from quadriga.engine.console.texts import TEXTS
from quadriga.proto.access import ANYBODY, Role
from quadriga.proto.errors import Forbidden
from quadriga.proto.request import current_caller, note_target
from quadriga.store.database.database import writer_engine
from quadriga.store.keys.access_keys import create_key, revoke_key
from quadriga.store.keys.key_texts import rights_text
from quadriga.store.records.errors import QueryError, StoreError
from quadriga.store.records.scope import check_team

MAX_DAYS = 36500
MAX_NAME = 100
_MAX_FORM_BYTES = 10_000
_DAY_MS = 86_400_000


def key_forms(frame: Frame, database_url: str, options: dict[str, Any]) -> list[HTTPRouteHandler]:
    """Return the handlers; `database_url` is that of the database, which has the keys."""

    @post(
        "/console/keys/new",
        status_code=200,
        sync_to_thread=True,
        need="admin",
        request_max_body_size=_MAX_FORM_BYTES,
        **options,
    )
    def make_key(body: RawBody) -> Response[bytes]:
        """Make a key, and show its secret, which is nowhere else."""
        _check_may_change()
        name, roles, team, days = _read_form(body)
        with writer_engine(database_url) as engine:
            key, secret = create_key(
                engine,
                name=name,
                roles=roles,
                team=team,
                expires_in_ms=None if days is None else days * _DAY_MS,
            )
        note_target(rights_text(key))
        return frame.page("key_made", page="keys", title=TEXTS["key_made"], key=key, secret=secret)

    @post(
        "/console/keys/{key_id:str}/revoke",
        status_code=303,
        sync_to_thread=True,
        need="admin",
        **options,
    )
    def end_key(key_id: FromPath[str]) -> Response[bytes]:
        """Revoke a key, though not that of the caller."""
        _check_may_change()
        if key_id == current_caller().key_id:
            raise QueryError(
                "expected another key than your own, which you would be locked out with"
            )
        note_target(key_id[:100])
        with writer_engine(database_url) as engine:
            revoke_key(engine, key_id)
        return redirect(frame.link("/console/keys"))

    return [make_key, end_key]


def may_change_keys() -> bool:
    """Check whether the caller may change keys here, as far as its rights go."""
    return current_caller() is not ANYBODY


def _check_may_change() -> None:
    """Return if the caller may change keys: where nobody needs one, the first is made on the server's machine."""
    check_sees_everything("the keys are")
    if not may_change_keys():
        raise Forbidden("expected a caller with a key: the first is made by quadriga keys create")


def _read_form(body: bytes) -> tuple[str, list[str], str, int | None]:
    """Return name, roles, team and days until the end, None for never, or raise a `QueryError`."""
    fields = form_fields(body)
    name, team, days = (single_field(fields, field) for field in ("name", "team", "days"))
    if len(name) > MAX_NAME or not name.isprintable():
        raise QueryError(f"expected a name of at most {MAX_NAME} printable characters")
    try:
        check_team(team)
    except StoreError as error:
        raise QueryError(str(error)) from error
    roles = list(dict.fromkeys(fields.get("role", [])))
    if not roles or not set(roles) <= set(get_args(Role)):
        raise QueryError(f"expected at least one role of {', '.join(get_args(Role))}")
    if not days:
        return name, roles, team, None
    if not (days.isascii() and days.isdigit() and len(days) < 6 and 0 < int(days) <= MAX_DAYS):
        raise QueryError(f"expected 1 to {MAX_DAYS} days until the key ends")
    return name, roles, team, int(days)
