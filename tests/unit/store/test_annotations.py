import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadriga.store.changes.annotations import MAX_ANNOTATIONS, parse_annotations
from quadriga.store.records.errors import ChangeError

RING = [{"x": 1.5, "y": 2}, {"x": 3, "y": 4}, {"x": 0, "y": 4}]
BOX = {"xmin": 1, "ymin": 2, "xmax": 3.5, "ymax": 2}
ORIENTED = {"cx": 0.5, "cy": 0.5, "w": 0.2, "h": 0.0, "r": -1.5}


@pytest.mark.parametrize(
    ("given_form", "wire_form"),
    [
        ({"label": "cat"}, {"label": "cat"}),
        ({"class_label": "cat"}, {"label": "cat"}),
        ({"class_label": "cat", "bbox": BOX}, {"label": "cat", **BOX}),
        ({"label": "cat", **BOX}, {"label": "cat", **BOX}),
        ({"class_label": "ship", "oriented_bbox": ORIENTED}, {"label": "ship", **ORIENTED}),
        ({"label": "ship", **ORIENTED}, {"label": "ship", **ORIENTED}),
        ({"class_label": "a", "contour": [RING, RING]}, {"label": "a", "contour": [RING, RING]}),
        ({"class_label": "a", "contours": [RING]}, {"label": "a", "contour": [RING]}),
        ({"context": "what?", "generated_text": "a dog"}, {"prompt": "what?", "answer": "a dog"}),
        ({"context": "what?", "label": "dog"}, {"prompt": "what?", "label": "dog"}),
        ({"answer": "a dog"}, {"answer": "a dog"}),
        ({"prompt": "q", "answers": ["dog", ""]}, {"prompt": "q", "answers": ["dog", ""]}),
        (
            {"label": "a", "crowd": True, "difficult": False, "area": 3, "attributes": {"k": [1]},
             "task_type": "Object Detection"},
            {"label": "a", "crowd": True, "difficult": False, "area": 3, "attributes": {"k": [1]}},
        ),
    ],
)  # fmt: skip
def test_each_form_is_kept_in_that_of_the_wire(given_form, wire_form):
    assert parse_annotations([given_form]) == [wire_form]
    assert parse_annotations([wire_form]) == [wire_form]


def test_an_empty_list_says_that_there_is_nothing():
    assert parse_annotations([]) == []


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (None, "annotations[1]: expected an object, got none"),
        ("cat", "annotations[1]: expected an object, got 'cat'"),
        ({}, "annotations[1].label: expected a text, got none"),
        ({"label": ""}, "annotations[1].label: expected a text, got ''"),
        ({"class_label": 3}, "annotations[1].class_label: expected a text, got 3"),
        ({"label": "a", "class_label": "a"},
         "annotations[1].class_label: expected it once, got annotations[1].label too"),
        ({"label": "a", "score": 1}, "annotations[1]: expected keys of an annotation, got 'score'; known are answer,"),
        ({"label": "a", "bbox": BOX | {"xmin": 4}},
         "annotations[1].bbox.xmin: expected xmin <= xmax, got 4 and 3.5"),
        ({"label": "a", **BOX, "ymin": 3}, "annotations[1].ymin: expected ymin <= ymax, got 3 and 2"),
        ({"label": "a", "xmin": 1}, "annotations[1].ymin: expected a finite number, got none"),
        ({"label": "a", "bbox": {"xmin": 1}},
         "annotations[1].bbox.ymin: expected a finite number, got none"),
        ({"label": "a", "bbox": [1, 2, 3, 4]}, "annotations[1].bbox: expected an object with xmin,"),
        ({"label": "a", "bbox": BOX | {"z": 1}}, "annotations[1].bbox: expected an object with xmin,"),
        ({"label": "a", "bbox": BOX | {"xmin": True}},
         "annotations[1].bbox.xmin: expected a finite number, got True"),
        ({"label": "a", "bbox": BOX | {"xmin": float("nan")}},
         "annotations[1].bbox.xmin: expected a finite number, got nan"),
        ({"label": "a", "bbox": BOX | {"xmax": 10**400}},
         "annotations[1].bbox.xmax: expected a finite number, got 1000"),
        ({"label": "a", "oriented_bbox": ORIENTED | {"w": -1}},
         "annotations[1].oriented_bbox.w: expected 0 or more, got -1"),
        ({"label": "a", "bbox": BOX, "contour": [RING]},
         "annotations[1]: expected one shape, got a box and a contour"),
        ({"label": "a", "contour": RING}, "annotations[1].contour[0]: expected a list of points"),
        ({"label": "a", "contour": []}, "annotations[1].contour: expected a list of rings"),
        ({"label": "a", "contours": [[]]}, "annotations[1].contours[0]: expected a list of points"),
        ({"label": "a", "contour": [[[1, 2]]]},
         "annotations[1].contour[0][0]: expected an object with x and y, got [1, 2]"),
        ({"label": "a", "contour": [[{"x": 1, "y": "2"}]]},
         "annotations[1].contour[0][0].y: expected a finite number, got '2'"),
        ({"prompt": "q"}, "annotations[1]: expected an answer, answers or a label, got none"),
        ({"answer": "a", "answers": ["a"]},
         "annotations[1]: expected an answer, answers or a label, got answer and answers"),
        ({"answers": []}, "annotations[1].answers: expected a list of texts, got []"),
        ({"answers": ["a", 1]}, "annotations[1].answers[1]: expected a text, got 1"),
        ({"generated_text": 1}, "annotations[1].generated_text: expected a text, got 1"),
        ({"label": "a", "crowd": 1}, "annotations[1].crowd: expected true or false, got 1"),
        ({"label": "a", "area": -1}, "annotations[1].area: expected 0 or more, got -1"),
        ({"label": "a", "attributes": 1},
         "annotations[1].attributes: expected metadata to be an object, got int"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_by_its_place(node, message):
    with pytest.raises(ChangeError, match="^" + re.escape(message)):
        parse_annotations([{"label": "a"}, node])


@pytest.mark.parametrize("value", [None, {}, "cat", 1])
def test_annotations_are_a_list(value):
    with pytest.raises(ChangeError, match=r"^items\[3\]: expected a list of annotations, got"):
        parse_annotations(value, "items[3]")


def test_there_is_an_end_to_annotations():
    with pytest.raises(ChangeError, match="expected at most 10000 annotations, got 10001"):
        parse_annotations([{"label": "a"}] * (MAX_ANNOTATIONS + 1))


GOOD = [
    {"label": "a", "bbox": BOX, "crowd": True},
    {"label": "a", **ORIENTED, "area": 2.5},
    {"class_label": "a", "contours": [RING, RING]},
    {"context": "q", "generated_text": "a"},
    {"prompt": "q", "answers": ["a"]},
]
KEYS = sorted(
    {key for annotation_ in GOOD for key in annotation_} | {"x", "contour", "oriented_bbox"}
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner),
    max_leaves=4,
)


@given(st.sampled_from(GOOD), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=2))
def test_whatever_comes_is_read_or_refused(good, other):
    try:
        read = parse_annotations([good | other])
    except ChangeError:
        return
    assert parse_annotations(msgspec.json.decode(msgspec.json.encode(read))) == read
