"""Drift of stored inferences, on both databases."""

import msgspec
import numpy as np
import pytest

from quadriga.monitor.drift import windows
from quadriga.monitor.drift.parameters import (
    DriftParameters,
    StoredWindow,
    filter_reasons,
    resolve_times,
)
from quadriga.monitor.drift.samples import DriftError
from quadriga.monitor.drift.stored import compare_stored
from quadriga.monitor.drift.summary import summarise
from quadriga.monitor.drift.windows import WindowQuery, read_window
from quadriga.monitor.report.drift_texts import caveats, headline, is_maybe_chance
from quadriga.store.records.ids import LARGEST_ID
from quadriga.store.records.records import (
    IMAGE_STATISTICS,
    ImageSignals,
    InputReference,
    ModelReference,
    SignalsOfImages,
)
from tests.unit.monitor.drift.window_reports import id_at_second, time_at_second
from tests.unit.store.conftest import make_record

MODEL = ModelReference("one", "1", "aa" * 32)
SPACE, OTHER_SPACE = "ab" * 8, "cd" * 8
MIDDLE = 1000
"""The second in which the baseline ends."""


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(windows, "SHARD_SIZE", 37)


def answer(second, draw, *, shift=0.0, label="a", camera=None, **fields):
    predictions = [
        {"label": label, "score": round(float(np.clip(draw.normal(0.5 + shift, 0.1), 0, 1)), 4),
         "xmin": 10, "ymin": 10, "xmax": 10 + int(draw.integers(10, 90)), "ymax": 60}
    ]  # fmt: skip
    image = InputReference("image", f"blake3:{second:064x}", 640, 480, "image/jpeg", bytes=9000)
    metadata = {} if camera is None else {"camera_id": camera}
    metadata |= {"frame": f"{second:09d}", "lux": float(draw.normal())}
    values = {"model": MODEL, "predictions": predictions, "input": image, "metadata": metadata}
    return make_record(id_at_second(second), **values | fields)


def fill(store, seconds, **fields):
    draw = np.random.default_rng(min(seconds, default=0))
    store.commit(*(answer(second, draw, **fields) for second in seconds))


def signals(store, seconds, shift=5.0, space=SPACE):
    draw = np.random.default_rng(min(seconds))
    stored_signals = [
        ImageSignals(
            id_at_second(second),
            draw.normal(size=len(IMAGE_STATISTICS)).astype("<f4").tobytes(),
            draw.normal(shift, size=4).astype("<f2").tobytes(),
            space,
        )
        for second in seconds
    ]
    store.commit_changes(SignalsOfImages(stored_signals))


def compared(store, baseline=None, **fields):
    parameters = DriftParameters(
        "one",
        start=time_at_second(MIDDLE),
        baseline=baseline or StoredWindow(end=time_at_second(MIDDLE)),
        **fields,
    )
    return compare_stored(store.inferences, parameters)


def windowed(store, **fields):
    query = WindowQuery("one", StoredWindow(), LARGEST_ID, 0, **{"max_rows": 10_000} | fields)
    return read_window(store.inferences, query, lambda *_: None)


def signal(report, name):
    return next(signal for signal in report.signals if signal.name == name)


def test_no_alarm_where_nothing_changed(store):
    fill(store, range(1, 120), camera="north")
    fill(store, range(MIDDLE, MIDDLE + 90), camera="north")
    report = compared(store, where={"meta.camera_id": "north"})
    assert (report.kind, report.task, report.status) == ("drift", "OBJECT_DETECTION", "ok")
    assert report.model.sha256 == "aa" * 32
    current, baseline = report.data.current, report.data.baseline
    assert (current.start, current.end, current.n) == (
        time_at_second(MIDDLE),
        time_at_second(MIDDLE + 89),
        90,
    )
    assert current.filter == {"meta.camera_id": "north"}
    assert (baseline.start, baseline.end, baseline.n) == (
        time_at_second(1),
        time_at_second(119),
        119,
    )
    assert report.parameters["source_key"] == "camera_id"
    assert report.parameters["left_out"] == {
        "meta.camera_id": "fixed by the filter",
        "meta.frame": "hardly any text is there twice",
    }
    names = {signal.name: signal.kind for signal in report.signals}
    assert names.items() >= {"label": "categorical", "score": "numeric", "area": "numeric"}.items()
    assert "meta.camera_id" not in names


