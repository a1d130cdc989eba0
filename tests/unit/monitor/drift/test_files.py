"""Drift of files: formats, inferred kinds of columns, and errors."""

import csv
import json
import math

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quadriga.monitor.drift.files.compare_files import (
    ColumnOptions,
    as_labels,
    compare_files,
    read_numbers,
)
from quadriga.monitor.drift.files.tables import read_table
from quadriga.monitor.drift.samples import DriftError
from quadriga.monitor.report.drift_texts import explanation, headline
from quadriga.store.exchange.arrow_tables import EXPORT_SCHEMA

N = 120


def rows(n=N, seed=0, shift=0.0, labels=("cat", "dog")):
    draw = np.random.default_rng(seed)
    return [
        {
            "id": at,
            "score": float(draw.normal(shift)),
            "boxes": int(draw.poisson(3)),
            "label": str(draw.choice(labels)),
            "is_day": bool(draw.random() < 0.5),
            "embedding": [float(number) for number in draw.normal(shift, size=3)],
            "note": f"row {draw.integers(1 << 40)}",
        }
        for at in range(n)
    ]


def to_csv(path, records):
    cells = [
        {key: json.dumps(value) if isinstance(value, list | bool) else value for key, value in row.items()}
        for row in records
    ]  # fmt: skip
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, cells[0])
        writer.writeheader()
        writer.writerows(cells)


def to_json_lines(path, records):
    path.write_text("".join(json.dumps(row) + "\n" for row in records))


def to_parquet(path, records):
    pq.write_table(pa.Table.from_pylist(records), path)


WRITERS = {".csv": to_csv, ".jsonl": to_json_lines, ".ndjson": to_json_lines, ".parquet": to_parquet}  # fmt: skip


@pytest.fixture
def write(tmp_path):
    def to(name, records):
        path = tmp_path / name
        if isinstance(records, str | bytes):
            path.write_bytes(records.encode() if isinstance(records, str) else records)
        else:
            WRITERS[path.suffix](path, records)
        return path

    return to


def compared(baseline, current, **parameters):
    report = compare_files(baseline, current, ColumnOptions(**parameters))
    return report, {signal.name: signal for signal in report.signals}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("other_format", [".csv", ".parquet"])
def test_all_file_formats_give_the_same_report(write, suffix, other_format):
    report, signals = compared(
        write(f"a{suffix}", rows()), write(f"b{other_format}", rows(seed=1, shift=1))
    )
    assert {name: signal.kind for name, signal in signals.items()} == {
        "score": "numeric",
        "boxes": "count",
        "label": "categorical",
        "is_day": "categorical",
        "embedding": "embedding",
    }
    assert all(signal.n == (N, N) for signal in signals.values())
    assert {name for name, signal in signals.items() if signal.alarm} == {"score", "embedding"}
    assert signals["is_day"].histogram.edges == ["false", "true"]
    assert report.status == "drift"
    assert set(report.parameters["left_out"]) == {"id", "note"}
    same = compared(write("a.jsonl", rows()), write("b.jsonl", rows(seed=1, shift=1)))[1]
    assert signals["score"] == same["score"]


def test_nothing_changed_is_ok(write):
    report, _ = compared(write("a.csv", rows()), write("b.csv", rows(seed=1)))
    assert (report.status, report.kind) == ("ok", "drift")
    assert [signal.alarm for signal in report.signals] == [False] * 5


def test_new_labels_are_named(write):
    baseline = write("a.csv", rows())
    _, signals = compared(baseline, write("b.csv", rows(labels=("cat", "dog", "<fox>"))))
    assert signals["label"].new_labels == ["<fox>"]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_nested_objects_have_dotted_names(write, suffix):
    records = [{"metadata": {"a": at * 7 % 20, "deep": {"b": at / 7}}} for at in range(40)]
    _, signals = compared(write(f"a{suffix}", records), write("b.jsonl", records))
    assert set(signals) == {"metadata.a", "metadata.deep.b"}


