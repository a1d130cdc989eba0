"""Reports as evaluations write them, made up: for the tests of what shows them."""

from pathlib import Path

import msgspec
import numpy as np

from quadriga.monitor.report.schema import (
    Comparison,
    Confusion,
    Data,
    Example,
    Metric,
    Report,
    ReportedModel,
    Slice,
    Window,
    Worst,
)

IMAGES = Path(__file__).parent.parent / "sample_models" / "images"
HOSTILE = '<script>alert("1")</script>\'$x_1$ \\frac & \x00\x1b \u2028 漢字 ' + "long " * 20
LABELS = ["circle", "square", "triangle", "star", "hexagon", HOSTILE, "", "person on a bicycle"]
MODEL = ReportedModel("shapes-detector", "3", "ab" * 32)
OTHER = ReportedModel("shapes-detector", "2", "cd" * 32)


def raw(value):
    return msgspec.Raw(msgspec.json.encode(value))


def image_bytes(place):
    path = IMAGES / place
    return path.read_bytes() if path.is_file() else None


def ap(value, label=None, iou="0.50:0.95", area="all", n=500):
    parameters = {"rule": "COCO", "iou": iou, "area": area, "max_dets": 100, "label": label}
    return around("AP", value, parameters, n)


def around(kind, value, parameters, n=500, width=0.03):
    low, high = max(0, value - width), min(1, value + width * 0.8)
    return Metric(kind, value, parameters, ci95=(low, high), n=n)


def coco_headlines(value):
    areas = [
        ap(value - 0.2, area="small"),
        ap(value, area="medium"),
        ap(value + 0.15, area="large"),
    ]
    recalls = [
        around(
            "AR", value + 0.1, {"rule": "COCO", "iou": "0.50:0.95", "area": area, "max_dets": most}
        )
        for area, most in [
            ("all", 1),
            ("all", 10),
            ("all", 100),
            ("small", 100),
            ("medium", 100),
            ("large", 100),
        ]
    ]
    return [ap(value), ap(value + 0.2, iou=0.5), ap(value + 0.05, iou=0.75), *areas, *recalls]


def pr(label, iou, quality):
    recall = np.linspace(0, 1, 101)
    precision = np.clip(1 - recall ** (6 * quality) * 0.7, 0, 1) * (recall < 0.6 + 0.4 * quality)
    return {
        "label": label,
        "iou": iou,
        "recall": recall.tolist(),
        "precision": precision.tolist(),
        "score": (1 - recall).tolist(),
    }


def reliability(label=None):
    edges = np.linspace(0, 1, 16)
    middle = (edges[1:] + edges[:-1]) / 2
    count = (400 * np.abs(middle - 0.5) ** 2 * 10).astype(int)
    count[7] = 0
    empty = count == 0
    return {
        "label": label,
        "edges": edges.tolist(),
        "confidence": [
            None if no else value for value, no in zip(middle.tolist(), empty, strict=True)
        ],
        "accuracy": [
            None if no else value for value, no in zip((middle**1.4).tolist(), empty, strict=True)
        ],
        "count": count.tolist(),
    }


def scores():
    edges = np.linspace(0, 1, 21)
    middle = (edges[1:] + edges[:-1]) / 2
    return {
        "label": None,
        "edges": edges.tolist(),
        "right": (3000 * middle**3).astype(int).tolist(),
        "wrong": (800 * (1 - middle) ** 2).astype(int).tolist(),
    }


def confusion(labels, seed=0, *, background=True, scale=1):
    source = np.random.default_rng(seed)
    matrix = source.poisson(2, (len(labels), len(labels))) * (
        source.random((len(labels),) * 2) < 0.4
    )
    matrix += np.diag(source.integers(20, 900, len(labels)))
    matrix *= scale
    return Confusion(
        labels=labels,
        matrix=matrix.tolist(),
        hallucinations={label: int(source.integers(0, 40)) for label in labels}
        if background
        else {},
        misses={label: int(source.integers(0, 60)) for label in labels} if background else {},
        examples=[
            Example(labels[0], labels[1], "101", ground_truth_id="0", prediction_id="2"),
            Example(None, labels[1], "102", ground_truth_id=None, prediction_id="1"),
            Example(labels[0], None, HOSTILE, ground_truth_id="3", prediction_id=None),
        ],
        parameters={"iou": 0.5, "score": 0.3},
    )


def slices(headlines):
    values = ["north", "south", HOSTILE, None]
    return [
        Slice("meta.camera_id", value, 200 - 40 * at, headlines(0.6 - 0.07 * at))
        for at, value in enumerate(values)
    ] + [
        Slice("hour", f"{hour:02}", 12 + hour, headlines(0.3 + hour % 7 / 20)) for hour in range(24)
    ]


def comparison(headlines):
    theirs = headlines(0.52)
    differences = [
        Metric(
            value.type,
            round(0.01 * (at - 3), 3),
            value.parameters,
            ci95=(0.01 * (at - 5), 0.01 * (at - 1)),
            n=value.n,
        )
        for at, value in enumerate(theirs)
    ]
    differences[4] = Metric(theirs[4].type, None, theirs[4].parameters)
    return Comparison(
        OTHER, 480, theirs, differences=differences[:-1], excluded={"not_answered": 20}
    )