def test_a_change_is_named_with_the_slice_that_carries_it(store):
    cameras = [
        {"camera": camera, "label": label} for camera in ("north", "south") for label in "ab"
    ]
    for at, fields in enumerate(cameras * 2):
        start = (MIDDLE if at >= 4 else 1) + at % 4
        changed = at >= 4 and fields["camera"] == "south"
        new = {"shift": 0.3, "label": "new"} if changed else {}
        fill(store, range(start, start + 400, 4), **fields | new)
    report = compared(store)
    assert report.status == "drift"
    assert {signal_.name for signal_ in report.signals if signal_.alarm} == {"label", "score"}
    assert signal(report, "label").new_labels == ["new"]
    slices = {(slice_.by, slice_.value) for slice_ in report.slices}
    assert slices == {("meta.camera_id", "south")}
    assert compared(store, by=["camera_id"]).slices == report.slices
    chosen = compared(store, signals=["score", "area"], ignore=["area"])
    assert [signal_.name for signal_ in chosen.signals] == ["score"]


@pytest.mark.parametrize(
    ("camera_count", "fields", "is_named"),
    [
        (5, {}, True),
        (12, {}, True),
        (13, {}, False),
        (13, {"by": ["camera_id"]}, True),
        (5, {"by": ["a", "none"]}, False),
    ],
)
def test_a_source_is_named_though_other_keys_have_fewer_values(
    store, camera_count, fields, is_named
):
    draw = np.random.default_rng(7)
    for start, per_camera in ((1, 70), (MIDDLE, 200)):
        answers = []
        for number in range(per_camera * camera_count):
            camera = number % camera_count
            keys = {key: f"{key}{draw.integers(n)}" for key, n in (("a", 2), ("b", 2), ("c", 3))}
            metadata = {"camera_id": f"camera {camera}", **keys}
            shift = 0.45 * (start == MIDDLE and camera == 1)
            answers.append(answer(start + number, draw, shift=shift, metadata=metadata))
        store.commit(*answers)
    report = compared(store, **fields)
    assert signal(report, "score").alarm
    assert [(slice_.by, slice_.value) for slice_ in report.slices] == (
        [("meta.camera_id", "camera 1")] if is_named else []
    )
    assert ("most where camera_id is camera 1." in headline(report)) is is_named


def test_what_cannot_be_judged_is_named_with_the_slice_that_moved_most(store):
    """Scores of each camera stay alike for 60 images, so that there are few independent ones."""
    for at, camera in enumerate(("north", "south")):
        for begin, run in ((1, 0), (61, 1), (121, 2), (MIDDLE, 3), (MIDDLE + 60, 4)):
            level = 0.2 * (-1) ** run + 0.4 * (run > 2 and camera == "south")
            seconds = range(2 * begin + at, 2 * begin + at + 120, 2)
            fill(store, seconds, camera=camera, shift=level - 0.1)
    report = compare_stored(
        store.inferences,
        DriftParameters(
            "one",
            start=time_at_second(2 * MIDDLE),
            baseline=StoredWindow(end=time_at_second(2 * MIDDLE)),
        ),
    )
    assert report.status == "insufficient"
    assert signal(report, "score").status == "insufficient"
    places = [
        (slice_.by, slice_.value, metric.parameters["signal"])
        for slice_ in report.slices
        for metric in slice_.metrics
    ]
    assert places == [("meta.camera_id", "south", "score")]
    assert ", which moved, most where camera_id is south" in headline(report)


def test_what_may_be_chance_over_all_images_is_tested_where_it_moved(store):
    """One of four cameras, which differ much, moves: over all images that is no more than their numbers may bring about."""
    levels = {"dock": -0.3, "east": -0.1, "north": 0.1, "west": 0.3}
    for start, count, moved in ((1, 100, 0.0), (MIDDLE, 30, 0.13)):
        for at, (camera, level) in enumerate(levels.items()):
            shift = level + moved * (camera == "dock")
            seconds = range(start + at, start + 4 * count + at, 4)
            fill(store, seconds, camera=camera, shift=shift)
    report = compared(store)
    score = signal(report, "score")
    assert is_maybe_chance(score)
    assert [(slice_.by, slice_.value) for slice_ in report.slices] == [("meta.camera_id", "dock")]
    assert "score moved, which may be chance over all images, but not where camera_id is dock" in headline(report)  # fmt: skip


