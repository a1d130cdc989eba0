"""What changed, in words: the headline, what to look at, and a line for each signal."""

import re

import pytest
from msgspec.structs import replace

from quadriga.monitor.report.checks import render_markdown
from quadriga.monitor.report.drift_texts import (
    began_text,
    both_values,
    changes,
    explanation,
    headline,
    missing_text,
    readable_signal,
    rows_text,
    signals_in_full,
)
from quadriga.monitor.report.page import render_page
from quadriga.monitor.report.schema import (
    Begin,
    ChangedImage,
    ChangedImages,
    Data,
    Effect,
    Histogram,
    Level,
    Metric,
    Report,
    Signal,
    Slice,
    Window,
)
from quadriga.quoting import one_line
from tests.reports import HOSTILE, image_bytes


def number(name, before, after, *, spread=(2.0, 2.0), alarm=True, ratio=5.0):
    levels = [
        Level(mean, mean - width / 2, mean + width / 2)
        for mean, width in zip((before, after), spread, strict=True)
    ]
    shift = max(abs(after - before), abs(spread[1] - spread[0]) / 4)
    return Signal(
        name, "numeric", "ks", Effect("wasserstein_iqr", ratio * 0.1, 0.1), (500, 400),
        p_adjusted=1e-9, alarm=alarm, n_eff=(500, 400),
        before=levels[0], after=levels[1], shift=shift, min_shift=0.01,
    )  # fmt: skip


def labels(name, baseline, current, *, alarm=True):
    names = sorted(baseline)
    histogram = Histogram(names, [baseline[key] for key in names], [current[key] for key in names])
    return Signal(
        name, "categorical", "chi_square", Effect("total_variation", 0.2, 0.05), (500, 400),
        p_adjusted=0.002, alarm=alarm, histogram=histogram,
    )  # fmt: skip


EMBEDDING = Signal(
    "embedding", "embedding", "energy", Effect("energy_coefficient", 0.5, 0.0005), (500, 400),
    p_adjusted=0.001, alarm=True,
)  # fmt: skip


def report(*signals, **fields):
    status = "drift" if any(signal.alarm for signal in signals) else "ok"
    data = Data(Window(n=400), Window(n=500))
    return replace(Report("drift", "", data, status=status, signals=list(signals)), **fields)


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        (number("image.brightness", 52.3, 18.1), "brightness from 52 to 18 (darker)"),
        (number("predictions", 2.93, 1.41), "objects an image from 2.9 to 1.4 (fewer)"),
        (number("meta.altitude", -120.0, 80.0), "altitude from \N{MINUS SIGN}120 to 80 (higher)"),
        (number("score", 0.9, 0.9, spread=(0.1, 0.4)), "spread of score from 0.10 to 0.40 (wider)"),
        (number("score", 0.9, 0.9, spread=(0.4, 0.1)), "spread of score from 0.40 to 0.10 (narrower)"),
        (labels("label", {"cat": 50, "dog": 50, "emu": 0}, {"cat": 20, "dog": 75, "emu": 5}), "share of the label cat from 50 % to 20 % (fewer)"),
        (labels("meta.lane", {"a": 100, "b": 0}, {"a": 97, "b": 3}), "share of the lane a from 100 % to 97 % (fewer)"),
        (labels("meta.lane (is there)", {"no": 0, "yes": 90}, {"no": 30, "yes": 60}), "share of images with meta.lane from 100 % to 67 % (fewer)"),
        (EMBEDDING, "what the images show, as the model sees it"),
    ],
)  # fmt: skip
def test_a_change_says_from_what_to_what(signal, expected):
    (change,) = changes(report(signal))
    assert change.sentence_part == expected
    assert headline(report(signal)) == f"Changed: {expected}."


def test_the_headline_names_three_changes_and_where():
    where = Slice(
        "meta.camera_id", "east", 40, [Metric("wasserstein_iqr", 1.0, {"signal": "score"})]
    )
    signals = [
        EMBEDDING,
        number("aspect", 1.0, 2.0, ratio=50),
        number("score", 0.9, 0.6, ratio=9),
        number("image.brightness", 52.0, 18.0, ratio=12),
        number("latency_ms", 3.0, 4.0, alarm=False),
    ]
    text = headline(report(*signals, slices=[where], unlike_share=0.18))
    assert text == (
        "Changed: brightness from 52 to 18 (darker), score from 0.90 to 0.60 (lower) and share of images unlike the "
        "baseline from 5 % to 18 % (more), most where camera_id is east."
    )