def test_missing_values_do_not_count(write):
    baseline = write("a.csv", "x,y\n1.5,\n,b\n2.5,c\nNaN,\n")
    current = write("b.jsonl", '{"x": 1.5, "y": null}\n\n{}\n{"x": 2}\n')
    report, signals = compared(baseline, current)
    assert (signals["x"].n, signals["y"].n) == ((2, 2), (2, 0))
    assert (report.data.baseline.n, report.data.current.n) == (4, 3)
    assert report.status == "insufficient"


def test_a_column_of_one_file_is_insufficient(write):
    records = rows()
    _, signals = compared(
        write("a.jsonl", [{"x": row["score"], "a": 1} for row in records]),
        write("b.jsonl", [{"x": row["score"], "b": row["embedding"]} for row in records]),
    )
    assert {
        name: signal.n for name, signal in signals.items() if signal.status == "insufficient"
    } == {
        "a": (N, 0),
        "b": (0, N),
    }


def test_labels_that_look_like_numbers_in_one_file_are_labels(write):
    baseline = write("a.csv", "zone\n" + "1\n2\n" * 60)
    current = write("b.csv", "zone\n" + "1\n2\nx\n" * 40)
    _, signals = compared(baseline, current)
    assert signals["zone"].kind == "categorical"
    assert signals["zone"].new_labels == ["x"]


def test_underscores_are_no_numbers(write):
    baseline = write("a.csv", "zone\n" + "1_0\n10\n" * 60)
    _, signals = compared(baseline, baseline)
    assert signals["zone"].histogram.edges == ["10", "1_0"]


def test_numbers_as_categories_are_the_same_in_each_format(write):
    records = [{"class": at % 3} for at in range(90)]
    complete = write("a.parquet", [{"class": float(row["class"])} for row in records])
    for name in ("b.csv", "b.jsonl", "b.parquet"):
        _, signals = compared(complete, write(name, records), categorical=("class",))
        assert signals["class"].kind == "categorical"
        assert signals["class"].new_labels == []


def test_few_integers_are_numbers_if_an_option_says_so(write):
    path = write("a.csv", rows())
    _, signals = compared(path, path, numeric=("boxes",))
    assert (signals["boxes"].kind, signals["boxes"].test) == ("numeric", "ks")


def test_an_embedding_may_be_columns(write):
    text = "e_0,e_1,e_3,x\n" + "1,2,9,0\n,2,9,0\n" * 30
    path = write("a.csv", text)
    _, signals = compared(path, path, embedding=("e",))
    assert {name: signal.kind for name, signal in signals.items()} == {
        "e_3": "count",
        "x": "count",
        "e": "embedding",
    }
    assert signals["e"].n == (30, 30)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_lists_that_are_no_embedding_are_left_out_by_name(write, suffix):
    path = write(f"a{suffix}", [{"x": 1.5, "l": [1.0] * (at % 3)} for at in range(40)])
    current = write(f"b{suffix}", [{"x": 1.5, "l": [{"label": "a"}]} for at in range(40)])
    report, signals = compared(path, current)
    assert set(signals) == {"x"}
    assert "l" in report.parameters["left_out"]
    with pytest.raises(DriftError, match="1: expected l to be a list of numbers, got"):
        compared(path, current, embedding=("l",))


def test_a_line_of_an_export_is_a_row(write):
    records = [
        {"id": str(at), "created_at": "2026-01-31T12:00:00.000Z", "latency_ms": at / 7,
         "model": {"name": "m"}, "predictions": [{"label": "a"}], "ground_truth": None,
         "metadata": {"camera_id": f"c{at % 2}", "altitude": at / 3}} for at in range(40)
    ]  # fmt: skip
    path = write("a.jsonl", records)
    report, signals = compared(path, path)
    assert set(signals) == {"latency_ms", "model.name", "metadata.altitude"}
    assert set(report.parameters["left_out"]) == {"id", "predictions"}
    assert report.parameters["source_key"] == "metadata.camera_id"
    assert report.data.current.start == "2026-01-31T12:00:00.000Z"


