"""Saved views: filters with a name and an owner, a file each below the data folder, apart for each team."""

from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

import msgspec

from quadriga.monitor.model_files import read_model_file, team_folder, write_model_file
from quadriga.quoting import quoted
from quadriga.store.exchange.text_files import decode_as
from quadriga.store.query.filters.comparisons import check_text
from quadriga.store.query.request import Order, QueryRequest
from quadriga.store.records.disk import translate_disk_errors
from quadriga.store.records.errors import NotFoundError, QueryError, StoreError
from quadriga.store.records.records import now_text
from quadriga.store.records.scope import EVERYTHING, Scope

MAX_VIEWS = 200
"""Maximum views of a team, and of whoever belongs to none."""

MAX_QUERY_CHARACTERS = 8192
_MAX_NAME_BYTES = 200
_SUFFIX = ".view.json"
_CHANGE_SUFFIX = ".before.json"

Form = Literal["", "grid", "table", "objects"]
"""How the console shows inferences; empty for what fits them."""


class ViewBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a view shows."""

    query: str
    """Filter as one line of text; empty for everything."""
    order: Order = "-ts"
    view: Form = ""


class SavedView(msgspec.Struct, frozen=True):
    """A view."""

    name: str
    query: str
    order: Order
    owner: str
    """Name of the key or person that saved it first."""
    saved_at: str
    """RFC 3339, UTC."""
    view: Form = ""


def is_same(a: SavedView | ViewBody, b: SavedView | ViewBody) -> bool:
    """Check whether two views show the same in the same way, whoever saved them."""
    return (a.query, a.order, a.view) == (b.query, b.order, b.view)


class ViewList(msgspec.Struct, frozen=True):
    """The views of a team."""

    views: list[SavedView]
    """All views, sorted by name."""


class _ViewFile(msgspec.Struct, frozen=True):
    view: SavedView
    owner_id: str
    """Id of the key; empty where none is needed."""


class ViewChange(msgspec.Struct, frozen=True):
    """The last view that somebody replaced or removed, kept so that it can be undone."""

    before: _ViewFile
    after: SavedView | None
    """What took its place; None if it was removed."""


def _is_as_left(current: SavedView | None, after: SavedView | None) -> bool:
    """Check whether a view is what a change made of it, also if that was saved once more, as by a second click."""
    if current is None or after is None:
        return current is after
    return current.owner == after.owner and is_same(current, after)


class OtherOwnerError(StoreError):
    """A view belongs to somebody else."""

    status = 403


class ViewStore:
    """The views of a team in a folder; safe to use from several threads and processes.

    Methods raise a `QueryError` for an invalid name.

    Args:
        directory: Folder of the views of all teams.
        scope: Whose views they are.
    """

    def __init__(self, directory: Path, scope: Scope = EVERYTHING) -> None:
        self._root = directory
        self._directory = team_folder(directory, scope.team)

    def within(self, scope: Scope) -> "ViewStore":
        """Return the views of the team of a scope."""
        return ViewStore(self._root, scope)

    def all(self) -> ViewList:
        """Return all views, by name; a damaged file is passed over."""
        files = (read_model_file(path, _ViewFile) for path in self._paths())
        views = [file.view for file in files if file is not None]
        return ViewList(sorted(views, key=lambda view: (view.name.casefold(), view.name)))

    def put(
        self, name: str, body: ViewBody, owner: str, owner_id: str, *, may_replace: bool
    ) -> SavedView:
        """Save a view, replacing one of the same owner.

        Args:
            name: Name of the view.
            body: The view, which was checked.
            owner: Name of who saves it.
            owner_id: Id of their key.
            may_replace: Whether they may replace views of others, too, which keep their owner.

        Raises:
            OtherOwnerError: It belongs to somebody else.
            QueryError: There are as many views as there may be.
            JournalError: The file could not be written, as on a full disk.
        """
        if not name.isprintable():
            raise QueryError(
                f"expected the name of a view without control characters, got {name!r:.100}"
            )
        path, caller_id = self._path(name), owner_id
        previous = read_model_file(path, _ViewFile)
        if previous is None:
            self._check_room()
        else:
            _check_owner(previous, owner_id, may_replace=may_replace)
            owner, owner_id = previous.view.owner, previous.owner_id
        view = SavedView(name, body.query, body.order, owner, saved_at=now_text(), view=body.view)
        with translate_disk_errors("save the view"):
            if previous is not None and not is_same(previous.view, view):
                write_model_file(self._change_path(caller_id), ViewChange(previous, view))
            write_model_file(path, _ViewFile(view, owner_id))
        return view

    def remove(self, name: str, owner_id: str, *, may_replace: bool) -> SavedView:
        """Remove a view, and return it; arguments as of `put`.

        Raises:
            NotFoundError: There is no such view.
            OtherOwnerError: It belongs to somebody else.
            JournalError: The file could not be removed.
        """
        path = self._path(name)
        file = read_model_file(path, _ViewFile)
        if file is None:
            raise NotFoundError(f"view not found: {quoted(name, 80)}")
        _check_owner(file, owner_id, may_replace=may_replace)
        with translate_disk_errors("remove the view"):
            write_model_file(self._change_path(owner_id), ViewChange(file, None))
            path.unlink(missing_ok=True)
        return file.view

    def last_change(self, owner_id: str) -> ViewChange | None:
        """Return the last view that somebody replaced or removed, with the id of their key; None for none, and once it was undone."""
        return read_model_file(self._change_path(owner_id), ViewChange)

    def undo(self, owner_id: str) -> SavedView:
        """Bring back the last view that somebody replaced or removed, with its owner, and return it.

        Raises:
            NotFoundError: They changed none, or undid it.
            QueryError: It was changed again since, or there are as many views as there may be.
            JournalError: The file could not be written.
        """
        change = self.last_change(owner_id)
        if change is None:
            raise NotFoundError("view not found: there is no change to undo")
        path = self._path(change.before.view.name)
        current = read_model_file(path, _ViewFile)
        if not _is_as_left(None if current is None else current.view, change.after):
            name = quoted(change.before.view.name, 80)
            raise QueryError(f"the view {name} was changed again since, and stays as it is")
        if current is None:
            self._check_room()
        with translate_disk_errors("save the view"):
            write_model_file(path, change.before)
            self._change_path(owner_id).unlink(missing_ok=True)
        return change.before.view

    def _check_room(self) -> None:
        if len(self._paths()) >= MAX_VIEWS:
            raise QueryError(
                f"expected at most {MAX_VIEWS} views, got one more: delete some that are not used"
            )

    def _change_path(self, owner_id: str) -> Path:
        """Return the path of somebody's last change; no view has a name that begins with a dot."""
        return self._directory / f".{quote(owner_id, safe='')}{_CHANGE_SUFFIX}"

    def _paths(self) -> list[Path]:
        return [
            path for path in self._directory.glob(f"*{_SUFFIX}") if unquote(path.name)[0] != "."
        ]

    def _path(self, name: str) -> Path:
        check_text(name, "the name of a view")
        encoded = quote(name, safe="")
        if not name.strip() or name.startswith(".") or len(encoded) > _MAX_NAME_BYTES:
            raise QueryError(
                f"expected the name of a view to have 1 to {_MAX_NAME_BYTES} bytes and to begin with no dot, got "
                f"{quoted(name, 80)}"
            )
        return self._directory / f"{encoded}{_SUFFIX}"


def decode_view(body: bytes) -> ViewBody:
    """Decode a view, and check its filter.

    Raises:
        QueryError: The body is no view, or its filter is none.
    """
    fields = "query, order (-ts, ts) and view (grid, table, objects)"
    view: ViewBody = decode_as(
        ViewBody, body, f"expected the body to be a JSON object with {fields}"
    )
    if len(view.query) > MAX_QUERY_CHARACTERS:
        raise QueryError(
            f"expected query to have at most {MAX_QUERY_CHARACTERS} characters, got {len(view.query)}"
        )
    QueryRequest(where=view.query).parse_filter()
    return view


def _check_owner(file: _ViewFile, owner_id: str, *, may_replace: bool) -> None:
    if file.owner_id != owner_id and not may_replace:
        raise OtherOwnerError(
            f"the view {quoted(file.view.name, 80)} belongs to {quoted(file.view.owner, 80)}: save yours under "
            "another name"
        )
