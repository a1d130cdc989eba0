"""Splits of a dataset, such as train and val: by a hash, so that nothing is on both sides, today or later."""

import re
from collections.abc import Mapping
from fractions import Fraction

from blake3 import blake3

from quadriga.quoting import quoted
from quadriga.store.changes.ground_truth import join_text
from quadriga.store.records import metadata
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import StoredInference, json_text

BY_IMAGE = "input.hash"
MAX_SPLITS = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", re.ASCII)
_ALL_HASHES = 1 << 64


class Splits:
    """Decides the split of each inference by the hash of its image, or of the value of a metadata key.

    Args:
        shares: Share of each split, in order; together 1. Empty for no splits.
        by: `input.hash`, or `meta.<key>`.

    Raises:
        QueryError: There is no such split, or the shares are not 1 together.
    """

    def __init__(self, shares: Mapping[str, float], by: str = BY_IMAGE) -> None:
        _check(shares, by)
        self._by = by
        self._ends: list[tuple[str, Fraction]] = []
        total = Fraction(0)
        for name, share in shares.items():
            total += Fraction(str(share))  # as it was written: 0.7 + 0.2 + 0.1 is 1
            self._ends.append((name, total * _ALL_HASHES))

    @property
    def names(self) -> list[str]:
        """Names of the splits, in order."""
        return [name for name, _ in self._ends]

    def split_of(self, record: StoredInference) -> str:
        """Return the split of an inference; empty if there are no splits."""
        if not self._ends:
            return ""
        position = int.from_bytes(blake3(self._key(record).encode()).digest(length=8))
        return next(name for name, end in self._ends if position < end)

    def _key(self, record: StoredInference) -> str:
        """Return what decides: all inferences without it are together, as they may be from one source."""
        if self._by == BY_IMAGE:
            return f"image {record.input.hash or record.id}"
        path = self._by.removeprefix("meta.")
        value = metadata.flatten(metadata.decode(record.metadata)).get(path)
        if value is None:
            return "no source"
        return f"source {join_text(value)}"


def parse_splits(text: str) -> dict[str, float]:
    """Parse `train=0.8,val=0.2`.

    Raises:
        QueryError: It is not of this form.
    """
    shares: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, share = part.partition("=")
        try:
            number = float(share)
        except ValueError:
            number = -1.0
        if name.strip() in shares or not 0 <= number <= 1:
            raise QueryError(
                f"expected splits such as train=0.8,val=0.2, each once, got {quoted(text, 80)}"
            )
        shares[name.strip()] = number
    return shares


def _check(shares: Mapping[str, float], by: str) -> None:
    if by != BY_IMAGE and not (by.startswith("meta.") and len(by) > len("meta.")):
        raise QueryError(f"expected split_by to be {BY_IMAGE} or meta.<key>, got {quoted(by, 80)}")
    if not shares:
        return
    if len(shares) > MAX_SPLITS:
        raise QueryError(f"expected at most {MAX_SPLITS} splits, got {len(shares)}")
    for name, share in shares.items():
        if _NAME.fullmatch(name) is None:
            raise QueryError(
                "expected the name of a split to be at most 32 letters, digits, - and _, "
                f"got {quoted(name, 80)}"
            )
        if not 0 < share <= 1:
            raise QueryError(f"expected a share above 0 and up to 1 for {name}, got {share}")
    total = sum(Fraction(str(share)) for share in shares.values())
    if total != 1:
        raise QueryError(
            f"expected the shares of all splits to be 1 together, got {float(total)}: {json_text(dict(shares))}"
        )