def test_a_row_of_an_exported_parquet_is_nested_again(write):
    records = [
        {"id": at, "model": "m", "task": "TENSOR", "latency_ms": at / 7, "predictions": "[]",
         "metadata": json.dumps({"camera_id": f"c{at % 2}", "altitude": at / 3})} for at in range(40)
    ]  # fmt: skip
    path = write("a.jsonl", "").with_suffix(".parquet")
    pq.write_table(pa.Table.from_pylist(records, EXPORT_SCHEMA), path)
    report, signals = compared(path, path)
    assert {"latency_ms", "model.name", "metadata.altitude"} <= set(signals)
    assert report.parameters["source_key"] == "metadata.camera_id"
    records[1]["metadata"] = "{"
    pq.write_table(pa.Table.from_pylist(records, EXPORT_SCHEMA), path)
    with pytest.raises(DriftError, match=r"a\.parquet:2: "):
        compared(path, path)


def test_the_first_shared_source_key_is_used(write):
    records = [{"stream": "s", "camera_id": f"c{at % 4}", "x": at / 3} for at in range(80)]
    baseline = write("a.jsonl", records)
    current = write("b.jsonl", [{"stream": "s", "x": row["x"]} for row in records])
    report, signals = compared(baseline, baseline)
    assert report.parameters["source_key"] == "camera_id"
    assert set(signals) == {"stream", "x"}
    assert compared(baseline, current)[0].parameters["source_key"] == "stream"
    ignored = compared(baseline, baseline, ignore=("camera_id", "stream"))
    assert ignored[0].parameters["source_key"] is None
    both = compared(baseline, baseline, categorical=("camera_id",))
    assert both[1]["camera_id"].kind == "categorical"


def test_frames_of_cameras_are_not_independent(write):
    draw = np.random.default_rng(0)

    def frames(camera):
        level = np.repeat(draw.normal(size=8), 100)
        return [
            {"camera_id": camera, "x": float(value)} for value in level + draw.normal(size=800) / 9
        ]

    _, signals = compared(write("a.jsonl", frames("a")), write("b.jsonl", frames("a")))
    assert signals["x"].units == "blocks"
    assert max(signals["x"].n_eff) < 100


@pytest.mark.parametrize(
    "times",
    [
        [f"2026-01-31T12:{at:02d}:00+01:00" for at in range(60)],
        [f"2026-01-31 11:{at:02d}:00" for at in range(60)],
        list(range(60)),
        [at / 7 for at in range(60)],
    ],
    ids=["zone", "no zone", "integers", "numbers"],
)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_rows_are_put_in_order_of_time(write, times, suffix):
    draw = np.random.default_rng(0)
    records = [
        {"timestamp": time, "x": value}
        for time, value in zip(times, draw.normal(size=60).cumsum().tolist(), strict=True)
    ]
    shuffled = [records[at] for at in draw.permutation(60)]
    sorted_file, mixed_file = write(f"a{suffix}", records), write(f"b{suffix}", shuffled)
    _, mixed = compared(mixed_file, mixed_file)
    report, ordered = compared(sorted_file, sorted_file)
    assert mixed["x"].n_eff == ordered["x"].n_eff
    assert compared(mixed_file, mixed_file, ignore=("timestamp",))[1]["x"].units == "rows"
    start = "2026-01-31T11:00:00.000Z" if isinstance(times[0], str) else None
    assert report.data.baseline.start == start


def test_dates_of_parquet_are_times(write):
    moments = pa.array([1_769_860_800_000 + at for at in range(40)], pa.timestamp("ms", "UTC"))
    table = pa.table({"seen": moments, "x": [at / 3 for at in range(40)]})
    path = write("a.jsonl", "").with_suffix(".parquet")
    pq.write_table(table, path)
    report, signals = compared(path, path, time="seen")
    assert set(signals) == {"x"}
    assert report.data.current.end == "2026-01-31T12:00:00.039Z"