def test_the_headline_names_causes_first_and_keys_that_only_tell_the_windows_apart_last():
    signals = [
        labels("meta.phase", {"before": 400, "after": 0}, {"before": 0, "after": 500}),
        labels("meta.firmware", {"1.0": 400, "1.1": 10}, {"1.0": 3, "1.1": 500}),
        number("score", 0.9, 0.6, ratio=90),
        number("image.brightness", 52.0, 18.0, ratio=3),
        number("aspect", 1.0, 2.0, ratio=50),
    ]
    names = [change.signal for change in changes(report(*signals))]
    assert names == ["image.brightness", "score", "meta.firmware", "aspect", "meta.phase"]
    alone = headline(report(signals[0]))
    assert alone == "Changed: share of the phase after from 0 % to 100 % (more)."


def test_a_cause_in_the_images_is_named_before_a_detail_that_alone_raised_an_alarm():
    blur, faster = few("image.blur", 3), number("latency_ms", 20.0, 9.0)
    made = report(faster, blur, few("meta.lux", 9))
    assert headline(made) == (
        "Moved, with too few independent images to judge: blur. Changed: latency in milliseconds from 20 to 9 (faster)."
    )
    shown = [signal.name for signal in signals_in_full(made)]
    assert shown == ["meta.lux", "image.blur", "latency_ms"]
    decided = report(faster, number("score", 0.9, 0.6), blur)
    assert headline(decided).startswith("Changed: score")


def test_blur_is_said_from_0_to_100_and_a_column_of_a_file_as_it_is():
    blur = replace(
        number("image.blur", -3.2, -1.4),
        began=Begin(5, None, 40, 1.0, before=-3.2, after=-1.4),
        histogram=Histogram([-6.0, -3.0, 0.0], [30, 10], [10, 30]),
    )
    assert headline(report(replace(blur, began=None))) == "Changed: blur from 20 to 50 (softer)."
    assert began_text(readable_signal(blur, report(blur))).endswith(", 20 to 50")
    assert both_values(blur, report(blur))[3:5] == ("20", "50")
    page = render_page(report(blur), image_bytes)
    assert re.search(r">100</text>", page)
    flat = replace(blur, histogram=Histogram([0.0, 0.5, 1.0], [30, 10], [10, 30]))
    assert "nan" not in render_page(report(flat), image_bytes)
    of_file = report(blur, parameters={"current": "a.csv", "baseline": "b.csv"})
    assert "from \N{MINUS SIGN}3.2 to \N{MINUS SIGN}1.4" in headline(
        replace(of_file, signals=[replace(blur, began=None)])
    )


@pytest.mark.parametrize(
    ("n", "window", "baseline", "expected"),
    [
        ((500, 400), 400, 500, ""),
        ((500, 352), 400, 500, "0 % / 12 %"),
        ((0, 400), 400, 500, "100 % / 0 %"),
        ((600, 352), 400, 500, "0 % / 12 %"),  # more values than images
        ((500, 0), 0, 500, ""),
    ],
)
def test_the_share_of_missing_values_stands_beside_both_values(n, window, baseline, expected):
    signal = replace(number("score", 0.9, 0.6), n=n)
    made = report(signal, data=Data(Window(n=window), Window(n=baseline)))
    assert missing_text(signal, made) == expected
    assert missing_text(signal, replace(made, data=Data(Window(n=window)))) == ""
    page = render_page(made, lambda _: None)
    row = page.partition(">Signals</h2>")[2]
    assert re.findall(r'data-head="(?:Before|After|Missing)">([^<]*)', row) == ["0.90", "0.60", expected or "\N{EN DASH}"]  # fmt: skip


def test_a_signal_that_spread_shows_its_means_in_the_table():
    signal = number("score", 0.9, 0.9, spread=(0.1, 0.4))
    values = both_values(signal, report(signal))
    assert (values.title, values.before, values.after) == ("", "0.900", "0.900")
    assert both_values(EMBEDDING, report(EMBEDDING)).is_known is False


def test_what_moved_far_and_cannot_be_judged_stands_among_what_changed():
    open_ = replace(few("score", 18), reason="30 <b>cameras</b>")
    page = render_page(report(open_, number("width", 1, 1, alarm=False, ratio=0.1)), lambda _: None)
    section = page.partition(">What moved</h2>")[2].partition("</section>")[0]
    assert "<h3>score</h3>" in section
    assert "moved, too few" in section
    assert ", 30 &lt;b&gt;cameras" in section
    assert "width</h3>" not in section


def in_slice(by, value):
    return Slice(by, value, 40, [Metric("wasserstein_iqr", 1.0, {"signal": "score"})])


