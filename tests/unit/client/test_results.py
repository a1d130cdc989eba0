"""Predictions as arrays, pictures and the forms of other tools."""

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from quadriga.client import Client
from quadriga.client.errors import InputError, MissingPackage
from quadriga.client.images import image_bytes
from quadriga.client.results import Result
from tests.unit.client.conftest import PREDICTIONS, inferred, json_response

BOXES = [
    {"label": "star", "score": 0.5, "xmin": 0.0, "ymin": 0.0, "xmax": 4.0, "ymax": 4.0},
    {"label": "circle", "score": 0.9, "xmin": 10.0, "ymin": 20.0, "xmax": 30.0, "ymax": 60.0},
]
ORIENTED = [
    {"label": "ship", "score": 0.8, "cx": 0.5, "cy": 0.5, "w": 0.4, "h": 0.2, "r": np.pi / 2}
]


def ring(*points):
    return [{"x": float(x), "y": float(y)} for x, y in points]


REGION = [
    {
        "label": "lake", "score": 0.7,
        "contour": [ring((10, 10), (10, 40), (40, 40), (40, 10)), ring((20, 20), (30, 20), (30, 30), (20, 30))],
    }
]  # fmt: skip


def jpeg(size=(100, 50), orientation=1) -> bytes:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", size, "white").save(file, "JPEG", exif=exif)
    return file.getvalue()


LABELS = ["star", "lake", "circle", "ship"]
"""Labels of the model, in its order."""


def result(predictions, image=None, labels_of=lambda: LABELS) -> Result:
    output = {"data": [predictions], "parameters": {"inference_id": "17"}}
    raw = {"model_name": "m", "model_version": "1", "id": "r"}
    return Result(raw, output, image or jpeg(), "x.jpg", labels_of=labels_of)


def test_a_table_has_a_row_for_each_prediction(monkeypatch):
    pandas = pytest.importorskip("pandas")
    table = result([*BOXES, *ORIENTED, *REGION]).to_pandas()
    assert table["label"].tolist() == ["star", "circle", "ship", "lake"]
    assert table["xmax"][:2].tolist() == [4.0, 30.0]
    assert table.loc[3, ["xmin", "ymin", "xmax", "ymax"]].tolist() == [10, 10, 40, 40]
    assert pandas.isna(table["cx"]).tolist() == [True, True, False, True]
    empty = result([]).to_pandas()
    assert (len(empty), list(empty.columns)) == (0, list(table.columns))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackage, match="pip install pandas"):
        result(BOXES).to_pandas()


def test_boxes_are_arrays_with_labels_and_scores():
    found = result(BOXES)
    assert found.boxes.xyxy.tolist() == [[0, 0, 4, 4], [10, 20, 30, 60]]
    assert found.boxes.xyxy.dtype == found.scores.dtype == np.float32
    assert found.boxes.xywh.tolist() == [[0, 0, 4, 4], [10, 20, 20, 40]]
    assert found.boxes.cxcywh.tolist() == [[2, 2, 4, 4], [20, 40, 20, 40]]
    assert found.labels == found.boxes.labels == ["star", "circle"]
    assert repr(found.boxes) == "Boxes(2: star, circle)"
    assert found.scores == pytest.approx([0.5, 0.9])
    assert (found.id, found.request_id, found.model, found.version, found.source) == ("17", "r", "m", "1", "x.jpg")  # fmt: skip


def test_nothing_found_has_arrays_of_no_rows():
    found = result([])
    assert found.boxes.xyxy.shape == (0, 4)
    assert found.boxes.xywh.shape == (0, 4)
    assert found.oriented_boxes.xywhr.shape == (0, 5)
    assert found.oriented_boxes.corners.shape == (0, 4, 2)
    assert (repr(found.boxes), repr(found.oriented_boxes)) == ("Boxes(0: nothing)", "OrientedBoxes(0: nothing)")  # fmt: skip
    assert (found.scores.shape, found.labels, found.regions, found.classes) == ((0,), [], [], {})
    assert (found.to_coco(), found.to_yolo(), found.text) == ([], "", "")
    assert found.draw().size == (100, 50)