BAD = {
    "no file of rows": ("a.txt", "x", {}, r"expected a file .csv, .jsonl, .ndjson or .parquet, got"),
    "an empty CSV": ("a.csv", "", {}, "a.csv:1: expected names of columns, got nothing"),
    "a column without name": ("a.csv", "a,,b\n", {}, "a.csv:1: column 2 has no name"),
    "a column twice": ("a.csv", "a,a\n", {}, "a.csv:1: expected each column once, got 'a' again"),
    "too few cells": ("a.csv", 'a,b\n"1\n",2\n3\n', {}, "a.csv:4: expected 2 cells, got 1"),
    "too many cells": ("a.csv", "a,b\n1,2,3\n", {}, "a.csv:2: expected 2 cells, got 3"),
    "an open quote": ("a.csv", 'a\n"1\n', {}, "a.csv:2: expected CSV, got"),
    "not UTF-8": ("a.csv", b"a\n\xff\n", {}, "a.csv: expected UTF-8"),
    "not UTF-8 in JSON": ("a.jsonl", b'{"a": "\xff"}\n', {}, "a.jsonl:1: expected JSON, got: 'utf-8' codec"),
    "no JSON": ("a.jsonl", '{"a": 1}\n{"a"\n', {}, "a.jsonl:2: "),
    "a huge number": ("a.jsonl", '{"a": 1e999}', {}, "a.jsonl:1.*: number out of range"),
    "a comma after an object": ("a.jsonl", '{"a": 1},\n', {}, "a.jsonl:1: .*write one JSON object in each line"),
    "an object over lines": ("a.jsonl", '{\n "a": 1\n}\n', {}, "a.jsonl:1: .*write one JSON object in each line"),
    "NaN in JSON": ("a.jsonl", '{"a": NaN}', {}, "a.jsonl:1: expected JSON"),
    "neither UTF-8 nor UTF-16": ("a.csv", "a\n\u00fc\n".encode("latin-1"), {}, "a.csv: expected UTF-8 or UTF-16, .*save it"),
    "too few cells between semicolons": ("a.csv", "a;b\n1;2\n3\n", {}, "a.csv:3: expected 2 cells, got 1"),
    "a column twice but for spaces": ("a.csv", "a, a\n", {}, "a.csv:1: expected each column once"),
    "a time missing among numbers": ("a.csv", "timestamp,x\n1,2\nNA,3\n", {}, "a.csv:3: expected timestamp to be a time .*got NA"),
    "no object": ("a.jsonl", "[1]\n", {}, "a.jsonl:1: expected a JSON object, got"),
    "an integer beyond float64": ("a.jsonl", '{"a": 1' + "0" * 400 + "}", {"numeric": ("a",)}, "a.jsonl:1: expected a to be a number, got 1000"),
    "too deep": ("a.jsonl", '{"a":' * 40 + "1" + "}" * 40, {}, "a.jsonl:1: expected objects at most"),
    "far too deep": ("a.jsonl", '{"a":' * 9999 + "1" + "}" * 9999, {}, "a.jsonl:1: "),
    "a path twice": ("a.jsonl", '{"a.b": 1, "a": {"b": 2}}', {}, "expected 'a.b' once"),
    "no Parquet": ("a.parquet", "PAR1", {}, "a.parquet: expected Parquet, got"),
    "no number": ("a.csv", "a\n1\nx\n", {"numeric": ("a",)}, "a.csv:3: expected a to be a number, got 'x'"),
    "text as number": ("a.jsonl", '{"a": "1"}', {"numeric": ("a",)}, "a.jsonl:1: expected a to be a number"),
    "no list": ("a.csv", "a\n[1]\nx\n", {"embedding": ("a",)}, "a.csv:3: expected a to be a list of numbers"),
    "an empty list": ("a.jsonl", '{"a": []}', {"embedding": ("a",)}, "a.jsonl:1: expected a to be a list"),
    "a longer list": ("a.csv", 'a\n[1]\n"[1,2]"\n', {"embedding": ("a",)}, "a.csv:3: expected a to have 1 numbers"),
    "far out": ("a.csv", "e_0,e_1\n1,2\n3,\n-7e4,1\n", {"embedding": ("e",)}, "a.csv:4: expected e to have numbers up to 65504, got -70000"),
    "farther out": ("a.jsonl", '{"e": [1e300]}', {"embedding": ("e",)}, "up to 65504, got inf"),
    "a list as label": ("a.jsonl", '{"a": [1]}', {"categorical": ("a",)}, "expected a to be a label, got a list"),
    "no such column": ("a.csv", "a,b\n", {"numeric": ("c",)}, "column not found in a.csv or a.csv: 'c'; there are: a, b"),
    "no such key": ("a.csv", "a,b\n", {"source_key": "c"}, "column not found in a.csv: 'c'; there are: a, b"),
    "no such time": ("a.jsonl", "", {"time": "c"}, "column not found in a.jsonl: 'c'; there are: none"),
    "two kinds": ("a.csv", "a\n", {"numeric": ("a",), "ignore": ("a",)}, "expected column 'a' in one option, got it in 2"),
    "no time": ("a.csv", "created_at\n2026-01-31\nsoon\n", {}, "a.csv:3: expected created_at to be a time"),
    "a time without end": ("a.csv", "timestamp\ninf\n", {}, "a.csv:2: .*got inf"),
    "a time before all": ("a.csv", "timestamp\n0001-01-01T00:00:00+23:00\n", {}, "a.csv:2: .*got 0001"),
    "a time in parts": ("a.jsonl", '{"timestamp": [2026, 1]}', {}, "a.jsonl:1: expected timestamp to be a time"),
    "a time that is missing": ("a.jsonl", '{"timestamp": 1}\n{}', {}, "a.jsonl:2: .*got nothing"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "parameters", "message"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_named(write, name, text, parameters, message):
    path = write(name, text)
    with pytest.raises(DriftError, match=message):
        compared(path, path, **parameters)


def test_times_may_be_dates_and_numbers(write):
    path = write("a.jsonl", '{"timestamp": 1e300}\n{"timestamp": "9999-12-31T23:59:59.9999Z"}\n')
    assert compared(path, path)[0].data.current.end is None
    last = write("b.jsonl", '{"timestamp": "9999-12-31T23:59:59.9999Z"}\n')
    assert compared(last, last)[0].data.current.end == "9999-12-31T23:59:59.999Z"


def test_file_names_that_are_not_unicode_are_accepted(write):
    path = write("b\udcff.csv", "a\n1\n")
    report, _ = compared(path, path)
    assert b"b?.csv" in msgspec.json.encode(report)
    with pytest.raises(DriftError, match="column not found"):
        compared(path, path, ignore=("x",))


def test_embeddings_of_other_length_are_refused(write):
    with pytest.raises(DriftError, match="expected e to be of length 2 as in the baseline, got 3"):
        compared(
            write("a.jsonl", '{"e": [1, 2]}\n' * 5), write("b.jsonl", '{"e": [1, 2, 3]}\n' * 5)
        )


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_no_rows_are_insufficient(write, name):
    path = write(name, "a,b\n" if name == "a.csv" else "")
    report, _ = compared(path, path)
    assert (report.status, report.data.current.n) == ("insufficient", 0)


ROWS = {  # a CSV file, and its columns as numbers where they are, else as labels
    "commas": ("a,b\r\n1,x\r\n\r\n2.5,y\r\n", {"a": [1, 2.5], "b": ["x", "y"]}),
    "a byte order mark": ("\ufeffa,b\r\n1,2\r\n", {"a": [1], "b": [2]}),
    "UTF-16": ("a,b\n1,\u00fc\n".encode("utf-16"), {"a": [1], "b": ["\u00fc"]}),
    "UTF-16 without a mark": ("a,b\n1,x\n".encode("utf-16-le"), {"a": [1], "b": ["x"]}),
    "semicolons": ("a;b\n1,5;x,y\n0,25;z\n", {"a": [1.5, 0.25], "b": ["x,y", "z"]}),
    "semicolons and points": ("a;b\n1.5;x,y\n0.25;z\n", {"a": [1.5, 0.25], "b": ["x,y", "z"]}),
    "thousands with decimal commas": ("a;b\n1.234,5;1.234\n2;950\n", {"a": [1234.5, 2], "b": [1234, 950]}),
    "tabs": ("a\tb\n1,5\t\n\t2\n", {"a": [1.5, None], "b": [None, 2]}),
    "bars": ("a|b\n1|2\n", {"a": [1], "b": [2]}),
    "quoted decimal commas": ('a,b\n"1,5","0,5"\n"2,25",1\n', {"a": [1.5, 2.25], "b": [0.5, 1]}),
    "a name with a semicolon": ("a (m;s),b\n1,2\n", {"a (m;s)": [1], "b": [2]}),
    "quotes, a newline in them": ('a,b\n"1\n2","x ""y"""\n', {"a": ["1\n2"], "b": ['x "y"']}),
    "spaces": ('a, b\n 1 , "x, y"\n', {"a": [1], "b": ["x, y"]}),
    "thousands": ('a\n"1,234.5"\n7\n1 000\n1e5\n-1E-3\n.5\n', {"a": [1234.5, 7, 1000, 1e5, -1e-3, 0.5]}),
    "infinite": ("a\ninf\n-Infinity\n1\n", {"a": [math.inf, -math.inf, 1]}),
    "per cent": ("a\n12 %\n5%\n", {"a": [12, 5]}),
    "a currency": ('a\n"$1,200.50"\n-$5\n$ 3\n', {"a": [1200.5, -5, 3]}),
    "two currencies": ("a\n$1\n\u20ac1\n", {"a": ["$1", "\u20ac1"]}),
    "no numbers": ('a\n"1,2,3"\n', {"a": ["1,2,3"]}),
    "one in ten": ("a\nx\n" + "1\n" * 9, {"a": [None] + [1] * 9}),
    "one in nine": ("a\nx\n" + "1\n" * 8, {"a": ["x"] + ["1"] * 8}),
    "codes": ("a\n0x1\n1_0\n2024-01-31\n", {"a": ["0x1", "1_0", "2024-01-31"]}),
    "words for missing": ("a,b\nNA,n/a\nnull,None\n-,#N/A\nnone,NaN\n1,x\n", {"a": [None] * 4 + [1], "b": [None] * 4 + ["x"]}),
    "labels that look missing": ("a\nnone\nna\nx\n", {"a": ["none", "na", "x"]}),
    "booleans": ("a,b\nTrue,TRUE\nfalse,x\n", {"a": ["true", "false"], "b": ["true", "x"]}),
    "whole numbers among labels": ("a\n1.0\n007\nx\n", {"a": ["1", "007", "x"]}),
    "numbers by half": ("a;b\n,5;e5\n5,;+1,5\n", {"a": [0.5, 5], "b": ["e5", "+1,5"]}),
    "infinite with decimal commas": ("a;b\ninf;1,5\n1;-Infinity\n", {"a": [math.inf, 1], "b": [1.5, -math.inf]}),
    "marks alone": ("a;b;c\n,;.;+\nx,1;-;.\n", {"a": [",", "x,1"], "b": [".", None], "c": ["+", "."]}),
    "large integers": ("a\n9007199254740993\nx\n", {"a": ["9007199254740993", "x"]}),
    "a header alone": ("a;b\n", {"a": [], "b": []}),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), ROWS.values(), ids=ROWS)
def test_csv_is_read_as_people_write_it(write, text, expected):
    table = read_table(write("a.csv", text))
    read = {}
    for name in table.columns:
        numbers = read_numbers(table, name)
        read[name] = [None if np.isnan(value) else value for value in numbers.values.tolist()]
        if not numbers.is_numeric:
            read[name] = as_labels(table, name)
    assert read == expected


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
def test_booleans_are_the_same_in_each_format(write, suffix):
    baseline = write("a.csv", "on\n" + "True\nFALSE\n" * 60)
    _, signals = compared(baseline, write(f"b{suffix}", [{"on": at % 2 == 0} for at in range(120)]))
    assert (signals["on"].histogram.edges, signals["on"].new_labels) == (["false", "true"], [])


FEW = {  # values among 60 numbers of CSV, how many numbers are left, and what is said of the others
    "words": (["NA", '""', "-", "null"], 60, None),
    "others": (["x", '"[1, 2]"', "5 %"], 60, "3 of 63 values are no numbers, the first in b.csv:2: 'x'"),
    "too many": ([f"x {at}" for at in range(100)], 0, "100 of 160 values are no numbers, the first in b.csv:2: 'x 0'"),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "count", "said"), FEW.values(), ids=FEW)