def test_windows_are_sampled_like_summaries(store):
    for at, camera in enumerate(["north", "south", "west"]):
        fill(store, range(1 + at, 301, 3), camera=camera)
    signals(store, range(1, 301, 2))
    complete = windowed(store).summary
    drawn = windowed(store, max_rows=150, max_embeddings=40).summary
    expected = summarise(complete.sample, rows=150, embeddings=40)
    assert drawn.run == expected.run
    assert drawn.n == 300
    assert drawn.first_left == expected.first_left
    assert drawn.sample.order.tolist() == expected.sample.order.tolist()
    assert drawn.sample.source_names == expected.sample.source_names
    for column, expected_column in zip(drawn.sample.columns, expected.sample.columns, strict=True):
        assert column.rows.tolist() == expected_column.rows.tolist()
        assert column.values.tolist() == expected_column.values.tolist()
    assert 0 < len(drawn.sample.columns[-1].rows) <= 40
    assert drawn.is_sampled("embedding")


def test_labels_outside_the_sample_are_counted(store):
    fields = {"camera": "north", "model": ModelReference("other", "1", "bb" * 32)}
    fill(store, range(1, 1001), camera="north")
    for second in range(1, 1001, 50):
        fill(store, [5000 + second], camera="north", label=f"rare {second}")
    fill(store, [5500], **fields | {"label": "another's"})
    summary = windowed(store, max_rows=100).summary
    assert len(summary.sample.order) <= 100
    drawn = next(column for column in summary.sample.columns if column.name == "label").labels
    rare = {f"rare {second}" for second in range(1, 1001, 50)}
    assert len(rare & {*drawn}) < 20
    assert summary.labels["label"].keys() == {"a", *rare}


def test_all_labels_of_an_image_are_counted(store):
    both = [{"label": label, "score": 0.5} for label in ("a", "rare")]
    fill(store, range(1, 60), predictions=both)
    fill(store, range(MIDDLE, MIDDLE + 60), predictions=[*both, {"label": "new", "score": 0.1}])
    assert signal(compared(store), "label").new_labels == ["new"]


def test_only_the_best_label_of_a_classifier_counts(store):
    fields = {"task": "IMAGE_CLASSIFICATION"}
    second = [{"label": "a", "score": 0.7}, {"label": "second", "score": 0.3}]
    fill(store, range(1, 500), predictions=second, **fields)
    fill(store, [600], predictions=[{"label": "rare" * 100, "score": 0.6}], **fields)
    assert windowed(store, max_rows=20).summary.labels["label"].keys() == {"a", "rare" * 64}


def test_sources_may_have_few_rows_each(store):
    draw = np.random.default_rng(1)
    seconds = (*range(1, 91), *range(MIDDLE, MIDDLE + 90))
    recordings = [{"recording": f"{second // 1.5:.0f}"} for second in seconds]
    store.commit(
        *(
            answer(second, draw, metadata=recording)
            for second, recording in zip(seconds, recordings, strict=True)
        )
    )
    report = compared(store)
    assert report.parameters["source_key"] == "recording"
    assert signal(report, "score").units == "groups"


def test_signals_of_few_images_remain_signals(store, monkeypatch):
    monkeypatch.setattr(windows, "SHARD_SIZE", 1000)
    fill(store, range(1, 251), predictions=[])
    fill(store, [400, 401])
    summary = windowed(store).summary
    assert (
        next(len(column.rows) for column in summary.sample.columns if column.name == "score") == 2
    )


def test_the_number_of_inferences_is_extrapolated_from_the_sample(store):
    fill(store, range(1, 301))
    fill(store, range(301, 401), status=500, predictions=[])
    assert windowed(store).summary.n == 300
    assert windowed(store, max_rows=200).summary.n == pytest.approx(300, abs=60)


def test_damaged_signals_are_skipped(store):
    fill(store, range(1, 61))
    signals(store, range(1, 61))
    damaged = [b"odd", np.full(4, np.nan, "<f2").tobytes(), np.zeros(3, "<f2").tobytes()]
    store.commit_changes(
        SignalsOfImages(
            [
                ImageSignals(id_at_second(at), b"torn", column, SPACE)
                for at, column in enumerate(damaged, 1)
            ]
        )
    )
    names = {column.name: len(column.rows) for column in windowed(store).summary.sample.columns}
    assert (names["embedding"], names["image.blur"]) == (57, 57)


