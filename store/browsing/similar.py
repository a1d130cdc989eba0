"""Inferences whose images resemble that of one: by the cosine of the embeddings that are stored for drift."""

import heapq
import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from quadriga.store.database.database import execute
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.query.sql.search import IdRange, Search
from quadriga.store.records.errors import NotFoundError

MAX_COMPARED = 100_000
"""Maximum matches that one request looks at: the newest."""

MAX_S = 1.0
"""Seconds after which the answer is that of what was compared until then."""

_MAX_BATCH = 2000
_BATCH_BYTES = 8_000_000
"""Bytes of embeddings that are read at once."""

_OF_ONE = (
    "SELECT i.input_hash, s.embedding, s.space FROM inference AS i LEFT JOIN signal AS s ON s.seq = i.seq"
    " WHERE i.seq = ?"
)
_SELECT = (
    "SELECT i.seq, i.input_hash, s.space, CASE WHEN length(s.embedding) = {size} THEN s.embedding END"
    " FROM ({{}}) AS m CROSS JOIN inference AS i LEFT JOIN signal AS s ON s.seq = i.seq WHERE i.seq = m.seq"
)
"""Selects what is compared; embeddings of another size than so many bytes are not read."""


class SimilarRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of the inferences that resemble one."""

    where: Any = None
    """A filter, as of a query, within which they are looked for."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20


class SimilarInference(msgspec.Struct, frozen=True):
    """An inference that resembles another."""

    id: str
    similarity: float
    """Cosine of the two embeddings, from -1 to 1."""


class SimilarInferences(msgspec.Struct, frozen=True):
    """Inferences that resemble one, the most similar first."""

    inferences: list[SimilarInference]
    compared: int
    """Number of matches that have an embedding to compare with, on other bytes than those of the inference."""
    partial: bool
    """Whether there are older matches that were not looked at, because they are too many or it took too long."""


class _Origin(msgspec.Struct, frozen=True):
    """The inference that others are compared with."""

    seq: int
    input_hash: Any
    space: str
    direction: npt.NDArray[np.float32]
    """(D,) embedding of length 1."""


def has_direction(embedding: bytes | None) -> bool:
    """Check whether the embedding of an inference is there, and others can be compared with it."""
    return _direction(embedding) is not None


def find_similar(
    inferences: InferenceReader, inference_id: str, request: SimilarRequest
) -> SimilarInferences:
    """Find the matches whose images resemble that of an inference; those with the very same bytes are left out.

    Embeddings are of a model, and those of two are never compared.

    Raises:
        NotFoundError: There is no such inference, it has no embedding, or the filter compares with a model that is not known.
        QueryError: The id or the filter is invalid.
    """
    tree = inferences.read_filter(QueryRequest(where=request.where))
    seq = int(inferences.get(inference_id).id)
    best: list[tuple[float, int]] = []  # of equally similar ones the newest
    compared = looked_at = 0
    deadline_s = time.monotonic() + MAX_S
    with inferences.snapshot() as connection:
        origin = _read_origin(connection, seq)
        size = 2 * len(origin.direction)
        batch, select = max(min(_MAX_BATCH, _BATCH_BYTES // size), 1), _SELECT.format(size=size)
        search = Search(connection, inferences.planner(connection, tree).plan, descending=True)
        id_range, is_partial = IdRange(), False
        while True:
            limit = min(batch, MAX_COMPARED - looked_at)
            rows, resume_id = search.first_matches(limit, id_range, inferences.budget, select)
            similar = _compare(origin, rows)
            best = heapq.nlargest(request.limit, [*best, *similar])
            compared, looked_at = compared + len(similar), looked_at + len(rows)
            if len(rows) == limit:
                resume_id = int(rows[-1][0])
            if resume_id is None or resume_id == 0:
                break
            id_range = id_range.after(resume_id, descending=True)
            if looked_at >= MAX_COMPARED or time.monotonic() > deadline_s:
                is_partial = bool(search.first_matches(1, id_range, inferences.budget).rows)
                break
    most_similar = [SimilarInference(str(id_), round(cosine, 6)) for cosine, id_ in best]
    return SimilarInferences(most_similar, compared, is_partial)


def _read_origin(connection: sa.Connection, seq: int) -> _Origin:
    row = execute(connection, _OF_ONE, (seq,)).one_or_none()
    direction = None if row is None else _direction(row[1])
    if row is None or direction is None:
        raise NotFoundError(f"the inference has no embedding, or not yet: {seq}")
    return _Origin(seq, row[0], row[2] or "", direction)


def _direction(embedding: bytes | None) -> npt.NDArray[np.float32] | None:
    """Return an embedding (D,) scaled to length 1; None for what is none, or has no direction."""
    if not embedding or len(embedding) % 2:
        return None
    vector = np.frombuffer(embedding, "<f2").astype(np.float32)
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if 0 < length < np.inf else None


def _compare(origin: _Origin, rows: Sequence[Any]) -> list[tuple[float, int]]:
    """Return the cosine and the id of each row whose embedding can be compared."""
    comparable = [
        (int(seq), embedding)
        for seq, input_hash, space, embedding in rows
        if embedding and space == origin.space
        and seq != origin.seq and (input_hash is None or input_hash != origin.input_hash)
    ]  # fmt: skip
    if not comparable:
        return []
    ids = np.array([seq for seq, _ in comparable], np.int64)
    joined = b"".join(embedding for _, embedding in comparable)
    vectors = np.frombuffer(joined, "<f2").astype(np.float32).reshape(len(ids), -1)
    lengths = np.linalg.norm(vectors, axis=1)
    is_usable = np.isfinite(lengths) & (lengths > 0)
    cosines = (vectors[is_usable] @ origin.direction) / lengths[is_usable]
    cosines = np.clip(cosines, -1.0, 1.0)
    return [*zip(cosines.tolist(), ids[is_usable].tolist(), strict=True)]