def test_few_values_that_are_no_numbers_are_named(write, cells, count, said):
    numbers = np.random.default_rng(0).normal(size=100).tolist()
    baseline = write("a.csv", "x\n" + "".join(f"{number}\n" for number in numbers))
    current = "x\n" + "".join(f"{cell}\n" for cell in [*cells, *numbers[:60]])
    report, signals = compared(baseline, write("b.csv", current))
    assert (signals["x"].n[1] if "x" in signals else 0) == count
    assert [*report.parameters["left_out"].values()] == ([] if said is None else [said])


def test_few_values_of_json_that_are_no_numbers_are_named(write):
    values = ["NA", None, True, [1], "1", *(at / 7 for at in range(60))]
    path = write("a.jsonl", [{"x": value} for value in values])
    report, signals = compared(path, path)
    assert signals["x"].n == (60, 60)
    said = report.parameters["left_out"]["values of x"]
    assert said.startswith("3 of 63 values are no numbers, the first in a.jsonl:3: True; 3 of")


def test_numbers_of_two_units_are_not_compared(write):
    report, signals = compared(
        write("a.csv", "x,y\n" + "2 %,2\n" * 40), write("b.csv", "x,y\n" + "2,2\n" * 40)
    )
    assert set(signals) == {"y"}
    assert "of one unit in both files, got % and without" in report.parameters["left_out"]["x"]