def test_excluded_inferences_are_counted(store):
    fill(store, range(1, 81))
    fill(store, [81, 82], status=500, predictions=[])
    fill(store, [83], task="IMAGE_CLASSIFICATION")
    fill(store, range(84, 90))
    signals(store, range(1, 50))
    signals(store, range(50, 60), space=OTHER_SPACE)
    window = windowed(store)
    assert (window.info.task, window.info.space) == ("OBJECT_DETECTION", SPACE)
    assert window.info.excluded == {
        "failed": 2, "other_task": 1, "no_signals": 27, "other_space": 10,
    }  # fmt: skip
    assert window.summary.n == len(window.summary.sample.order) == 86
    names = {column.name: len(column.rows) for column in window.summary.sample.columns}
    assert (names["embedding"], names["image.blur"], names["score"]) == (49, 59, 86)
    other_window = windowed(store, space=OTHER_SPACE)
    assert len(other_window.summary.sample.columns[-1].rows) == 10


def test_the_images_least_like_the_baseline_are_shown_beside_their_neighbours(store):
    for start in (1, MIDDLE):
        fill(store, range(start, start + 60))
        signals(store, range(start, start + 60))
    fill(store, [MIDDLE + 70])
    signals(store, [MIDDLE + 70], shift=-20)
    report = compared(store)
    assert len(report.unlike) == 12
    first = report.unlike[0]
    assert first.inference_id == str(id_at_second(MIDDLE + 70))
    assert first.score == 1 / 61
    assert (first.image, first.width) == (f"blake3:{MIDDLE + 70:064x}", 640)
    distances = [neighbour.distance for neighbour in first.nearest]
    assert len(distances) == 3
    assert distances == sorted(distances)
    assert all(int(neighbour.inference_id) < id_at_second(MIDDLE) for neighbour in first.nearest)
    assert all((near.created_at or "") < (first.created_at or "") for near in first.nearest)
    assert msgspec.json.decode(msgspec.json.encode(first.nearest[0].predictions))[0]["label"] == "a"


def test_signals_of_another_kind_are_left_out(store):
    fill(store, range(1, 60), metadata={"floor": 3})
    fill(store, range(MIDDLE, MIDDLE + 60), metadata={"floor": "three"})
    report = compared(store)
    assert report.parameters["left_out"] == {
        "meta.floor": "count in the baseline, categorical in the window"
    }


FIXED, UNLIKE = "fixed by the filter", "restricted by the filter, and not alike on both sides"


@pytest.mark.parametrize(
    ("before", "after", "left_out"),
    [
        ({"meta.run": "a"}, {"meta.run": "b"}, {"meta.run": FIXED}),
        (None, {"and": [{"meta.run": "b"}, {"meta.lux": {"ge": -9}}]}, {"meta.lux": UNLIKE, "meta.run": FIXED}),
        ("meta.run=a", {"metadata_filter": [{"key": "run", "type": "string", "operator": "=", "value": "b"}]}, {"meta.run": FIXED}),
        ({"meta.run": {"in": ["a", "x"]}}, {"meta.run": {"in": ["b", "y"]}}, {"meta.run": UNLIKE}),
        ({"not": {"meta.run": "b"}}, {"or": [{"meta.run": "b"}, {"meta.run": "c"}]}, {"meta.run": UNLIKE}),
        ({"meta.place": {"exists": False}}, {"meta.place": {"exists": True}}, {"meta.place.floor": UNLIKE}),
        (None, {"meta.run": {"ne": "a"}}, {"meta.run": UNLIKE}),
    ],
)  # fmt: skip
def test_a_key_that_a_filter_chooses_by_is_no_signal(store, before, after, left_out):
    for start, run in ((1, "a"), (MIDDLE, "b")):
        place = {"place": {"floor": 1}} if run == "b" else {}
        fill_with(store, start, 200, lambda at, run=run, place=place: {"run": run, "lux": at % 7, **place})  # fmt: skip
    report = compared(store, StoredWindow(end=time_at_second(MIDDLE), where=before), where=after)
    assert report.parameters["left_out"] == left_out
    titles = [name.removeprefix("meta.") for name in left_out]
    assert f"Left out, as the filter chose the images by them: {' and '.join(titles)}." in caveats(
        report
    )
    alarms = {signal_.name for signal_ in report.signals if signal_.alarm}
    assert alarms == {"meta.run"} - {*left_out}
    assert not any(signal_.name.startswith(tuple(left_out)) for signal_ in report.signals)


def test_a_change_is_named_before_the_filter_that_found_it(store):
    fill(store, range(1, 200), metadata={"run": "a"})
    fill(store, range(MIDDLE, MIDDLE + 200), metadata={"run": "b"}, shift=0.3)
    before = StoredWindow(where={"meta.run": "a"})
    report = compare_stored(store.inferences, DriftParameters("one", where={"meta.run": "b"}, baseline=before))  # fmt: skip
    assert headline(report).startswith("Changed: score from 0.5")
    assert "run" not in headline(report)
    assert compared(store, before, signals=["meta.run"], where={"meta.run": "b"}).signals == []