def box(label, *corners, score=None):
    xmin, ymin, xmax, ymax = corners
    fields = {"label": label, "xmin": xmin, "ymin": ymin, "xmax": xmax, "ymax": ymax}
    return fields if score is None else {**fields, "score": score}


def worst_of_boxes():
    truths = [box("circle", 20, 30, 90, 95), box("square", 120, 60, 200, 140)]
    predictions = [
        box("circle", 24, 28, 95, 90, score=0.93),
        box(HOSTILE, 150, 20, 310, 235, score=0.71),
        box("star", 1, 2, 9, 9, score=0.05),
    ]
    picture = "detection/scene_01.jpg"
    return [
        Worst(
            inference_id="101",
            reason="miss",
            score=3,
            image=picture,
            width=None,
            height=None,
            predictions=raw(predictions),
            ground_truth=raw(truths),
        ),
        Worst(
            inference_id="102",
            reason="miss",
            score=2,
            image="nowhere.jpg",
            width=320,
            height=240,
            predictions=raw(predictions),
            ground_truth=raw(truths),
        ),
        Worst(
            inference_id="101",
            reason="false_positive",
            score=0.71,
            image=picture,
            width=None,
            height=None,
            predictions=raw(predictions),
            ground_truth=raw(truths),
        ),
        Worst(
            inference_id=HOSTILE,
            reason="wrong_label",
            score=0.5,
            image=None,
            width=None,
            height=None,
            predictions=[],
            ground_truth=None,
        ),
        Worst(
            inference_id="103",
            reason="wrong_label",
            score=0.4,
            image=picture,
            width=320,
            height=240,
            predictions=raw({"broken": 1}),
            ground_truth=raw([]),
        ),
    ]


def detection():
    return Report(
        "evaluation",
        "OBJECT_DETECTION",
        Data(
            Window(
                "2026-01-31T00:00:00.000Z",
                "2026-02-06T23:59:59.999Z",
                500,
                n_eff=None,
                filter={"meta.camera_id": HOSTILE},
            ),
            excluded={"no_truth": 12, "unseen_label": 3},
        ),
        id="0001",
        created="2026-02-07T08:00:00.000Z",
        model=MODEL,
        parameters={"rule": "COCO", "resamples": 200, "seed": 0, HOSTILE: HOSTILE},
        metrics=[
            *coco_headlines(0.55),
            *(ap(0.9 - 0.1 * at, label) for at, label in enumerate(LABELS[:-1])),
            Metric("AP", None, ap(0, LABELS[-1]).parameters),
            *(ap(0.95 - 0.1 * at, label, iou=0.5) for at, label in enumerate(LABELS)),
            Metric("F1", 0.71, {"score": 0.5, "iou": 0.5, "label": None}),
        ],
        curves={
            "pr": [
                pr(label, iou, quality)
                for iou in (0.5, 0.75)
                for label, quality in [
                    (None, 0.6),
                    *zip(LABELS, np.linspace(0.9, 0.2, 8), strict=True),
                ]
            ],
            "reliability": [reliability()],
            "scores": [scores()],
        },
        confusion=confusion(LABELS),
        errors_tide={
            "Cls": 0.041,
            "Loc": 0.082,
            "Both": 0.003,
            "Dupe": 0.0,
            "Bkg": 0.02,
            "Miss": 0.11,
            "FalsePos": 0.06,
            "FalseNeg": 0.19,
        },
        slices=slices(coco_headlines),
        worst=worst_of_boxes(),
        comparisons=[comparison(coco_headlines)],
        provenance={"code": "0.1.0", "libs": {"numpy": "2.4", "scipy": "1.17"}, "duration_s": 1.25},
    )


def oriented():
    turned = {"label": "ship", "score": 0.9, "cx": 0.5, "cy": 0.5, "w": 0.4, "h": 0.1, "r": 0.6}
    truth = {"label": "ship", "corners": [[100, 60], [220, 150], [200, 180], [80, 90]]}
    picture = "oriented/scene_01.jpg"
    return Report(
        "evaluation",
        "ORIENTED_OBJECT_DETECTION",
        Data(Window(n=3)),
        model=MODEL,
        metrics=[ap(0.5), Metric("AP", 0.6, {"rule": "DOTA VOC07", "iou": 0.5, "label": None})],
        worst=[
            Worst(
                inference_id="1",
                reason="low_overlap",
                score=0.4,
                image=picture,
                width=None,
                height=None,
                predictions=raw([turned]),
                ground_truth=raw([truth]),
            )
        ],
    )