def test_words_for_missing_values_are_labels_if_an_option_says_so(write):
    path = write("a.csv", "x\n" + "None\nscratch\n" * 60)
    assert compared(path, path)[1]["x"].n == (60, 60)
    assert compared(path, path, categorical=("x",))[1]["x"].n == (120, 120)


PARQUET = {
    "a dictionary": (pa.array(["a", None, "b"]).dictionary_encode(), ["a", None, "b"]),
    "a dictionary of numbers": (pa.array([1.5, None]).dictionary_encode(), [1.5, None]),
    "nothing": (pa.nulls(2), [None, None]),
    "booleans": (pa.array([True, None, False]), ["true", None, "false"]),
    "large integers": (pa.array([(1 << 53) + 1, None]), [float(1 << 53), None]),
    "dates": (pa.array([1, None], pa.date32()), ["1970-01-02", None]),
    "times of a zone": (pa.array([0], pa.timestamp("ns", "Asia/Tokyo")), ["1970-01-01 09:00:00+09:00"]),
}  # fmt: skip


@pytest.mark.parametrize(("column", "expected"), PARQUET.values(), ids=PARQUET)
def test_columns_of_parquet(write, column, expected):
    path = write("a.jsonl", "").with_suffix(".parquet")
    pq.write_table(pa.table({"x": column}), path)
    table = read_table(path)
    numbers = read_numbers(table, "x")
    values = [None if np.isnan(value) else value for value in numbers.values.tolist()]
    assert (values if numbers.is_numeric else as_labels(table, "x")) == expected
    if expected[0] == float(1 << 53):
        assert as_labels(table, "x")[0] == str((1 << 53) + 1)


def test_dates_of_parquet_without_a_time_order_rows(write):
    path = write("a.jsonl", "").with_suffix(".parquet")
    days = pa.array([20_484 + at for at in range(40)], pa.date32())
    pq.write_table(pa.table({"created_at": days, "x": [at / 3 for at in range(40)]}), path)
    assert compared(path, path)[0].data.current.start == "2026-01-31T00:00:00.000Z"


def test_a_column_of_a_file_is_named_as_its_owner_named_it(write):
    records = [{"x": row["score"], "predictions": row["boxes"]} for row in rows(shift=3)]
    report, _ = compared(
        write("a.jsonl", [{"x": row["score"], "predictions": 9 + row["boxes"]} for row in rows()]),
        write("b.jsonl", records),
    )
    assert "objects" not in headline(report) + explanation(report)
    assert headline(report).startswith(("Changed: x from", "Changed: predictions from"))
