"""Erasures of a data folder: the receipt of each, and what it has to erase for as long as it runs.

`<directory>/<id>.json` is the receipt, which stays; `pending/<id>` exists until the erasure is complete, and so names what a
writer that was killed has to go on with. Receipts hold counts, names of fields, and texts, never what was erased.
"""

import re
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from quadriga.store.query.filters.syntax import (
    And,
    Compare,
    Filter,
    IdList,
    Or,
    PlaceCondition,
    Range,
    ReportCells,
    leaves,
)
from quadriga.store.records.disk import sync_path, translate_disk_errors, write_atomically
from quadriga.store.records.errors import NotFoundError, OutOfScopeError
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import EVERYTHING, Scope

_ID = re.compile(r"[0-9]{19}-[0-9a-f]{4}", re.ASCII)
_PENDING = "pending"
_RECEIPT = ".json"


class ErasureReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What an erasure has removed, and what it could not."""

    id: str
    created_at: str
    """RFC 3339, UTC; also `ended_at`."""
    state: Literal["running", "complete"] = "running"
    ended_at: str | None = None
    fields: list[str] = []
    """Fields of the filter, without their values."""
    counts: dict[str, int] = {}
    """Number of things that were removed, by kind."""
    waiting: list[str] = []
    """Reasons why it is not complete yet; it goes on by itself."""
    remaining: list[str] = []
    """Things of this server that were found and could not be removed, each with the reason."""
    kept: list[str] = []
    """Places outside of this server's reach that may keep copies."""


class ErasureTargets(msgspec.Struct, kw_only=True):
    """What an erasure removes, and how far it is; in a file that is removed at the end."""

    id: str
    created_at: str
    fields: list[str]
    ids: list[int]
    demanded: list[tuple[str, str]] = []
    """Fields and texts that the filter demands: jobs, reports and ground truth may name them, too."""
    digests: list[str] = []
    """Hashes of the images."""
    joins: list[tuple[str, str]] = []
    """Fields and values that ground truth may be joined to."""
    counts: dict[str, int] = {}
    running_jobs: list[str] = []
    """Jobs that ran when the rows were removed, and may have read them before."""
    step: Literal["collect", "rows", "rest"] = "collect"


class Erasures:
    """The erasures of a data folder; safe to use from several threads and processes.

    They belong to whoever sees everything: jobs, images and the journal, which they search, are of all teams.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pending = directory / _PENDING
        self._scope = EVERYTHING

    def within(self, scope: Scope) -> "Erasures":
        """Return a view for a scope: within less than everything there are no erasures, and none may begin."""
        view = Erasures(self._directory)
        view._scope = scope
        return view

    def check_scope(self) -> None:
        """Return if an erasure may begin; raise an `OutOfScopeError` within less than everything."""
        if not self._scope.is_everything:
            raise OutOfScopeError(
                "expected a key for all teams and models to erase, got one for "
                f"{self._scope.team or ', '.join(self._scope.models)}: without erase the inferences are deleted"
            )

    def submit(self, ids: list[int], fields: list[str], demanded: list[tuple[str, str]]) -> str:
        """Ask the writer to erase inferences; return the id of the erasure.

        Args:
            ids: Ids of the inferences.
            fields: Fields of the filter, for the receipt.
            demanded: Fields and texts that the filter demands, see `demanded_texts`.

        Raises:
            JournalError: It cannot be written, for example because the disk is full.
        """
        now_ns = time.time_ns()
        erasure_id = f"{now_ns:019d}-{secrets.token_hex(2)}"
        created_at = timestamp_text(now_ns // 1_000_000)
        with translate_disk_errors("store the erasure"):
            self._pending.mkdir(parents=True, exist_ok=True)
            self.save_targets(
                ErasureTargets(
                    id=erasure_id, created_at=created_at, fields=fields, ids=ids, demanded=demanded
                )
            )
            sync_path(self._pending)
        return erasure_id

    def read(self, erasure_id: str) -> ErasureReceipt:
        """Return a receipt; raise a `NotFoundError` if there is no such erasure."""
        if _ID.fullmatch(erasure_id) and self._scope.is_everything:
            with suppress(FileNotFoundError, msgspec.MsgspecError):
                data = (self._directory / f"{erasure_id}{_RECEIPT}").read_bytes()
                return msgspec.json.decode(data, type=ErasureReceipt)
            if targets := self.targets(erasure_id):
                return msgspec.structs.replace(
                    begun_receipt(targets), waiting=["the writer has not begun"]
                )
        raise NotFoundError(f"erasure not found: {erasure_id[:80]!r}")

    def all(self) -> list[ErasureReceipt]:
        """Return all receipts, the newest first."""
        names = {path.stem for path in self._directory.glob(f"*{_RECEIPT}")} | set(
            self.pending_ids()
        )
        receipts = []
        for name in sorted(names, reverse=True):
            with suppress(NotFoundError):  # the hidden file of a write
                receipts.append(self.read(name))
        return receipts

    def pending_ids(self) -> list[str]:
        """Return the ids of what is not complete, the oldest first."""
        with suppress(FileNotFoundError):
            return sorted(path.name for path in self._pending.iterdir() if _ID.fullmatch(path.name))
        return []

    def targets(self, erasure_id: str) -> ErasureTargets | None:
        """Return what an erasure removes; None if it is complete, or its file is damaged."""
        with suppress(FileNotFoundError, msgspec.MsgspecError):
            data = (self._pending / erasure_id).read_bytes()
            return msgspec.msgpack.decode(data, type=ErasureTargets)
        return None

    def save_targets(self, targets: ErasureTargets) -> None:
        """Write how far an erasure is, so that it lasts."""
        path = self._pending / targets.id
        write_atomically(path, msgspec.msgpack.encode(targets), 0o600, is_synced=True)

    def save_receipt(self, receipt: ErasureReceipt) -> None:
        """Write a receipt; that of a complete erasure ends it."""
        path = self._directory / f"{receipt.id}{_RECEIPT}"
        write_atomically(path, msgspec.json.encode(receipt), 0o600, is_synced=True)
        if receipt.state == "complete":
            (self._pending / receipt.id).unlink(missing_ok=True)
            for leftover in self._pending.glob(f".{receipt.id}*"):  # of writes that were killed
                leftover.unlink(missing_ok=True)
            sync_path(self._pending)


def begun_receipt(targets: ErasureTargets) -> ErasureReceipt:
    """Return the receipt of an erasure that is not complete."""
    return ErasureReceipt(
        id=targets.id,
        created_at=targets.created_at,
        fields=targets.fields,
        counts=targets.counts,
    )


def filter_fields(tree: Filter) -> list[str]:
    """Return the fields that a filter compares, without the values."""
    names = set()
    for leaf in leaves(tree):
        if isinstance(leaf, Compare | Range):
            names.add(leaf.field)
        elif isinstance(leaf, ReportCells | IdList):
            names.add("report")
        else:
            names.add("geo" if isinstance(leaf, PlaceCondition) else "predictions")
    return sorted(names)


def demanded_texts(tree: Filter) -> list[tuple[str, str]]:
    """Return the fields and texts that a filter demands of metadata, requests and images: they may name a person."""
    if isinstance(tree, And | Or):
        return sorted({pair for operand in tree.operands for pair in demanded_texts(operand)})
    if not isinstance(tree, Compare) or tree.operator not in {"eq", "in"}:
        return []
    if not tree.field.startswith("meta.") and tree.field not in {"request_id", "input.hash"}:
        return []
    return [(tree.field, value) for value in tree.values if isinstance(value, str)]
