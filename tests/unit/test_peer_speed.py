"""What `make bench-peers` says of its samples: which count, which void a row, and what the tables show."""

import importlib
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the benchmarks by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


@pytest.fixture
def table(bench: Any) -> ModuleType:
    module: ModuleType = bench("peer_table")
    return module


def sample(table: ModuleType, **changes: Any) -> Any:
    fields = {
        "requests": 100, "wrong": 0, "cpu_ms": 2.0, "rate": 50.0, "neighbour_cores": 0.0,
        "reference_ms": (30.0, 30.0), **changes,
    }  # fmt: skip
    return table.Sample(**fields)


BUSY = {"neighbour_cores": 0.5, "cpu_ms": 9.0}


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({}, ""),
        ({"reference_ms": (30.0, 34.0)}, ""),
        ({"reference_ms": (30.0, 35.0)}, "reference 30/35"),
        ({"reference_ms": (35.0, 30.0)}, "reference 35/30"),
        ({"neighbour_cores": 0.1}, ""),
        ({"neighbour_cores": 0.11}, "neighbours 0.1"),
        ({"neighbour_cores": 1.5, "reference_ms": (30.0, 60.0)}, "reference 30/60, neighbours 1.5"),
    ],
)
def test_a_sample_is_flagged_if_the_machine_changed_or_others_used_it(
    table: ModuleType, changes: dict[str, Any], flag: str
) -> None:
    assert sample(table, **changes).flag == flag


@pytest.mark.parametrize(
    ("samples", "cpu_ms", "flag"),
    [
        ([], math.nan, "not measured"),
        ([{}], 2.0, "1 of 3 undisturbed"),
        ([{"cpu_ms": 1.0}, {"cpu_ms": 2.0}, {"cpu_ms": 4.0}], 2.0, "ok"),
        ([BUSY, {}, {}, {}], 2.0, "ok"),
        ([BUSY, BUSY, {}], 9.0, "1 of 3 undisturbed (neighbours 0.5)"),
        ([{}, {}, {"wrong": 1}], math.nan, "void: 1 of 100 answers wrong"),
        ([{}, {}, {}, {"failure": "TimeoutError"}], math.nan, "void: TimeoutError"),
        ([{"reference_ms": (60.0, 60.0)}] * 3, 1.0, "ok"),
    ],
)
def test_a_row_is_the_median_of_undisturbed_samples_and_void_with_a_wrong_answer(
    table: ModuleType, samples: list[dict[str, Any]], cpu_ms: float, flag: str
) -> None:
    row = table.Row(
        server="peer",
        path="tiny JSON",
        connections=8,
        samples=[sample(table, **changes) for changes in samples],
    )
    figures = table.figures(row, 30.0, 3)
    assert figures.flag == flag
    assert figures.cpu_ms == pytest.approx(cpu_ms, nan_ok=True)
    assert figures.is_ok == (flag == "ok")


def results(table: ModuleType, *rows: tuple[str, float, float, float]) -> Any:
    """Make results of one path: server, CPU ms, requests per second, cores of neighbours."""
    return table.Results(
        date="2026-01-01",
        machine="a <machine>",
        seconds=1,
        rounds=1,
        rows=[
            table.Row(
                server=server,
                path="tiny JSON",
                connections=8,
                samples=[sample(table, cpu_ms=cpu_ms, rate=rate, neighbour_cores=cores)],
            )
            for server, cpu_ms, rate, cores in rows
        ],
    )


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        ((2.0, 100.0, 0.0), []),
        ((1.8, 110.0, 0.0), []),
        ((1.0, 100.0, 0.0), ["takes 0.50 of the CPU"]),
        ((3.0, 200.0, 0.0), ["answers 2.00 times as many"]),
        ((1.0, 200.0, 0.9), ["takes 0.50 of the CPU (flagged)", "answers 2.00 times as many (flagged)"]),
    ],
)  # fmt: skip
def test_quadriga_is_behind_where_a_peer_is_better_by_more_than_a_tie(
    table: ModuleType, peer: tuple[float, float, float], said: list[str]
) -> None:
    lines = table.behind(results(table, (table.OWN, 2.0, 100.0, 0.0), ("peer", *peer)), ["peer"])
    assert lines == [f"tiny JSON, 8 connections: peer {text}" for text in said]


def test_flagged_rows_are_in_italics_with_their_reason(table: ModuleType) -> None:
    measured = results(table, (table.OWN, 2.0, 100.0, 0.0), ("quiet & good", 4.0, 70.0, 0.0), ("busy", 3.0, 80.0, 0.7))  # fmt: skip
    text = table.table(measured, 8)
    assert "| quiet & good | 4, 70 |" in text
    assert "| busy | *3, 80* |" in text
    assert "busy, tiny JSON: 0 of 1 undisturbed (neighbours 0.7)" in text


def test_a_server_that_did_not_start_changes_no_reference(table: ModuleType) -> None:
    measured = results(table, (table.OWN, 2.0, 100.0, 0.0), ("peer", 4.0, 70.0, 0.0))
    measured.rows[1].samples[0] = sample(table, failure="it did not start", reference_ms=(1.0, 1.0))
    assert measured.reference_ms == 30.0
    assert "void: it did not start" in table.table(measured, 8)


@pytest.mark.parametrize(
    ("answered", "is_alike"),
    [
        ([("star", 0.9, (0, 0, 9, 9)), ("cross", 0.5, (1, 1, 4, 4))], True),
        ([("cross", 0.5, (1, 1, 4, 4)), ("star", 0.9005, (0, 1, 9, 8))], True),
        ([("star", 0.9, (0, 0, 9, 9))], False),
        ([], False),
        ([("star", 0.9, (0, 0, 9, 9)), ("star", 0.5, (1, 1, 4, 4))], False),
        ([("star", 0.9, (0, 0, 9, 9)), ("cross", 0.52, (1, 1, 4, 4))], False),
        ([("star", 0.9, (0, 0, 9, 12)), ("cross", 0.5, (1, 1, 4, 4))], False),
        ([("star", 0.9, ()), ("cross", 0.5, ())], False),
    ],
)
def test_what_is_recognised_is_compared_by_label_score_and_box(
    bench: Any, answered: list[Any], *, is_alike: bool
) -> None:
    expected = [("star", 0.9, (0, 0, 9, 9)), ("cross", 0.5, (1, 1, 4, 4))]
    assert bench("questions").are_alike(expected, answered) is is_alike


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("received", "answer"),
    [
        (OK, None),
        (OK + b"Content-Length: 3\r\n\r\nab", None),
        (OK + b"Content-Length: 3\r\n\r\nabc", b"abc"),
        (OK + b"inference-header-content-length: 2\r\nContent-Length: 3\r\n\r\nabc", b"abc"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", None),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde"),
    ],
)
def test_an_answer_is_complete_with_its_length_or_its_last_chunk(
    bench: Any, received: bytes, answer: bytes | None
) -> None:
    complete = bench("measuring")._complete_answer(bytearray(received))
    assert (complete[1] if complete else None) == answer


def test_the_cpu_of_a_child_counts_for_the_server_and_not_for_its_neighbours(bench: Any) -> None:
    processes = bench("measuring")
    meter = processes.CpuMeter()
    code = "import threading, time\ndef work():\n  while time.thread_time() < 1: pass\nt = threading.Thread(target=work)\nt.start(); t.join(); print(); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in processes.descendants()
        assert meter.server_s() > 1
        child.communicate("\n")
    assert processes.process_cpu_ns(child.pid) == 0