def test_an_inference_that_is_not_stored_has_no_id():
    assert Result({}, {"data": [[]], "parameters": {"inference_id": ""}}, b"", "").id is None
    assert Result({}, {"data": [[]]}, b"", "").id is None


def test_rotated_boxes_are_multiplied_by_the_size_and_then_rotated():
    boxes = result(ORIENTED).oriented_boxes
    assert boxes.xywhr.tolist() == [pytest.approx([50, 25, 40, 10, np.pi / 2])]
    corners = boxes.corners[0]
    assert corners == pytest.approx(np.array([[55, 5], [55, 45], [45, 45], [45, 5]]), abs=1e-4)
    assert boxes.labels == ["ship"]
    assert len(boxes) == 1
    assert repr(boxes) == "OrientedBoxes(1: ship)"  # without a look at the image


def test_the_size_is_that_of_the_image_as_its_exif_data_turn_it():
    assert result([], jpeg((100, 50), 6)).image_size == (50, 100)
    assert result([], jpeg((100, 50), 3)).image_size == (100, 50)
    assert result([], jpeg((100, 50), 6)).draw().size == (50, 100)


def test_a_region_s_hole_is_taken_out_but_for_its_edge():
    (region,) = result(REGION).regions
    mask = region.mask((100, 50))
    assert mask.shape == (50, 100)
    assert mask.dtype == bool
    assert (mask[15, 15], mask[25, 25], mask[20, 25], mask[5, 5]) == (True, False, True, False)
    assert [shape.shape for shape in region.rings] == [(4, 2), (4, 2)]
    assert (region.label, region.score) == ("lake", 0.7)
    assert repr(region) == "Region('lake', 0.70, rings=2, points=8)"
    assert result(REGION).boxes.xyxy.tolist() == [[10, 10, 40, 40]]


def test_a_region_without_points_has_an_empty_box_and_mask():
    found = result([{"label": "a", "score": 1.0, "contour": [[]]}])
    assert found.boxes.xyxy.tolist() == [[0, 0, 0, 0]]
    assert not found.regions[0].mask((4, 4)).any()


def test_classes_are_sorted_and_answers_are_text():
    found = result([{"label": "a", "score": 0.2}, {"label": "b", "score": 0.8}])
    assert list(found.classes.items()) == [("b", 0.8), ("a", 0.2)]
    assert result(BOXES).classes == {}
    answers = result([{"prompt": "?", "answer": "yes"}, {"prompt": "!", "answer": "no"}])
    assert (answers.answers, answers.text, answers.labels) == (["yes", "no"], "yes\nno", [])


@pytest.mark.parametrize(
    "predictions",
    [
        BOXES, ORIENTED, REGION, [{"label": "a", "score": 0.5}], [{"prompt": "?", "answer": "日本\n" * 100}],
        [{"label": "out", "score": 0.5, "xmin": -1e6, "ymin": 50.0, "xmax": 1e6, "ymax": -50.0}],
        [{"label": "x" * 10_000, "score": 0.5, "xmin": 0.0, "ymin": 0.0, "xmax": 1.0, "ymax": 1.0}],
    ],
)  # fmt: skip
def test_every_task_is_drawn_on_a_copy(predictions):
    picture = Image.open(io.BytesIO(jpeg())).convert("RGB")
    before = picture.tobytes()
    drawn = result(predictions).draw(picture)
    assert picture.tobytes() == before
    assert drawn.tobytes() != before


def test_html_has_the_picture_and_escapes_what_the_model_says():
    html = result([{"label": "<script>alert(1)</script>", "score": 0.5}])._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert 'src="data:image/jpeg;base64,' in html
    assert "<img" not in result(BOXES, b"no image")._repr_html_()


