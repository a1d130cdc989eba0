from typing import Any

import numpy as np
import pytest

from quadriga.engine.serving.tensors.drawing import draw, label_color
from quadriga.tasks.geometry import xywhr_to_corners
from quadriga.tasks.image import Image
from quadriga.tasks.predictions import (
    Answer,
    Classification,
    Detection,
    OrientedDetection,
    Point,
    Segment,
)


def image(width, height):
    return Image(np.full((height, width, 3), 90, np.uint8))


def box(label, *corners: Any, score=0.9):
    return Detection(label, score, *corners)


@pytest.mark.parametrize(
    ("image_wh", "drawn_wh"),
    [
        ((640, 480), (640, 480)),
        ((320, 10), (320, 10)),
        ((32, 24), (320, 240)),
        ((1, 1), (320, 320)),
        ((10, 1000), (20, 2000)),  # a narrow image is not enlarged without measure
        ((2, 4000), (2, 4000)),
    ],
)
def test_a_small_image_is_enlarged(image_wh, drawn_wh):
    drawn = draw(image(*image_wh), [])
    assert (drawn.dtype, drawn.shape) == (np.uint8, (drawn_wh[1], drawn_wh[0], 3))
    assert np.abs(drawn.astype(int) - 90).max() <= 1


@pytest.mark.parametrize("scale", [1, 4])
def test_the_edge_of_a_box_has_the_colour_of_its_label(scale):
    drawn = draw(
        image(320 * scale, 240 * scale), [box("ship", *np.array([100, 80, 200, 160]) * scale)]
    )
    left, top, right, bottom = np.array([100, 80, 200, 160]) * scale
    middle_x, middle_y = (left + right) // 2, (top + bottom) // 2
    edges = [(left, middle_y), (right - 1, middle_y), (middle_x, bottom - 1)]
    for x, y in edges:
        assert tuple(drawn[y, x]) == label_color("ship")
    assert (drawn[middle_y, middle_x] == 90).all()
    assert (drawn[bottom + 9 :] == 90).all()
    assert (drawn[top - 5, left + 5] != 90).any(), "the tag stands above the box"


def test_an_enlarged_image_has_its_boxes_enlarged():
    drawn = draw(image(32, 24), [box("ship", 8, 10, 24, 20)])
    assert tuple(drawn[150, 80]) == tuple(drawn[150, 239]) == label_color("ship")


def test_the_best_box_lies_on_top():
    same = (50, 60, 200, 200)
    drawn = draw(image(400, 300), [box("best", *same, score=0.9), box("other", *same, score=0.5)])
    assert tuple(drawn[130, 50]) == label_color("best")


def test_the_tags_of_one_place_do_not_hide_each_other():
    same = (50, 60, 250, 200)
    labels = ["one", "two", "three"]
    drawn = draw(image(400, 300), [box(label, *same) for label in labels])
    for label in labels:
        assert (drawn == label_color(label)).all(axis=2).sum() > 400


def grid_of_boxes(side, step, columns, rows):
    """Boxes of the labels `ship` and `buoy` by turns, row by row, whose interior nothing should hide."""
    return [
        box(
            ("ship", "buoy")[(column + row) % 2],
            *(
                20 + column * step,
                30 + row * step,
                20 + column * step + side,
                30 + row * step + side,
            ),
            score=0.9 - row / 100,
        )
        for row in range(rows)
        for column in range(columns)
    ]


