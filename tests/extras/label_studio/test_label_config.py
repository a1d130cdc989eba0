"""Which control of a labeling interface takes the labels of a model, and which tag is missing."""

import pytest

from quadriga.extras.label_studio.labeling import MAX_CHARACTERS, find_control
from quadriga.proto.errors import InvalidRequest, Unsupported

IMAGE = '<Image name="picture" value="$photo"/>'
BOXES = '<RectangleLabels name="box" toName="picture"><Label value="a"/><Label value="b" alias="B"/></RectangleLabels>'
POLYGONS = '<PolygonLabels name="outline" toName="picture"><Label value="a"/></PolygonLabels>'
BRUSH = '<BrushLabels name="brush" toName="picture"><Label value="a"/></BrushLabels>'
CHOICES = '<Choices name="kind" toName="picture"><View><Choice value="x"/></View></Choices>'
EVERYTHING = f"<View>{IMAGE}{BOXES}<View>{POLYGONS}</View>{BRUSH}{CHOICES}</View>"


@pytest.mark.parametrize(
    ("task", "tag", "name", "labels"),
    [
        ("OBJECT_DETECTION", "RectangleLabels", "box", {"a", "B"}),
        ("ORIENTED_OBJECT_DETECTION", "RectangleLabels", "box", {"a", "B"}),
        ("IMAGE_SEGMENTATION", "PolygonLabels", "outline", {"a"}),
        ("IMAGE_CLASSIFICATION", "Choices", "kind", {"x"}),
    ],
)
def test_each_task_has_its_control(task, tag, name, labels):
    control = find_control(EVERYTHING, task, "m")
    assert (control.tag, control.name, control.to_name, control.data_key) == (tag, name, "picture", "photo")  # fmt: skip
    assert control.labels == labels
    assert control.can_rotate


def test_tags_are_read_in_any_case_and_the_first_fitting_control_counts():
    other = '<RectangleLabels name="far" toName="sound"><Label value="z"/></RectangleLabels>'
    control = find_control(f"<View>{other}{IMAGE}{BOXES.lower().replace('toname', 'toName').replace('RectangleLabels', 'rectanglelabels')}</View>", "OBJECT_DETECTION", "m")  # fmt: skip
    assert control.name == "box"
    fixed = BOXES.replace("name=", 'canRotate="false" name=', 1)
    assert not find_control(f"<View>{IMAGE}{fixed}</View>", "OBJECT_DETECTION", "m").can_rotate


@pytest.mark.parametrize(
    ("config", "task", "message"),
    [
        ("", "OBJECT_DETECTION", "label_config: expected XML, got: no element found"),
        ("<View>", "OBJECT_DETECTION", "label_config: expected XML, got: no element found"),
        ("<View/>", "OBJECT_DETECTION", "a tag <RectangleLabels> with toName of an <Image> is required for the predictions of 'm', got no control of images"),
        (f"<View>{IMAGE}{CHOICES}</View>", "OBJECT_DETECTION", "got <Choices>, <Image> 'picture'"),
        (f"<View>{IMAGE}{BRUSH}</View>", "IMAGE_SEGMENTATION", "<PolygonLabels>"),
        (f"<View>{IMAGE}{BRUSH}</View>", "IMAGE_SEGMENTATION", "brush masks are not filled, polygons are"),
        (f"<View>{BOXES}</View>", "OBJECT_DETECTION", "a tag <RectangleLabels>"),
        (f"<View>{IMAGE.replace('$', '')}{BOXES}</View>", "OBJECT_DETECTION", "to be a key of the tasks' data"),
        ('<!DOCTYPE a [<!ENTITY x "y">]><View>&x;</View>', "OBJECT_DETECTION", "XML without a document type"),
        ("<View>" + " " * MAX_CHARACTERS + "</View>", "OBJECT_DETECTION", f"at most {MAX_CHARACTERS} characters"),
        ("<View>\ud800</View>", "OBJECT_DETECTION", "a tag <RectangleLabels>"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(config, task, message):
    with pytest.raises(InvalidRequest) as raised:
        find_control(config, task, "m")
    assert message in str(raised.value)


def test_a_task_without_a_control_is_refused_by_name():
    with pytest.raises(Unsupported, match=r"got 'm', of IMAGE_TEXT_TO_TEXT"):
        find_control(EVERYTHING, "IMAGE_TEXT_TO_TEXT", "m")


def test_an_interface_of_deep_tags_is_read():
    deep = "<View>" * 20_000 + IMAGE + BOXES + "</View>" * 20_000
    assert find_control(deep, "OBJECT_DETECTION", "m").name == "box"
