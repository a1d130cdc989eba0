"""Summaries: bounded in size, and drawn fairly."""

import numpy as np
import pytest

from quadriga.monitor.drift.samples import DriftError, Sample, build_sample
from quadriga.monitor.drift.summary import (
    decode_summary,
    draw_rows,
    encode_summary,
    summarise,
    typical_run_length,
)

N = 3000
RNG = np.random.default_rng(5)
COLUMNS = {
    "score": RNG.normal(size=N),
    "label": RNG.choice(["a", "b", "c"], N, p=[0.9, 0.09, 0.01]),
    "vector": RNG.normal(size=(N, 4)),
}
KINDS = {"score": "numeric", "label": "categorical", "vector": "embedding"}
SOURCES = np.array([f"camera {at % 3}" for at in range(N)])


def sample_of_rows(at):
    return build_sample(
        {name: values[at] for name, values in COLUMNS.items()},
        kinds=KINDS,
        sources=SOURCES[at],
        order=at * 7,
    )


def summarise_rows(at, *, rows=500, run=1, seed=0):
    return summarise(sample_of_rows(at), rows=rows, embeddings=100, run=run, seed=seed)


def test_a_summary_respects_its_limits():
    summary = summarise_rows(np.arange(N))
    assert len(summary.sample.order) == 500
    sizes = {column.name: len(column.rows) for column in summary.sample.columns}
    assert sizes == {"score": 500, "label": 500, "vector": 100}
    assert summary.n == N
    assert sum(summary.labels["label"].values()) == N
    assert summary.is_sampled("numeric")


def test_all_rows_are_in_a_summary_with_room():
    summary = summarise(sample_of_rows(np.arange(100)))
    assert len(summary.sample.order) == 100
    assert not summary.is_sampled("numeric")
    assert not summary.is_sampled("embedding")


def test_rows_of_a_run_are_drawn_together():
    summary = summarise_rows(np.arange(N), run=7 * 300, rows=400)
    runs = summary.sample.order // (7 * 300)
    pairs, sizes = np.unique(np.stack([runs, summary.sample.sources]), axis=1, return_counts=True)
    assert pairs.shape[1] == 4
    assert set(sizes) == {100}


def test_a_draw_is_fair():
    orders = [summarise_rows(np.arange(N), seed=seed).sample.order // 7 for seed in range(20)]
    counts = np.bincount(np.concatenate(orders) // 300, minlength=10)
    assert counts.min() > 850
    assert counts.max() < 1150


def test_a_summary_round_trips_bit_for_bit():
    data = encode_summary(summarise_rows(np.arange(N)))
    assert encode_summary(decode_summary(data)) == data
    assert len(data) < 40_000


@pytest.mark.parametrize("data", [b"", b"nothing", b"\x80"])
def test_other_bytes_are_refused(data):
    with pytest.raises(DriftError, match="expected a saved summary"):
        decode_summary(data)


def test_a_run_below_one_is_refused():
    with pytest.raises(DriftError, match="expected run to be 1 or more, got 0"):
        summarise_rows(np.arange(10), run=0)


@pytest.mark.parametrize("busy", ["source", "hour"])
def test_a_draw_has_the_share_of_the_busiest_source(busy):
    """A source of 200 that has most of the rows; or an hour of ten days."""
    rng = np.random.default_rng(5)
    n = 40_000
    order = np.sort(rng.choice(n * 1000, n, replace=False))
    sources = np.zeros(n, np.int64)
    if busy == "source":
        sources = np.where(rng.random(n) < 0.9, 0, rng.integers(1, 200, n))
        is_busy = sources == 0
    else:
        times = np.r_[rng.choice(200_000, n // 2, replace=False), order[n // 2 :]]
        order = np.sort(times)
        is_busy = order < 200_000
    run = typical_run_length(order, sources)
    names = tuple(str(at) for at in range(200))
    place = Sample((), order, sources, names)
    draws = [draw_rows(place, 4000, run=run, seed=seed)[0] for seed in range(20)]
    assert all(3500 < len(rows) <= 4000 for rows in draws)
    shares = [is_busy[rows].mean() for rows in draws]
    assert abs(np.mean(shares) - is_busy.mean()) < 0.1
