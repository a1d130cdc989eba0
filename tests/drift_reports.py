"""Made-up drift reports, and all reports together, for tests of pages and texts."""

import msgspec
import numpy as np

from quadriga.monitor.report.schema import (
    ChangedImage,
    ChangedImages,
    Data,
    Divergence,
    Effect,
    Histogram,
    Metric,
    Neighbour,
    PastSignal,
    PastWindow,
    Report,
    Signal,
    Slice,
    Unlike,
    Window,
)
from tests.reports import EVALUATIONS, HOSTILE, MODEL, box, raw


def drift(signal_count=30):
    """Return a report on many signals, with those in alarm last."""
    draw = np.random.default_rng(0)
    signals = [
        numeric(f"signal {at}", draw, shift=at / signal_count, alarm=at > signal_count - 4)
        for at in range(signal_count)
    ]
    signals += [
        categorical("label", [f"label {at}" for at in range(40)], draw),
        categorical(HOSTILE, [HOSTILE, "", "a", "$b$"], draw, new_labels=[HOSTILE, "$b$"]),
        numeric("constant", draw, edges=[0.5, 1.5], counts=([50], [50])),
        Signal("embedding", "embedding", "energy", effect=Effect("energy_coefficient", 2e-5, 5e-4), n=(500, 400), p=0.4, p_adjusted=0.9, status="low_power", n_eff=(90.5, 80.25)),
        Signal("gone", "numeric", "ks", effect=Effect("wasserstein_iqr", None, 0.0), n=(500, 0), status="insufficient", reason=f"expected {HOSTILE}"),
    ]  # fmt: skip
    return Report(
        "drift",
        "",
        Data(Window(n=400, n_eff=80.25), Window("2026-01-31T00:00:00.000Z", None, 500)),
        status="drift",
        parameters={
            "baseline": f"/data/{HOSTILE}.csv",
            "current": "b.csv",
            "left_out": {HOSTILE: HOSTILE},
            "alpha": 0.01,
        },
        signals=signals,
    )


def numeric(name, draw, *, shift=0.0, alarm=False, edges=None, counts=None):
    edges = edges or [at / 10 for at in range(-20, 21)]
    if counts is None:
        values = draw.normal(size=500), draw.normal(shift, size=400)
        counts = [np.histogram(side, edges)[0].tolist() for side in values]
    effect = Effect("wasserstein_iqr", shift / 1.35, 0.1)
    return Signal(
        name=name,
        kind="numeric",
        test="ks",
        effect=effect,
        n=(500, 400),
        statistic=shift / 2,
        p=1e-9,
        p_adjusted=2e-9 if alarm else 0.3,
        alarm=alarm,
        n_eff=(500, 400),
        histogram=Histogram(edges, *counts),
        psi=Divergence(shift**2, 0.04),
        js=Divergence(shift / 4, 0.07),
    )


def categorical(name, labels, draw, new_labels=()):
    counts = [draw.integers(0, 50, len(labels)).tolist() for _ in range(2)]
    effect = Effect("total_variation", 0.25, 0.05)
    return Signal(
        name=name,
        kind="categorical",
        test="chi_square",
        effect=effect,
        n=(500, 400),
        statistic=30.0,
        p=1e-5,
        p_adjusted=1e-4,
        alarm=True,
        status="low_power",
        n_eff=(95.5, 88),
        units="blocks",
        histogram=Histogram(labels, *counts),
        new_labels=list(new_labels),
    )


def watched(windows=30, signals=4, *, history=True):
    """Return a report on stored inferences with a history, whose signals in alarm moved in the latest windows."""
    report = drift(signals)
    places = ("camera \N{LATIN SMALL LETTER E WITH GRAVE}", HOSTILE)
    slices = [
        Slice("meta.camera_id", place, 40 + at, [
            Metric("wasserstein_iqr", 1.25 - at, {"signal": f"signal {signals - 1}", "p_adjusted": 1e-7, "other": 0.04}, n=40),
            Metric("total_variation", 0.3, {"signal": HOSTILE, "p_adjusted": 0.01, "other": None}, n=38),
        ])
        for at, place in enumerate(places)
    ]  # fmt: skip
    estimates = [
        Metric("EstimatedAccuracy", value, {"method": method, "valid": f"valid unless {HOSTILE}."}, ci95=ci95, n=400)
        for method, value, ci95 in (("atc_max_confidence", 0.871, (0.84, 0.902)), ("cbpe", None, None))
    ]  # fmt: skip
    return msgspec.structs.replace(
        report,
        task="OBJECT_DETECTION",
        model=MODEL,
        parameters={"alpha": 0.05, "baseline": "default"},
        slices=slices,
        metrics=estimates,
        unlike=least_like(),
        unlike_share=0.18,
        changed=changed([signal.name for signal in report.signals if signal.alarm]),
        history=past(report, windows) if history else [],
    )


def past(report, window_count):
    """Return windows of an hour, of which some are missing and one has too few images."""
    draw = np.random.default_rng(1)
    windows = []
    for at in range(window_count):
        hour = at + 3 * (at > window_count // 3)
        ends = [
            f"2026-01-{3 + limit_h // 24:02}T{limit_h % 24:02}:00:00.000Z"
            for limit_h in (hour, hour + 1)
        ]
        few = at == window_count // 2
        signals = {}
        for signal in report.signals:
            moved = max(0, at / window_count - 0.7) * signal.alarm
            alarm = moved > 0.1 and not few
            p = 10 ** -(40 * moved) * float(draw.uniform(0.1, 1))
            signals[signal.name] = PastSignal(None if few else p, None if few else float(moved + draw.exponential(0.03)), alarm, "insufficient" if few else "ok")  # fmt: skip
        if at < window_count // 4:
            del signals[report.signals[0].name]
        drifted = any(signal.alarm for signal in signals.values())
        status = "insufficient" if few else "drift" if drifted else "ok"
        n = 20 if few else 400
        windows.append(
            PastWindow(*ends, n=n, status=status, report=f"report-{at}", signals=signals)
        )
    return windows


def changed(names):
    """Return images of signals with an alarm; one is not kept."""
    scenes = [f"detection/scene_{at:02}.jpg" for at in range(1, 6)] + ["gone"]
    shown = [
        ChangedImage(f"8{at}", value, scene, predictions=raw([box("circle", 24, 28, 95, 90, score=0.9)]))
        for at, (scene, value) in enumerate(zip(scenes, (17.5, 18.25, HOSTILE, None, 52, 53), strict=True))
    ]  # fmt: skip
    return [ChangedImages(name, shown[:3], shown[3:]) for name in names]


def least_like():
    scenes = [f"detection/scene_{at:02}.jpg" for at in range(1, 5)]
    encoded = raw(
        [box("circle", 24, 28, 95, 90, score=0.93), box(HOSTILE, 150, 20, 310, 235, score=0.71)]
    )
    near = [
        Neighbour(f"7{at}", 0.125 + at / 10, scene, predictions=encoded)
        for at, scene in enumerate(scenes[1:])
    ]
    return [
        Unlike("201", 0.0001, scenes[0], predictions=encoded, nearest=near),
        Unlike("202", 0.02, "nowhere.jpg", width=320, height=240, predictions=encoded, nearest=[*near[:1], Neighbour(HOSTILE, 0.5)]),
        Unlike(HOSTILE, 0.04, predictions=raw([{"label": "ship", "score": 0.5}])),
    ]  # fmt: skip


REPORTS = EVALUATIONS | {make_report.__name__: make_report for make_report in (drift, watched)}