def test_coco_and_yolo_have_every_shape():
    (star, circle) = result(BOXES).to_coco(7)
    assert circle["bbox"] == [10, 20, 20, 40]
    assert (circle["category_id"], star["category_id"], circle["image_id"]) == (3, 1, 7)
    assert circle["area"] == 800
    assert result(BOXES).to_coco(category_ids={"star": 9, "circle": 4})[0]["category_id"] == 9
    assert result(BOXES).to_yolo() == (
        "0 0.020000 0.040000 0.040000 0.080000\n2 0.200000 0.800000 0.200000 0.800000\n"
    )
    (lake,) = result(REGION).to_coco()
    assert lake["area"] == 800
    assert [len(ring) for ring in lake["segmentation"]] == [8, 8]
    assert len(result(REGION).to_yolo().split()) == 9
    (ship,) = result(ORIENTED).to_coco()
    assert ship["bbox"] == pytest.approx([45, 5, 10, 40], abs=1e-4)
    assert len(result(ORIENTED).to_yolo().split()) == 9
    with pytest.raises(InputError, match="a number for the label 'star'"):
        result(BOXES).to_yolo({"circle": 0})
    with pytest.raises(InputError, match="without shapes: label, score"):
        result([{"label": "a", "score": 0.5}]).to_coco()


@pytest.mark.parametrize(
    ("class_ids", "numbers"),
    [
        (None, "02"), ({"circle": 7, "star": 4}, "47"), (["circle", "star"], "10"), (("star", "circle", "star"), "01"),
    ],
)  # fmt: skip
def test_a_label_has_one_number_in_every_image(class_ids, numbers):
    """Images with some of the labels have the numbers of one with all of them."""
    star, circle = BOXES
    for predictions, expected in (([star, circle], numbers), ([circle], numbers[1]), ([], "")):
        lines = result(predictions).to_yolo(class_ids).splitlines()
        assert [line.split()[0] for line in lines] == list(expected)
        ids = [row["category_id"] for row in result(predictions).to_coco(1, class_ids)]
        first = 0 if isinstance(class_ids, dict) else 1
        assert ids == [int(number) + first for number in expected]


@pytest.mark.parametrize(
    ("labels_of", "class_ids", "message"),
    [
        (None, None, "expected the numbers of the labels, as the server does not tell"),
        (tuple, None, "expected the numbers of the labels, as the server does not tell"),
        (lambda: ["star"], None, "expected a number for the label 'circle', got those of 'star'"),
        (None, ["circle"], "a number for the label 'star'"),
        (None, "star", "expected numbers by label or a list of labels, got str"),
    ],
)
def test_labels_without_a_number_are_refused(labels_of, class_ids, message):
    for convert in (result(BOXES, None, labels_of).to_yolo, lambda ids: result(BOXES, None, labels_of).to_coco(1, ids)):  # fmt: skip
        with pytest.raises(InputError, match=message):
            convert(class_ids)


def test_the_server_is_asked_once_for_the_labels_of_a_model(server):
    model = json_response({"labels": ["moon", "star", "circle"], "label_count": 3})
    server.answers(inferred(), model, inferred(PREDICTIONS[1:]))
    with Client(server.url, key="", retries=0) as client:
        assert client.infer("m", b"x").to_coco()[0]["category_id"] == 3
        assert client.infer("m", b"x").to_coco()[0]["category_id"] == 2
    paths = [request.split(b" ")[1] for request in server.requests]
    assert paths == [b"/v2/models/m/infer", b"/api/models/m", b"/v2/models/m/infer"]


def test_labels_that_the_server_lists_in_part_decide_about_no_numbers(server):
    server.answers(inferred(), json_response({"labels": ["star", "circle"], "label_count": 101}))
    with Client(server.url, key="", retries=0) as client:
        found = client.infer("m", b"x")
        with pytest.raises(InputError, match="the server does not tell the model's labels"):
            found.to_coco()
        assert found.to_coco(category_ids=["star", "circle"])[0]["category_id"] == 2


