"""preprocessor_config.json: the forms that exist, and those that are refused."""

import pytest

from quadriga.engine.models.recognition.sidecars import input_from_preprocessor, input_from_timm
from quadriga.engine.models.runners.session import LoadError

HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
SQUARE = {"size": {"height": 224, "width": 224}}

GEOMETRY = [
    (
        "stretch",
        {"size": {"height": 240, "width": 320}},
        {"resize": "stretch", "size_wh": (320, 240)},
    ),
    ("one number", {"size": 224}, {"resize": "stretch", "size_wh": (224, 224)}),
    ("two numbers", {"size": [240, 320]}, {"resize": "stretch", "size_wh": (320, 240)}),
    (
        "CLIP",
        {
            "size": {"shortest_edge": 224},
            "do_center_crop": True,
            "crop_size": {"height": 224, "width": 224},
        },
        {"resize": "shortest_crop", "size_wh": (224, 224), "crop_fraction": 1.0},
    ),
    (
        "CLIP of old",
        {"size": 224, "do_center_crop": True, "crop_size": 224},
        {"resize": "shortest_crop", "size_wh": (224, 224), "crop_fraction": 1.0},
    ),
    (
        "MobileNet",
        {
            "size": {"shortest_edge": 256},
            "do_center_crop": True,
            "crop_size": {"height": 224, "width": 224},
        },
        {
            "resize": "shortest_crop",
            "size_wh": (224, 224),
            "crop_fraction": 224 / 256,
            "crop_rounds": "down",
        },
    ),
    (
        "ConvNeXt, small",
        {
            "image_processor_type": "ConvNextImageProcessor",
            "size": {"shortest_edge": 224},
            "crop_pct": 0.875,
        },
        {"resize": "shortest_crop", "size_wh": (224, 224), "crop_fraction": 224 / 256},
    ),
    (
        "ConvNeXt, of a fraction that does not divide",
        {
            "image_processor_type": "ConvNextImageProcessor",
            "size": {"shortest_edge": 224},
            "crop_pct": 0.95,
        },
        {"resize": "shortest_crop", "size_wh": (224, 224), "crop_fraction": 224 / 235},
    ),
    (
        "ConvNeXt, large",
        {"feature_extractor_type": "ConvNextFeatureExtractor", "size": 384, "crop_pct": 0.875},
        {"resize": "stretch", "size_wh": (384, 384)},
    ),
    (
        "PoolFormer",
        {
            "image_processor_type": "PoolFormerImageProcessor",
            "size": {"shortest_edge": 224},
            "crop_pct": 0.9,
            "do_center_crop": True,
            "crop_size": {"height": 224, "width": 224},
        },
        {"resize": "shortest_crop", "size_wh": (224, 224), "crop_fraction": 224 / 248},
    ),
    (
        "DeiT",
        {
            "size": {"height": 256, "width": 256},
            "do_center_crop": True,
            "crop_size": {"height": 224, "width": 224},
        },
        {
            "resize": "stretch_crop",
            "size_wh": (224, 224),
            "crop_fraction": 224 / 256,
            "crop_rounds": "down",
        },
    ),
    (
        "stretched and not cropped",
        {**SQUARE, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}},
        {"resize": "stretch", "size_wh": (224, 224)},
    ),
    (
        "DETR",
        {"size": {"shortest_edge": 800, "longest_edge": 1333}, "do_pad": True, "pad_size": None},
        {"resize": "shortest_longest", "size_wh": (800, 1333), "divisor": 1},
    ),
    (
        "DETR of old",
        {"feature_extractor_type": "DetrFeatureExtractor", "size": 800, "max_size": 1333},
        {"resize": "shortest_longest", "size_wh": (800, 1333), "divisor": 1},
    ),
    (
        "YOLOS",
        {
            "image_processor_type": "YolosImageProcessor",
            "size": {"shortest_edge": 512, "longest_edge": 864},
        },
        {
            "resize": "shortest_longest",
            "size_wh": (512, 864),
            "divisor": 16,
            "divisor_rounds": "down",
        },
    ),
    (
        "MaskFormer",
        {"size": {"shortest_edge": 800, "longest_edge": 1333}, "size_divisor": 32},
        {"resize": "shortest_longest", "size_wh": (800, 1333), "divisor": 32},
    ),
    (
        "padded",
        {
            "size": {"max_height": 480, "max_width": 640},
            "do_pad": True,
            "pad_size": {"height": 480, "width": 640},
        },
        {"resize": "letterbox_topleft", "size_wh": (640, 480), "pad_value": 0},
    ),
    (
        "Donut",
        {
            "image_processor_type": "DonutImageProcessor",
            "size": [1920, 2560],
            "do_thumbnail": True,
            "do_pad": True,
        },
        {"resize": "letterbox", "size_wh": (1920, 2560), "pad_value": 0},
    ),
    (
        "shortest side alone",
        {"size": {"shortest_edge": 384}},
        {"resize": "shortest_longest", "size_wh": (384, 3840), "divisor": 1},
    ),
    ("no resize", {"do_resize": False}, {"resize": "none"}),
]


