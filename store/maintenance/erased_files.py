"""Files of a data folder that mention what is erased: jobs and what the journal set aside are removed, others named."""

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from quadriga.store.jobs.jobs import ENDED, ID_LISTS_FILE, Jobs
from quadriga.store.maintenance.mentions import Mentions
from quadriga.store.records.disk import sync_path, write_atomically
from quadriga.store.records.errors import NotFoundError

MAX_NAMED = 20
"""Maximum number of files that a receipt names."""


def started_jobs(jobs: Jobs) -> list[str]:
    """Return the jobs that have started and not ended."""
    return [job.id for job in jobs.all() if job.starts and job.state not in ENDED]


def running_jobs(jobs: Jobs, ids: Collection[str]) -> list[str]:
    """Return those of some jobs that have not ended."""
    running = []
    for job_id in ids:
        with suppress(NotFoundError):  # removed meanwhile
            if jobs.read(job_id).state not in ENDED:
                running.append(job_id)
    return running


def remove_jobs(jobs: Jobs, mentions: Mentions) -> int:
    """Remove jobs that have ended, with their results, if any of their files mentions what is erased; return how many."""
    removed = 0
    for folder in _folders(jobs):
        _take_out(folder / ID_LISTS_FILE, mentions)
        if not mentions.are_in(folder):
            continue
        hidden = folder if folder.name.startswith(".") else folder.with_name(f".{folder.name}")
        if hidden != folder:
            folder.rename(hidden)
        shutil.rmtree(hidden)
        removed += 1
    if removed:
        sync_path(jobs.directory)
    return removed


def _take_out(path: Path, mentions: Mentions) -> None:
    """Take the ids that are erased out of the lists of a job, which stay as they are otherwise."""
    if not path.exists():
        return
    lines = path.read_bytes().splitlines()
    rewritten = list(map(partial(_without, mentions=mentions), lines))
    if rewritten != lines:
        write_atomically(path, b"".join(line + b"\n" for line in rewritten), 0o600, is_synced=True)


def _without(line: bytes, mentions: Mentions) -> bytes:
    """Return a line of a list without the ids that are erased; nothing of it if it cannot be read."""
    if not mentions.are_in_bytes(line):
        return line
    try:
        entry = msgspec.json.decode(line, type=dict[str, Any])
        entry["ids"] = [id_ for id_ in entry["ids"] if not mentions.are_in_bytes(id_.encode())]
    except (msgspec.MsgspecError, KeyError, AttributeError, TypeError):
        return b""
    return msgspec.json.encode(entry)


def _folders(jobs: Jobs) -> Iterator[Path]:
    """Yield the folders of jobs that have ended, and what is left of removed ones."""
    for job_id in jobs.ids():
        try:
            job = jobs.read(job_id)
        except NotFoundError:  # damaged: nobody runs it
            job = None
        if job is None or job.state in ENDED:
            yield jobs.directory / job_id
    for job_id in jobs.removed_ids():
        yield jobs.directory / f".{job_id}"


def remove_set_aside(data_directory: Path, mentions: Mentions) -> int:
    """Remove rejected records and damaged parts of the journal that mention what is erased; return how many."""
    removed = 0
    dead = data_directory / "dead.jsonl"
    if dead.exists():
        lines = dead.read_bytes().splitlines(keepends=True)
        rest = [line for line in lines if not mentions.are_in_bytes(line)]
        if len(rest) < len(lines):
            write_atomically(dead, b"".join(rest), 0o600, is_synced=True)
            removed += len(lines) - len(rest)
    for path in sorted((data_directory / "dead").glob("*")):
        if mentions.are_in(path):
            path.unlink()
            removed += 1
    (data_directory / "renumbered.jsonl").unlink(missing_ok=True)  # ids that release 0.2.0 noted
    return removed


def mentioning_files(folders: Sequence[Path], mentions: Mentions) -> list[str]:
    """Return files that mention what is erased and are left, by their path within the data folder."""
    names = [
        path.relative_to(folder.parent).as_posix()
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file() and mentions.are_in(path)
    ]
    more = [f"{len(names) - MAX_NAMED} more files"] if len(names) > MAX_NAMED else []
    return names[:MAX_NAMED] + more
