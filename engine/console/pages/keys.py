"""Page of the keys, for administrators: all of them, a new one whose secret is shown once, and the end of one."""

import time
from typing import get_args

from litestar import Response
from litestar.datastructures import MultiDict
from litestar.params import FromPath, RawBody

from quadriga.engine.api.access import caller_scope, check_sees_everything
from quadriga.engine.console.frame import (
    FieldProblem,
    PageRequest,
    form_fields,
    problems_of,
    redirect,
    wants_page,
)
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.proto.access import ANYBODY, Role
from quadriga.proto.errors import Forbidden
from quadriga.proto.request import current_caller, note_target
from quadriga.store.database.database import writer_engine
from quadriga.store.keys.access_keys import create_key, read_keys, revoke_key
from quadriga.store.keys.key_texts import rights_text
from quadriga.store.records.errors import QueryError, StoreError
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import check_team

MAX_DAYS = 36500
MAX_NAME = 100
_MAX_FORM_BYTES = 10_000
_DAY_MS = 86_400_000


def key_pages(services: Services, store: ConsoleStore) -> None:
    """Register the handlers."""
    frame = services.frame
    database_url = services.settings.database_url

    def page(fields: MultiDict[str], error: QueryError | None = None) -> Response[bytes]:
        """Return the page of all keys, the newest first, with what was typed into its form."""
        with store.inferences.within(caller_scope()).snapshot() as connection:
            keys = read_keys(connection)
        return frame.page(
            "keys",
            status=200 if error is None else error.status,
            page="keys",
            fields=fields,
            problems=problems_of(error),
            title="API keys",
            keys=keys[::-1],
            now_ms=time.time() * 1000,
            time_text=lambda at_ms: timestamp_text(at_ms) if at_ms else "",
            all_roles=get_args(Role),
            max_days=MAX_DAYS,
        )

    @services.page("/console/keys", "admin")
    def show_keys() -> Response[bytes]:
        """Show all keys, the newest first."""
        check_sees_everything("the keys are")
        return page(MultiDict())

    @services.form("/console/keys/new", "admin", status=200, request_max_body_size=_MAX_FORM_BYTES)
    def make_key(request: PageRequest, body: RawBody) -> Response[bytes]:
        """Make a key, and show its secret, which is nowhere else."""
        _check_may_change()
        fields = form_fields(body)
        try:
            name, roles, team, days = _read_form(fields)
        except QueryError as error:
            if not wants_page(request):
                raise
            return page(fields, error)
        with writer_engine(database_url) as engine:
            key, secret = create_key(
                engine,
                name=name,
                roles=roles,
                team=team,
                expires_in_ms=None if days is None else days * _DAY_MS,
            )
        note_target(rights_text(key))
        return frame.page("key_made", page="keys", title="API key created", key=key, secret=secret)

    @services.form("/console/keys/{key_id:str}/revoke", "admin")
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


def _check_may_change() -> None:
    """Return if the caller may change keys: where nobody needs one, the first is made on the server's machine."""
    check_sees_everything("the keys are")
    if current_caller() is ANYBODY:
        raise Forbidden("expected a caller with a key: the first is made by quadriga keys create")


def _read_form(fields: MultiDict[str]) -> tuple[str, list[str], str, int | None]:
    """Return name, roles, team and days until the end, None for never, or raise a `QueryError`."""
    name, team, days = (fields.get(field, "") for field in ("name", "team", "days"))
    if len(name) > MAX_NAME or not name.isprintable():
        raise FieldProblem("name", f"expected a name of at most {MAX_NAME} printable characters")
    try:
        check_team(team)
    except StoreError as error:
        raise FieldProblem("team", str(error)) from error
    roles = list(dict.fromkeys(fields.getall("role", [])))
    if not roles or not set(roles) <= set(get_args(Role)):
        raise FieldProblem("role", f"expected at least one role of {', '.join(get_args(Role))}")
    if not days:
        return name, roles, team, None
    if not (days.isascii() and days.isdigit() and len(days) < 6 and 0 < int(days) <= MAX_DAYS):
        raise FieldProblem("days", f"expected 1 to {MAX_DAYS} days until the key ends")
    return name, roles, team, int(days)
