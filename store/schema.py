"""The store's tables, which the migrations make: see `store/migrations/versions`.

A row of `inference` is the truth: what was predicted and the metadata, as JSON. `meta_num`, `meta_str`,
`pred` and `rollup` are derived from it, exist to find and count it, and can be rebuilt. `signal` holds what
drift is told by, made from the image while it was in memory. In PostgreSQL all of these but `rollup` are
partitioned by `seq`, which is the time.
"""

import enum
from bisect import bisect_right

INDEXED_CHARACTERS = 256
"""`meta_str` holds no more of a string; longer ones are told apart on the JSON."""

MAX_KEYS = 10_000
"""Once there are so many rows of `meta_key`, metadata of a path that has none is not indexed."""

BANDS = (0.25, *(1 - 0.5**k for k in range(1, 11)))
"""Where bands of scores begin but the first: the nearer to 1 the narrower, as scores lie there."""


def band(score: float) -> int:
    """Return the band of a score, 0 to `len(BANDS)`; a larger score has no smaller one."""
    return bisect_right(BANDS, score)


class KeyType(enum.IntEnum):
    """The types that values of one metadata path are told apart by."""

    NUM = 0
    STR = 1
    BOOL = 2
    OTHER = 3
    """A list or an object, which is found by its presence alone."""
    CELL = 4
    """Of the path `""`: the place as a `store.query.geo` cell, from `latitude` and `longitude`."""