def test_images_come_in_every_form(tmp_path):
    data = jpeg()
    path = tmp_path / "ä b.jpg"
    path.write_bytes(data)
    for image in (data, bytearray(data), path, str(path), io.BytesIO(data), path.open("rb")):
        assert image_bytes(image) == data
        if isinstance(image, io.IOBase):
            image.close()
    pixels = np.zeros((5, 7, 3), np.uint8)
    pixels[:, :, 0] = 255
    for image in (pixels, Image.fromarray(pixels), pixels[::-1]):
        sent = Image.open(io.BytesIO(image_bytes(image)))
        assert (sent.size, sent.getpixel((0, 0))) == ((7, 5), (255, 0, 0))
    assert Image.open(io.BytesIO(image_bytes(np.zeros((5, 7), np.uint8)))).mode == "L"


@pytest.mark.parametrize(
    "image",
    [
        b"", None, 7, [], "missing.jpg", "nul\0.jpg", io.BytesIO(), io.StringIO("x"), np.zeros((5, 7, 3)),
        np.zeros((5, 7, 4), np.uint8), np.zeros((0, 7, 3), np.uint8), "http://127.0.0.1:1/x.jpg", "https://a/b",
    ],
)  # fmt: skip
def test_what_is_no_image_is_an_error_that_says_what_is(image):
    with pytest.raises(InputError, match=r"expected|cannot read"):
        image_bytes(image)


def test_a_pillow_image_whose_file_is_cut_is_an_error_in_its_place(tmp_path):
    path = tmp_path / "cut.jpg"
    path.write_bytes(jpeg((400, 400))[:900])
    with Image.open(path) as picture, pytest.raises(InputError, match="cannot read the Pillow"):
        image_bytes(picture)


def test_a_folder_is_no_image(tmp_path):
    with pytest.raises(InputError, match=r"got the folder .*: infer_many takes folders"):
        image_bytes(tmp_path)
    with pytest.raises(InputError, match="got list: infer_many takes several images"):
        image_bytes([b"x"])


def test_a_url_is_fetched_only_if_the_caller_allows_it(server):
    server.script = lambda sock, *_: sock.sendall(b"HTTP/1.0 200 x\r\n\r\npicture") or "close"
    assert image_bytes(server.url + "/a.jpg", allow_urls=True) == b"picture"
    assert b"Authorization" not in server.requests[0]
    server.answers(b"HTTP/1.1 302 x\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n")
    with pytest.raises(InputError, match="cannot fetch"):
        Client("http://h", key="", allow_urls=True).infer("m", server.url)


WITHOUT = """
import sys
for name in ("numpy", "PIL", "pandas", "polars", "pyarrow", "supervision"):
    sys.modules[name] = None
from quadriga.client import Client, MissingPackage
from quadriga.client.results import Result
result = Result({}, {"data": [[{"label": "a", "score": 0.5}]]}, b"x", "x")
assert result.labels == ["a"] and result.classes == {"a": 0.5} and "a" in repr(result)
assert "<td>a</td>" in result._repr_html_()
for call in (lambda: result.scores, result.draw, result.to_supervision, lambda: result.image_size,
             Client("http://h", key="").query().to_arrow):
    try:
        call()
    except MissingPackage as error:
        print(error)
"""


def test_without_other_packages_the_client_works_and_says_which_one_is_missing():
    printed = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [line.partition("pip install ")[2] for line in printed] == [
        "numpy",
        "pillow",
        "supervision",
        "pillow",
        "pyarrow",
    ]


LOADED = """
import sys
import quadriga
quadriga.Client, quadriga.AsyncClient
heavy = {"onnxruntime", "litestar", "cv2", "numpy", "PIL", "sqlalchemy", "grpc", "msgspec", "quadriga.engine"}
print(sorted(heavy & set(sys.modules)))
"""


def test_the_client_of_quadriga_loads_nothing_of_the_server():
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    with pytest.raises(MissingPackage, match="to_supervision"):
        result(BOXES).to_supervision()  # its numbers are those of to_yolo
