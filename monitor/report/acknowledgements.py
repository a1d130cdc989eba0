"""Acknowledgements: who has seen the alarm of a drift report, in a file beside the report, which goes with it."""

from contextlib import suppress
from pathlib import Path

import msgspec

from quadriga.monitor.report.saved import ReportStore
from quadriga.store.exchange.text_files import decode_as
from quadriga.store.query.filters.comparisons import check_text
from quadriga.store.records.disk import create_once, translate_disk_errors, write_atomically
from quadriga.store.records.errors import JSON_ERRORS, NotFoundError, QueryError
from quadriga.store.records.records import now_text

MAX_NOTE_CHARACTERS = 1000
_FILE = "acknowledged.json"
_FILE_MODE = 0o600


class AcknowledgementBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody says of an alarm."""

    note: str = ""
    """What is known or done, for the colleagues."""


class Acknowledgement(msgspec.Struct, frozen=True):
    """Who has seen the alarm of a report first."""

    report: str
    """Id of the report."""
    by: str
    """Name of the key or person."""
    at: str
    """RFC 3339, UTC."""
    note: str


class _Outcome(msgspec.Struct, frozen=True):
    kind: str
    status: str


def decode_acknowledgement(body: bytes) -> AcknowledgementBody:
    """Decode what somebody says of an alarm; an empty body says nothing.

    Raises:
        QueryError: The body is no such object, or the note is too long.
    """
    expected = "expected the body to be a JSON object with note"
    decoded = decode_as(AcknowledgementBody, body or b"{}", expected)
    return AcknowledgementBody(checked_note(decoded.note))


def checked_note(note: str) -> str:
    """Return a note without space around it, or raise a `QueryError` if it is too long or no text."""
    check_text(note, "note")
    if len(note) > MAX_NOTE_CHARACTERS:
        raise QueryError(
            f"expected note to have at most {MAX_NOTE_CHARACTERS} characters, got {len(note)}"
        )
    return note.strip()


def acknowledge(reports: ReportStore, report_id: str, by: str, note: str) -> Acknowledgement:
    """Acknowledge the alarm of a drift report; of several acknowledgements, also at once, the first stays and is returned.

    Args:
        reports: The reports that the caller may see.
        report_id: Id of the report.
        by: Name of who acknowledges it.
        note: What they say of it, from `decode_acknowledgement`.

    Raises:
        NotFoundError: There is no such report.
        QueryError: The report has no alarm.
        DamagedError: The report cannot be read.
        JournalError: The file could not be written, as on a full disk.
    """
    outcome = reports.decode(report_id, _Outcome)
    if (outcome.kind, outcome.status) != ("drift", "drift"):
        raise QueryError(
            f"expected the report of a drift comparison with an alarm, got {outcome.kind} with the status "
            f"{outcome.status}"
        )
    path = reports.directory(report_id) / _FILE
    at = now_text()
    acknowledgement = Acknowledgement(report_id, by, at, note)
    encoded = msgspec.json.encode(acknowledgement)
    with translate_disk_errors("store the acknowledgement"):
        try:
            first = create_once(path, encoded, _FILE_MODE, makes_folder=False)
        except FileNotFoundError as error:
            raise NotFoundError(f"report not found: {report_id} was removed") from error
        with suppress(*JSON_ERRORS):
            return msgspec.json.decode(first, type=Acknowledgement)
        write_atomically(path, encoded, _FILE_MODE)  # the first was damaged, as by a loss of power
    return acknowledgement


def read_acknowledgement(reports: ReportStore, report_id: str) -> Acknowledgement | None:
    """Return who acknowledged a report first; None if nobody did, or if its file is damaged.

    Raises:
        NotFoundError: There is no such report.
    """
    path: Path = reports.directory(report_id) / _FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Acknowledgement)
    except (FileNotFoundError, *JSON_ERRORS):
        return None