@pytest.mark.parametrize(
    ("slices", "place"),
    [
        ([], ""),
        ([in_slice("meta.camera", "east")], ", most where camera is east"),
        ([in_slice("meta.camera", "east"), in_slice("meta.light", "day")], ", most where camera is east"),
        ([in_slice("meta.camera", c) for c in "ab"], ", most where camera is a and b"),
        ([in_slice("meta.camera", c) for c in "abc"], ", most where camera is a, b and c"),
        ([in_slice("meta.camera", c) for c in "abcde"], ", most where camera is a, b, c and 2 more"),
        ([in_slice("label", HOSTILE)], f", most where label is {one_line(HOSTILE)}"),
    ],
)  # fmt: skip
def test_the_headline_says_where_whether_there_is_an_alarm_or_too_few_images(slices, place):
    changed = number("score", 0.9, 0.6)
    undecided = replace(changed, alarm=False, status="insufficient")
    quiet = number("score", 0.9, 0.9, alarm=False, ratio=0.1)
    may_be_chance = replace(changed, alarm=False)
    chance = place.replace(", most", " over all images, but not")
    assert headline(report(may_be_chance, slices=slices)) == (
        f"No alarm; score moved, which may be chance{chance}."
    )
    other = replace(may_be_chance, name="meta.lux")
    assert headline(report(other, slices=slices)) == "No alarm; lux moved, which may be chance."
    both = f"; score moved, which may be chance{chance}; lux moved, which may be chance."
    if place:
        assert headline(report(may_be_chance, other, slices=slices)) == f"No alarm{both}"
    lux_changed = replace(changed, name="meta.lux")
    assert headline(report(lux_changed, slices=slices)) == "Changed: lux from 0.90 to 0.60 (lower)."
    also = f" Also score{place.replace(', most', '')}." if place else ""
    assert headline(report(lux_changed, may_be_chance, slices=slices)) == (
        f"Changed: lux from 0.90 to 0.60 (lower).{also}"
    )
    assert headline(report(changed, slices=slices)) == (
        f"Changed: score from 0.90 to 0.60 (lower){place}."
    )
    assert headline(report(undecided, slices=slices)) == (
        f"No alarm; too few independent images to say anything about score, which moved{place}."
    )
    assert headline(report(quiet, slices=slices)) == "Nothing changed."


def changed_inside(value, *metrics):
    parameters = {"at": "2026-03-01T12:24:05.000Z", "before": 53.0, "after": 25.0}
    made = [Metric("wasserstein_iqr", 1.0, parameters | more, n=20) for more in metrics]
    return Slice("meta.camera", value, 51, made)


def test_a_change_within_one_camera_is_named_first_with_its_time_and_its_images():
    quiet = [number(name, 0.9, 0.9, alarm=False, ratio=0.1) for name in ("score", "image.brightness", "latency_ms")]  # fmt: skip
    label = {"signal": "label", "label": "<van>", "before": 0.0, "after": 0.985}
    blur = {"signal": "image.blur", "before": -3.2, "after": -1.4}
    quiet += [number("image.blur", -3.0, -3.0, alarm=False, ratio=0.1)]
    quiet += [replace(labels("label", {"a": 9, "b": 9}, {"a": 9, "b": 9}), alarm=False)]
    east = changed_inside(
        "east", label, {"signal": "latency_ms"}, {"signal": "image.brightness"}, blur
    )
    sentence = (
        "Where camera is east from 2026-03-01 12:24 UTC on (20 images): brightness from 53 to 25 (darker), blur from 20 to "
        "50 (softer) and share of the label <van> from 0 % to 98 % (more)."
    )
    made = report(*quiet, slices=[east])
    assert headline(made) == f"{sentence} No alarm over all images."
    assert headline(replace(made, status="insufficient")) == headline(made)
    faster = number("latency_ms", 20.0, 9.0)
    assert headline(report(*quiet[:2], *quiet[3:], faster, slices=[east])) == (
        f"{sentence} Over all images: latency in milliseconds (faster)."
    )
    both = [changed_inside(value, {"signal": "image.brightness"}) for value in ("east", "west")]
    assert headline(report(*quiet, slices=both)) == (
        "Where camera is east and west from 2026-03-01 12:24 UTC on: brightness from 53 to 25 (darker). No alarm over all images."
    )
    slow = changed_inside("east", {"signal": "latency_ms"})
    assert headline(report(*quiet[:4], slices=[slow])) == "Nothing changed."


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["image.blur", "score"], "The images themselves changed, and so did the answers"),
        (["image.blur"], "The images themselves changed, the answers did not"),
        (["score", "meta.x"], "The images are as usual but the answers changed"),
        (["width", "score"], "The files of the images changed"),
        (["latency_ms"], "look at the server"),
        (["meta.x"], "look at who sends them"),
    ],
)
def test_what_to_look_at_first(names, expected):
    assert expected in explanation(report(*(number(name, 1.0, 5.0) for name in names)))