def test_what_both_filters_restrict_alike_stays_a_signal(store):
    """Among lux from 3 on, which both filters choose, the upper end came more often: no filter made that."""
    fill_with(store, 1, 300, lambda at: {"lux": at % 7, "lane": "left"})
    fill_with(store, MIDDLE, 300, lambda at: {"lux": 6 if at % 2 else at % 7, "lane": "left"})
    where = {"and": [{"meta.lux": {"ge": 3}}, {"meta.lane": "left"}]}
    report = compared(store, StoredWindow(end=time_at_second(MIDDLE), where=where), where=where)
    assert signal(report, "meta.lux").alarm
    assert report.parameters["left_out"] == {"meta.lane": FIXED}
    closer = {"and": [where, {"meta.lux": {"lt": 6}}]}
    unlike = compared(store, StoredWindow(end=time_at_second(MIDDLE), where=where), where=closer)
    assert unlike.parameters["left_out"] == {"meta.lane": FIXED, "meta.lux": UNLIKE}
    assert unlike.status == "ok"


def test_a_window_of_a_filter_can_be_sliced_by_what_the_filter_restricts(store):
    for start, shift in ((1, 0.0), (MIDDLE, 0.4)):
        for at, lane in enumerate("abc"):
            fill(store, range(start + at, start + 300, 3), metadata={"lane": lane}, shift=shift * (lane == "b"))  # fmt: skip
    report = compared(store, where={"meta.lane": {"in": ["a", "b"]}})
    assert report.parameters["left_out"] == {"meta.lane": UNLIKE}
    assert [(slice_.by, slice_.value) for slice_ in report.slices] == [("meta.lane", "b")]


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ({"label": "ship"}, ["label", "predictions"]),
        ({"not": {"label": {"name": "ship", "score": {"ge": 0.5}}}}, ["entropy", "label", "margin", "predictions", "score"]),
        ({"box": {"cx": {"lt": 9}, "width": {"ge": 9}, "n": {"ge": 2}}}, ["area", "aspect", "predictions", "x"]),
        ("latency_ms=gt:5 & sig.image.blur=lt:-3", ["image.blur", "latency_ms"]),
        ({"geo": {"near": [51.5, -0.1], "within": "5km"}}, ["meta.latitude", "meta.longitude"]),
        ({"and": [{"ts": {"ge": "-24h"}}, {"version": "2"}, {"model.sha256": "a" * 64}]}, []),
        (None, []),
    ],
)  # fmt: skip
def test_conditions_restrict_the_signals_that_they_are_about(where, names):
    known = [
        "area", "aspect", "entropy", "image.blur", "label", "latency_ms", "margin", "meta.latitude",
        "meta.longitude", "meta.run", "predictions", "score", "width", "x", "y",
    ]  # fmt: skip
    assert filter_reasons(known, None, where) == dict.fromkeys(names, UNLIKE)
    assert filter_reasons(known, where, where) == {}


def test_images_show_each_change_once_beside_usual_images(store):
    draw = np.random.default_rng(4)
    image = InputReference("image", "blake3:" + "9" * 64, 640, 480, "image/jpeg", bytes=9000)
    usual = [answer(second, draw) for second in range(1, 100)]
    changed = [
        answer(second, draw, shift=0.3, label="b", **({"input": image} if second % 2 else {}))
        for second in range(MIDDLE, MIDDLE + 100)
    ]
    store.commit(*usual, *changed)
    report = compared(store)
    assert [images.signal for images in report.changed] == ["label", "score"]
    for images in report.changed:
        assert len(images.current) == len(images.baseline) == 3
        assert len({shown.image for shown in images.current}) == 3
        assert all(int(shown.inference_id) >= id_at_second(MIDDLE) for shown in images.current)
        assert all(int(shown.inference_id) < id_at_second(MIDDLE) for shown in images.baseline)
        times = [[shown.created_at or "" for shown in side] for side in (images.baseline, images.current)]  # fmt: skip
        assert "" < min(times[0]) <= max(times[0]) < min(times[1])
    by_label, by_score = report.changed
    assert {shown.value for shown in by_label.current} == {"b"}
    assert {shown.value for shown in by_label.baseline} == {"a"}
    first, *_, last = by_score.current
    assert first.value > last.value > max(shown.value for shown in by_score.baseline)


