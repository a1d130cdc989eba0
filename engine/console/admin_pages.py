"""Pages for administrators: the keys, and the audit log."""

import time
from pathlib import Path
from typing import Any, get_args

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from quadriga.engine.api.access import caller_scope, check_sees_everything
from quadriga.engine.console.formats import person
from quadriga.engine.console.frame import Frame, PageRequest
from quadriga.engine.console.key_forms import MAX_DAYS, may_change_keys
from quadriga.engine.console.texts import TEXTS
from quadriga.proto.access import Role
from quadriga.proto.request import current_caller
from quadriga.store.audit.reading import parse_since, read_page
from quadriga.store.keys.access_keys import read_keys
from quadriga.store.keys.key_texts import AccessKey
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import Scoped

LINES = 100
"""Lines of the audit log on a page."""


class ListedKey(msgspec.Struct, frozen=True):
    """A key, without its secret."""

    key: AccessKey
    state: str
    """`valid`, `expired` or `revoked`."""
    created: str
    expires: str
    used: str


def keys_page(
    frame: Frame, inferences: Scoped[InferenceReader], options: dict[str, Any]
) -> HTTPRouteHandler:
    """Return the handler; `inferences` reads the database, which has the keys."""

    @get("/console/keys", sync_to_thread=True, need="admin", **options)
    def show_keys() -> Response[bytes]:
        """Show all keys, the newest first."""
        check_sees_everything("the keys are")
        with inferences.within(caller_scope()).snapshot() as connection:
            keys = read_keys(connection)
        now_ms = time.time() * 1000
        rows = [_row(key, now_ms) for key in reversed(keys)]
        return frame.page(
            "keys",
            page="keys",
            title=TEXTS["keys"],
            rows=rows,
            all_roles=get_args(Role),
            max_days=MAX_DAYS,
            may_change=may_change_keys(),
            own_id=current_caller().key_id,
        )

    return show_keys


def audit_page(frame: Frame, folder: Path, options: dict[str, Any]) -> HTTPRouteHandler:
    """Return the handler of the audit log in a folder."""

    @get("/console/audit", sync_to_thread=True, need="admin", **options)
    def show_audit(request: PageRequest) -> Response[bytes]:
        """Show the audit log, the newest first, page by page."""
        check_sees_everything("the audit log is")
        sent = {name: request.query_params.get(name, "") for name in ("since", "key", "cursor")}
        since = parse_since(sent["since"], time.time()) if sent["since"] else ""
        page = read_page(folder, since=since, key=sent["key"], limit=LINES, cursor=sent["cursor"])
        named = [msgspec.structs.replace(line, name=person(line.name)) for line in page.entries]
        page = msgspec.structs.replace(page, entries=named)
        return frame.page(
            "audit",
            page="audit",
            title=TEXTS["audit"],
            lines=page.entries,
            is_of_several=len({entry.host for entry in page.entries}) > 1,
            cursor=page.cursor,
            sent=sent,
        )

    return show_audit


def _row(key: AccessKey, now_ms: float) -> ListedKey:
    expired = "valid" if key.is_valid(now_ms) else "expired"
    created, expires, used = (
        "" if not at_ms else timestamp_text(at_ms)
        for at_ms in (key.created_ms, key.expires_ms, key.used_ms)
    )
    return ListedKey(
        key,
        expired if key.revoked_ms is None else "revoked",
        created=created,
        expires=expires,
        used=used,
    )