def segmentation():
    def mean(value):
        return [
            around("mIOU", value, {}),
            around("mDice", value + 0.1, {}),
            around("PixelAccuracy", 0.93, {}),
        ]

    ring = [{"x": x, "y": y} for x, y in [(30, 30), (120, 25), (150, 110), (60, 140)]]
    hole = [{"x": x, "y": y} for x, y in [(70, 60), (100, 60), (100, 90), (70, 90)]]
    picture = "segmentation/scene_01.jpg"
    predictions = [{"label": "circle", "score": 0.8, "contour": [ring, hole]}]
    truth = [{"label": "circle", "contour": [ring]}]
    return Report(
        "evaluation",
        "IMAGE_SEGMENTATION",
        Data(Window(n=120)),
        model=MODEL,
        metrics=[
            *mean(0.71),
            *(
                Metric("IOU", 0.9 - 0.1 * at, {"label": label})
                for at, label in enumerate(LABELS[:5])
            ),
            Metric("IOU", None, {"label": "absent"}),
        ],
        confusion=confusion(LABELS[:5], 3),
        confusion_pixels=confusion(LABELS[:5], 4, scale=4321),
        slices=slices(mean),
        worst=[
            Worst(
                inference_id="1",
                reason="low_overlap",
                score=0.6,
                image=picture,
                width=None,
                height=None,
                predictions=raw(predictions),
                ground_truth=raw(truth),
            )
        ],
    )


def classification(labels=40):
    names = [f"class {number}" for number in range(labels)]

    def headlines(value):
        return [around("Accuracy", value, {}), around("TopKAccuracy", value + 0.1, {"k": 5})]

    rate = np.linspace(0, 1, 50)
    picture = "classification/scene_01.jpg"
    answers = [{"label": name, "score": 0.5 / (at + 1)} for at, name in enumerate(names[:9])]
    return Report(
        "evaluation",
        "IMAGE_CLASSIFICATION",
        Data(Window(n=4000)),
        model=MODEL,
        metrics=[
            *headlines(0.8),
            Metric("ECE", 0.031, {"bins": 15, "rule": "equal width"}),
            *(Metric("F1", 1 / (1 + at / 20), {"label": name}) for at, name in enumerate(names)),
            *(Metric("Precision", 0.5, {"label": name}) for name in names),
        ],
        curves={
            "pr": [
                {**pr(name, None, 0.5 + at / 100), "iou": None} for at, name in enumerate(names)
            ],
            "roc": [
                {
                    "label": name,
                    "false_positive_rate": rate.tolist(),
                    "true_positive_rate": (rate ** (0.1 + at / 60)).tolist(),
                    "threshold": [None, *(1 - rate[1:]).tolist()],
                }
                for at, name in enumerate(names)
            ],
            "reliability": [reliability()],
            "scores": [scores()],
        },
        confusion=confusion(names, 1, background=False),
        worst=[
            Worst(
                inference_id="7",
                reason="wrong_label",
                score=0.97,
                image=picture,
                width=None,
                height=None,
                predictions=raw(answers),
                ground_truth=raw([{"label": "class 3"}]),
            )
        ],
    )


def text():
    def headlines(value):
        return [
            around(kind, value, {}) for kind in ("ExactMatch", "VQAAccuracy", "ANLS", "TokenF1")
        ] + [Metric("BLEU", 31.4, {}, ci95=(28.1, 34.9), n=90)]

    predictions = [
        {"prompt": "What is it?", "answer": HOSTILE},
        {"prompt": "How many?", "answer": "two"},
    ]
    true = [{"prompt": "What is it?", "answers": ["a circle", "one circle"]}, {"answer": "2"}]
    return Report(
        "evaluation",
        "IMAGE_TEXT_TO_TEXT",
        Data(Window(n=90)),
        model=MODEL,
        metrics=headlines(0.6),
        worst=[
            Worst(
                inference_id="9",
                reason="wrong_answer",
                score=1,
                image="gone",
                width=None,
                height=None,
                predictions=raw(predictions),
                ground_truth=raw(true),
            )
        ],
        comparisons=[comparison(headlines)],
    )


def empty():
    return Report("evaluation", "OBJECT_DETECTION", Data(Window()), status="insufficient")


def undefined():
    """Give a report in which every number is undefined."""
    report = detection()
    nothing = [
        Metric(metric.type, None, metric.parameters, (None, None)) for metric in report.metrics
    ]
    emptied = [
        {
            key: [None] * len(value) if isinstance(value, list) else value
            for key, value in curve.items()
        }
        for curve in report.curves["pr"]
    ]
    return msgspec.structs.replace(
        report,
        metrics=nothing,
        curves={
            "pr": emptied,
            "roc": [],
            "reliability": [{"label": None}],
            "scores": [{"label": None}],
        },
        confusion=Confusion(["a"], [[0]]),
        errors_tide=dict.fromkeys(report.errors_tide),
        slices=[Slice(metric.by, metric.value, metric.n, nothing[:2]) for metric in report.slices],
        worst=[],
        comparisons=[Comparison(OTHER, 0, nothing[:2], nothing[:2])],
    )


EVALUATIONS = {
    make_report.__name__: make_report
    for make_report in (detection, oriented, segmentation, classification, text, empty, undefined)
}