def test_images_of_a_changed_embedding_are_those_least_like_the_baseline(store):
    fill(store, range(1, 120))
    fill(store, range(MIDDLE, MIDDLE + 90))
    signals(store, range(1, 120))
    signals(store, range(MIDDLE, MIDDLE + 90), shift=-5.0)
    report = compared(store, signals=["embedding"])
    (images,) = report.changed
    assert [shown.inference_id for shown in images.current] == [
        shown.inference_id for shown in report.unlike[:3]
    ]
    assert report.unlike_share == 1.0
    assert all(shown.value is None for shown in (*images.current, *images.baseline))
    assert all(shown.created_at for shown in (*images.current, *images.baseline))


def test_keys_that_only_name_or_number_images_are_left_out(store):
    for start in (1, MIDDLE):
        fill_with(store, start, 40, lambda at: {"path": f"{at}.jpg", "frame_number": at})
    report = compared(store)
    assert report.status == "ok"
    assert report.parameters["left_out"] == {
        "meta.frame_number": "rises from row to row, as a counter or a clock does",
        "meta.path": "hardly any text is there twice",
    }


def test_a_key_that_fewer_images_have_is_a_change(store):
    fill_with(store, 1, 200, lambda at: {"lane": "left" if at % 2 else "right"})
    fill_with(
        store, MIDDLE, 200, lambda at: {"lane": "left" if at % 2 else "right"} if at % 3 else {}
    )
    report = compared(store)
    presence = signal(report, "meta.lane (is there)")
    assert presence.alarm
    assert presence.histogram.current == [66, 134]
    named = compared(store, signals=["meta.lane (is there)"])
    assert [signal_.name for signal_ in named.signals] == ["meta.lane (is there)"]
    ignored = compared(store, ignore=["meta.lane (is there)"])
    assert "meta.lane" in {signal_.name for signal_ in ignored.signals}
    assert not any(signal_.alarm for signal_ in ignored.signals)
    assert not any(
        "meta.lane" in signal_.name for signal_ in compared(store, ignore=["meta.lane"]).signals
    )


def fill_with(store, start, count, metadata):
    draw = np.random.default_rng(start)
    store.commit(*(answer(at, draw, metadata=metadata(at)) for at in range(start, start + count)))


def test_a_quiet_window_is_insufficient(store):
    fill(store, range(1, 60))
    report = compared(store)
    assert (report.status, report.data.current.n) == ("insufficient", 0)


def test_what_is_wrong_is_named(store):
    with pytest.raises(DriftError, match="the model 'one' has no inferences"):
        compared(store)
    fill(store, range(MIDDLE, MIDDLE + 9))
    with pytest.raises(DriftError, match="has no inferences in the baseline"):
        compared(store)
    fill(store, range(1, 9))
    with pytest.raises(DriftError, match=r"expected a signal among area, .*, got 'scor'"):
        compared(store, signals=["scor"])
    with pytest.raises(DriftError, match="expected the summary of the baseline 'x'"):
        compared(store, baseline="x")


def test_times_are_resolved_to_milliseconds():
    parameters = DriftParameters(
        "one", start="-1s", baseline=StoredWindow(end="2026-01-01T01:00:00+01:00")
    )
    resolved = resolve_times(parameters, 1_000_000_000_500)
    assert (resolved.start, resolved.end) == (
        "1970-01-12T13:46:39.001Z",
        "1970-01-12T13:46:40.001Z",
    )
    assert resolved.baseline == StoredWindow(None, "2026-01-01T00:00:00.000Z")


def test_a_key_that_explains_why_rows_are_alike_is_found_and_named(store):
    draw = np.random.default_rng(0)
    levels = np.zeros(8)
    records = []
    for at in range(1600):
        camera = at % 8
        levels[camera] = 0.9 * levels[camera] + draw.normal(0, 0.05)
        metadata = {"cam": f"cam{camera}", "weather": ["rain", "sun"][int(draw.integers(2))]}
        second = at + 1 if at < 800 else MIDDLE + at
        records.append(answer(second, draw, shift=levels[camera], metadata=metadata))
    store.commit(*records)
    report = compared(store)
    assert report.status != "drift"
    assert report.parameters["source_key"] == "cam"
    assert report.parameters["source_key_reason"].startswith(
        "found: neighbours with the same meta.cam resemble each other (score: correlation 0."
    )
    assert signal(report, "score").units == "blocks"
    assert signal(report, "meta.weather").status == "ok"