@pytest.mark.parametrize(
    ("names", "moved", "expected"),
    [
        (["score"], ["image.blur"], "it cannot be said whether the images did: look at both"),
        (["score"], ["bytes_per_pixel"], "it cannot be said whether the images did: look at both"),
        (["score"], ["meta.firmware"], "The images are as usual but the answers changed"),
        (["image.blur"], ["score"], "it cannot be said whether the answers did"),
        (["meta.x"], ["image.blur"], "it cannot be said whether the images did: look at the signals"),
        (["meta.x"], ["area"], "it cannot be said whether the answers did: look at the signals"),
        (["latency_ms"], ["image.dark", "score"], "The time that answers take changed, and it cannot be said whether the images and answers did"),
    ],
)  # fmt: skip
def test_what_moved_without_an_alarm_is_not_as_usual(names, moved, expected):
    alarms = [number(name, 1.0, 5.0) for name in names]
    for status in ("insufficient", "ok", "low_power"):
        open_signals = [replace(number(name, 1.0, 5.0), alarm=False, status=status) for name in moved]  # fmt: skip
        said = explanation(report(*alarms, *open_signals))
        assert expected in said
        assert ("as usual" in said) == ("as usual" in expected)


def test_without_a_change_nothing_is_to_look_at():
    quiet = report(number("score", 0.9, 0.9, alarm=False, ratio=0.9))
    assert headline(quiet) == "Nothing changed."
    assert (
        explanation(quiet) == "No drift in 1 signal. Compared: 400 images with 500 of the baseline."
    )
    few = report(status="insufficient")
    assert headline(few) == "There are too few images to say whether anything changed."


def test_the_first_screen_shows_the_changes_and_their_images():
    def images(prefix, value):
        return [
            ChangedImage(f"{prefix}{at}", value, f"detection/scene_0{at}.jpg") for at in (1, 2, 3)
        ]

    changed = ChangedImages("image.brightness", images("7", 17.5), images("3", 52.25))
    page = render_page(
        report(
            number("image.brightness", 52.0, 18.0), number(HOSTILE, 1.0, 2.0), changed=[changed]
        ),
        image_bytes,
    )
    head, _, after = page.partition(">What changed</h2>")
    section = after.partition("</section>")[0]
    assert "<h1>Changed: brightness from 52 to 18 (darker) and &lt;script&gt;" in head
    assert section.count("data:image/jpeg") == 6
    assert section.count("now: 17.5") == section.count("usual: 52.2") == 3
    assert section.index("now: 17.5") < section.index("usual: 52.2")


def few(name, ratio):
    return replace(
        number(name, 1.0, 2.0, alarm=False, ratio=ratio), status="insufficient", n_eff=(60, 65)
    )


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        ([number("score", 1, 1, alarm=False, ratio=0.1)], "Nothing changed."),
        (
            [
                number("width", 1, 1, alarm=False, ratio=0.1),
                few("score", 3.3),
                few("meta.firmware", 4),
            ],
            "No alarm; too few independent images to say anything about firmware and score, which moved.",
        ),
        ([number("width", 1, 1, alarm=False, ratio=0.1), few("score", 0.9)], "Nothing changed."),
        (
            [number("x", 1, 1, alarm=False, ratio=2.0)],
            "No alarm; place of objects from left to right moved, which may be chance.",
        ),
        (
            [few("score", 2), *(number(f"meta.{a}", 1, 1, alarm=False, ratio=4.7) for a in "abcd")],
            "No alarm; too few independent images to say anything about score, which moved; a, b, c and 1 more moved, which may be chance.",
        ),
        (
            [few(f"meta.{letter}", 2) for letter in "abcdefgh"],
            "No alarm; too few independent images to say anything about a, b, c, d, e, f and 2 more, which moved.",
        ),
    ],
)
def test_the_headline_names_what_moved_without_enough_images_to_judge_it(signals, expected) -> None:
    report = Report("drift", "", Data(Window(n=5), Window(n=5)), signals=signals)
    assert headline(report) == expected
    page, lines = render_page(report, lambda _: None), render_markdown(report, [])
    for text in (page, lines):
        assert ("which moved" in text) is ("which moved" in expected)
        assert ("may be chance" in text) is ("may be chance" in expected)
    assert ("<h1>Nothing changed.</h1>" in page) is (expected == "Nothing changed.")


def test_a_row_says_how_many_independent_rows_it_has() -> None:
    assert rows_text(few("score", 2)) == "500 / 400 rows, 60 / 65 independent"