@pytest.mark.parametrize(
    ("config", "expected"), [pytest.param(*row[1:], id=row[0]) for row in GEOMETRY]
)
def test_sizes(config, expected):
    fields = input_from_preprocessor({**HALF, **config})
    assert {name: fields.get(name) for name in expected} == expected
    assert fields["antialias"]


EFFICIENT_NET = {"image_processor_type": "EfficientNetImageProcessor"}
VALUES = [
    ("normalised", HALF, (1 / 255, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))),
    ("not normalised", {**HALF, "do_normalize": False}, (1 / 255, (0, 0, 0), (1, 1, 1))),
    ("no means", {}, (1 / 255, (0, 0, 0), (1, 1, 1))),
    ("rescaled", {"rescale_factor": 1 / 127.5}, (1 / 127.5, (0, 0, 0), (1, 1, 1))),
    ("raw", {"do_rescale": False, "do_normalize": False}, (1, (0, 0, 0), (1, 1, 1))),
    ("one number", {"image_mean": 0.5, "image_std": 0.25}, (1 / 255, (0.5,) * 3, (0.25,) * 3)),
    ("EfficientNet", {**HALF, "include_top": True}, (1 / 255, (0.5,) * 3, (0.25,) * 3)),
    ("EfficientNet by its name", {**HALF, **EFFICIENT_NET}, (1 / 255, (0.5,) * 3, (0.25,) * 3)),
    (
        "EfficientNet without top",
        {**HALF, **EFFICIENT_NET, "include_top": False},
        (1 / 255, (0.5,) * 3, (0.5,) * 3),
    ),
    (
        "EfficientNet from -1",
        {**HALF, "rescale_factor": 1 / 127.5, "rescale_offset": True, "include_top": False},
        (1 / 127.5, (1.5,) * 3, (0.5,) * 3),
    ),
]


@pytest.mark.parametrize(
    ("config", "expected"), [pytest.param(*row[1:], id=row[0]) for row in VALUES]
)
def test_values(config, expected):
    fields = input_from_preprocessor({**SQUARE, **config})
    assert (fields["scale"], fields["mean"], fields["std"]) == expected


@pytest.mark.parametrize(
    ("config", "color"),
    [
        ({}, None),
        ({"do_flip_channel_order": False}, None),
        ({"do_flip_channel_order": True}, "bgr"),
        ({"feature_extractor_type": "MobileViTFeatureExtractor"}, "bgr"),
        ({"image_processor_type": "MobileViTImageProcessor", "do_flip_channel_order": False}, None),
    ],
)
def test_colours_are_turned_where_the_processor_turns_them(config, color):
    assert input_from_preprocessor({**SQUARE, **config}).get("color") == color


@pytest.mark.parametrize(
    ("resample", "expected"),
    [(0, "nearest"), (1, "lanczos"), (2, "linear"), (3, "cubic"), (4, "area")],
)
def test_filters(resample, expected):
    assert input_from_preprocessor({**SQUARE, "resample": resample})["interpolation"] == expected


REFUSED = [
    ("size", {}),
    ("size", {"size": "large"}),
    ("size", {"size": True}),
    ("size", {"size": {"height": 224}}),
    ("size", {"size": {"longest_edge": 2048}}),
    ("size", {"size": {"height": 0, "width": 224}}),
    ("crop_size", {**SQUARE, "do_center_crop": True}),
    ("crop_size", {**SQUARE, "do_center_crop": True, "crop_size": {"height": 200, "width": 100}}),
    ("crop_size", {"size": {"shortest_edge": 200}, "do_center_crop": True, "crop_size": 224}),
    ("resample", {**SQUARE, "resample": 5}),
    ("resample", {**SQUARE, "resample": {"a": 1}}),
    ("image_mean", {**SQUARE, "do_normalize": True}),
    ("image_std", {**SQUARE, "image_mean": [0, 0, 0], "image_std": ["1", "1", "1"]}),
    ("rescale_factor", {**SQUARE, "rescale_factor": "1/255"}),
    ("image_std", {**SQUARE, "include_top": True}),
    ("keep_aspect_ratio", {**SQUARE, "keep_aspect_ratio": True, "ensure_multiple_of": 32}),
    ("do_crop_margin", {**SQUARE, "do_crop_margin": True}),
    ("do_align_long_axis", {**SQUARE, "do_align_long_axis": True}),
    ("do_image_splitting", {**SQUARE, "do_image_splitting": True}),
    (
        "pad_size",
        {
            "size": {"shortest_edge": 8, "longest_edge": 9},
            "do_pad": True,
            "pad_size": {"height": 9},
        },
    ),
]


@pytest.mark.parametrize(("name", "config"), REFUSED)
def test_unsupported_preprocessing_is_refused_by_name(name, config):
    with pytest.raises(LoadError, match=rf"^expected {name} in preprocessor_config\.json to be "):
        input_from_preprocessor(config)


@pytest.mark.parametrize(
    ("name", "value"),
    [("mean", ["half"]), ("std", [None]), ("crop_pct", "most"), ("crop_pct", {"a": 1})],
)
def test_wrong_timm_number_is_refused_by_name(name, value):
    with pytest.raises(LoadError, match=rf"^expected {name} in config\.json of timm to be "):
        input_from_timm({"pretrained_cfg": {name: value}})