@pytest.mark.parametrize(("side", "step", "columns", "rows"), [(12, 20, 30, 20), (10, 60, 10, 7)])
def test_in_a_crowd_no_tag_hides_an_object_and_a_legend_counts_the_labels(
    side, step, columns, rows
):
    predictions = grid_of_boxes(side, step, columns, rows)
    drawn = draw(image(640, 480), predictions)
    for prediction in predictions:
        x, y = int(prediction.xmin), int(prediction.ymin)
        assert (drawn[y + 3 : y + side - 3, x + 3 : x + side - 3] == 90).all(), "the object shows"
        assert tuple(drawn[y + side // 2, x]) == label_color(prediction.label), (
            "and so does its box"
        )
    assert len(drawn) > 480
    for label in ("ship", "buoy"):
        assert (drawn[480:] == label_color(label)).all(axis=2).sum() > 60


def test_in_a_crowd_what_has_room_for_a_tag_has_one():
    small = grid_of_boxes(12, 20, 20, 20)
    apart = box("raft", 500, 200, 560, 260)
    drawn = draw(image(640, 480), [*small, apart])
    assert (drawn[180:200, 495:600] == label_color("raft")).all(axis=2).sum() > 400


def test_few_boxes_have_no_legend():
    drawn = draw(image(640, 480), grid_of_boxes(60, 100, 3, 3))
    assert len(drawn) == 480
    assert (drawn == label_color("ship")).all(axis=2).sum() > 9 * 400


def test_small_segments_stay_visible_and_the_legend_names_no_more_than_40_labels():
    squares = [
        Segment(
            f"label-{index}",
            0.9,
            [[Point(x, y), Point(x + 9, y), Point(x + 9, y + 9), Point(x, y + 9)]],
        )
        for index, (x, y) in enumerate(
            (20 * column, 30 + 20 * row) for row in range(20) for column in range(30)
        )
    ]
    drawn = draw(image(640, 480), squares)
    assert 500 < len(drawn) < 1000
    for segment in squares:
        x, y = int(segment.contour[0][0].x), int(segment.contour[0][0].y)
        assert (drawn[y + 4 : y + 6, x + 4 : x + 6] != label_color(segment.label)).any(), "a tint"


AT_THE_RIM = [(0, 0, 5, 5), (395, 0, 400, 300), (0, 299, 400, 300), (0, 0, 400, 300), (7, 7, 7, 7)]


@pytest.mark.parametrize("corners", AT_THE_RIM)
def test_boxes_at_the_rim_keep_their_tag_in_the_image(corners):
    drawn = draw(image(400, 300), [box("ship", *corners)])
    assert drawn.shape == (300, 400, 3)
    assert (drawn == label_color("ship")).all(axis=2).sum() > 400


@pytest.mark.parametrize(
    "label", ["", "x" * 500, "猫 кошка ü", "two\nlines\t", "\x00\ufffd🚢", "a b " * 99]
)
def test_any_label_can_be_drawn(label):
    items = [box(label, 10, 50, 60, 90), Classification(label, 0.5)]
    assert draw(image(320, 200), items).shape[0] > 200


def test_classifications_stand_in_a_strip_below_with_bars_as_long_as_their_scores():
    items = [Classification("cat", 0.8), Classification("dog", 0.2), Classification("eel", 0.0)]
    drawn = draw(image(640, 480), items)
    assert (drawn[:480] == 90).all()
    cat, dog, eel = (
        (drawn == label_color(classification.label)).all(axis=2).sum() for classification in items
    )
    assert cat / dog == pytest.approx(4, rel=0.1)
    assert eel == 0
    more = draw(image(640, 480), [Classification(f"{i}", 0.1) for i in range(99)])
    assert more.shape[0] < 480 * 2, "at most ten rows"


def ring_of(left, top, right, bottom):
    """A rectangle of pixels, the ends included."""
    corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    return [Point(float(x), float(y)) for x, y in corners]


@pytest.mark.parametrize("prompt", ["", "What is it?"])
@pytest.mark.parametrize("text", ["a red cross and a blue ship " * 5, "猫" * 120, "a" * 90])
def test_a_long_answer_is_broken_into_rows_and_not_cut(prompt, text):
    short = draw(image(320, 200), [Answer("a", prompt)])
    long = draw(image(320, 200), [Answer(text, prompt)])
    assert long.shape[0] > short.shape[0] + 30
    ends = [draw(image(320, 200), [Answer(f"{text}{end}", prompt)]) for end in ("x", "y")]
    middles = [draw(image(320, 200), [Answer(f"{text[:44]}{c}{text[45:]}", prompt)]) for c in "xy"]
    assert (ends[0] != ends[1]).any()
    assert (middles[0] != middles[1]).any()


def test_an_endless_answer_takes_a_bounded_strip():
    assert draw(image(320, 200), [Answer("word " * 5000, "endless")]).shape[0] < 900


@pytest.mark.parametrize("empty", ["", " ", "\n"])
def test_an_empty_answer_can_be_drawn(empty):
    assert draw(image(320, 200), [Answer(empty, empty)]).shape[0] > 200


def tag_of(drawn, label):
    """Rows and columns of what has the colour of a label in rows that it fills for 30 pixels."""
    rows, columns = (drawn == label_color(label)).all(axis=2).nonzero()
    filled = [row for row in np.unique(rows) if (rows == row).sum() > 30]
    return min(filled), max(filled), columns[np.isin(rows, filled)]


@pytest.mark.parametrize("angle", [np.pi / 4, -np.pi / 4, 1.2])
def test_the_tag_of_a_rotated_box_stands_over_its_topmost_corner(angle):
    drawn = draw(image(640, 480), [OrientedDetection("ship", 0.9, 0.5, 0.5, 0.4, 0.3, angle)])
    top = xywhr_to_corners(np.array([[320, 240, 256, 144, angle]]))[0]
    x, y = top[top[:, 1].argmin()]
    first, _, columns = tag_of(drawn, "ship")
    assert first < y - 10
    assert columns.min() - 10 < x < columns.max() + 10
    assert 320 - 135 < columns.min() < columns.max() < 320 + 135


def test_text_and_lines_suit_the_height_of_a_panorama():
    boxes = [box("ship", 800, 100, 900, 200)]
    tops = [tag_of(draw(image(width, 400), boxes), "ship")[0] for width in (1600, 6400)]
    assert 100 - 30 < tops[0] < 100 - 15
    assert 100 - 60 < tops[1] < 100 - 30


def test_a_segment_is_filled_and_outlined_and_its_hole_left_open():
    rings = [ring_of(100, 80, 259, 219), ring_of(149, 119, 200, 180)]
    drawn = draw(image(400, 300), [Segment("ship", 0.9, rings)])
    color = label_color("ship")
    for x, y in [(100, 150), (259, 150), (180, 219), (149, 150), (180, 180)]:
        assert tuple(drawn[y, x]) == color, "every ring is a line"
    assert (drawn[130:170, 160:190] == 90).all(), "the hole is open"
    filled = drawn[120:170, 110:140].reshape(-1, 3)
    assert (filled == filled[0]).all()
    assert (filled[0] != 90).any()
    assert tuple(filled[0]) != color, "the fill is translucent"
    assert (drawn[230:] == 90).all()
    assert (drawn[70, 105:130] != 90).any(), "the tag stands above"


def test_a_segment_of_an_enlarged_image_covers_the_squares_of_its_pixels():
    drawn = draw(image(32, 24), [Segment("ship", 0.9, [ring_of(10, 8, 19, 15)])])
    rows, columns = (drawn != 90).any(axis=2).nonzero()
    assert 159 <= rows.max() <= 163
    assert 199 <= columns[rows > 90].max() <= 203
    assert (drawn[90:150, 110:190] != 90).any(axis=2).all()


ODD_SEGMENTS = [[], [[]], [ring_of(5, 5, 5, 5)], [ring_of(-50, -50, -2, -2)]]
ODD_SEGMENTS += [[ring_of(-9, -9, 5000, 5000)], [ring_of(399, 299, 399, 299), []]]


@pytest.mark.parametrize("contour", ODD_SEGMENTS)
@pytest.mark.parametrize("image_wh", [(400, 300), (20, 10)])
def test_any_segment_can_be_drawn(contour, image_wh):
    items = [Segment("ship", 0.5, contour), box("car", 1, 1, 5, 5), Classification("cat", 0.5)]
    assert draw(image(*image_wh), items).shape[0] > 100


def test_the_best_segment_lies_on_top():
    same = [ring_of(100, 80, 200, 180)]
    drawn = draw(image(400, 300), [Segment("best", 0.9, same), Segment("other", 0.5, same)])
    assert tuple(drawn[130, 100]) == label_color("best")


def test_the_given_image_stays_as_it_was():
    original = image(640, 480)
    original.pixels.flags.writeable = False
    draw(original, [box("ship", 1, 2, 300, 400), Classification("cat", 0.5)])
    draw(original, [Segment("ship", 0.5, [ring_of(1, 2, 300, 400)])])
    assert (original.pixels == 90).all()


def test_the_labels_of_a_model_have_colours_that_lie_apart():
    labels = [f"label {index}" for index in range(24)]
    colors = np.array([label_color(label, labels) for label in labels], float)
    apart = np.linalg.norm(colors[:, None] - colors, axis=2) + 999 * np.eye(len(labels))
    assert apart.min() > 30
    drawn = draw(image(640, 480), [box("label 7", 50, 60, 250, 200)], labels)
    assert tuple(drawn[130, 50]) == label_color("label 7", labels)


def test_a_label_alone_has_a_colour_of_its_text():
    assert label_color("ship") == label_color("ship", ["car"]) != label_color("car")


@pytest.mark.parametrize("scale", [1, 4])
def test_a_rotated_box_is_rotated_in_pixels(scale):
    """Box of 96 by 32 pixels in an image of 640 x 320, turned by 45 degrees: its sides by their middles."""
    ship = OrientedDetection("ship", 0.9, 0.5, 0.5, 0.3, 0.2, np.pi / 4)
    drawn = draw(image(640 * scale, 320 * scale), [ship])
    centre, along, across = np.array([320, 160]), np.array([96, 96]), np.array([-32, 32])
    for offset in (along, -along, across, -across):
        x, y = np.round((centre + offset * np.sqrt(0.5)) * scale).astype(int)
        near = drawn[y - 2 : y + 3, x - 2 : x + 3].reshape(-1, 3)
        assert (near == label_color("ship")).all(axis=1).any()
    assert (drawn[160 * scale, 320 * scale] == 90).all()
    assert (drawn == label_color("ship")).all(axis=2).sum() > 400


OUTSIDE = [
    (0, 0, 0.5, 0.1, 0.7),
    (1.5, -0.5, 0.2, 0.2, 9),
    (0.5, 0.5, 3, 3, -1),
    (0.5, 0.5, 0, 0, 0),
]


@pytest.mark.parametrize("box_", OUTSIDE)
def test_rotated_boxes_may_pass_the_image(box_):
    drawn = draw(image(400, 300), [OrientedDetection("ship", 0.9, *box_)])
    assert drawn.shape == (300, 400, 3)
    assert (drawn == label_color("ship")).all(axis=2).sum() > 400
