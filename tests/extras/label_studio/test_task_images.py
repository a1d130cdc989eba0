"""Where the image of a task is: in the store by its id or its URL, or elsewhere."""

import pytest

from quadriga.extras.label_studio.images import (
    RemoteImage,
    SignedImage,
    StoredImage,
    find_image,
)
from quadriga.proto.errors import InvalidRequest

OWN = ("models.example.org:8080",)
HOME = "http://studio.example.org/label"
DIGEST = "ab" * 32


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("/api/inferences/17/input", StoredImage("17")),
        ("https://models.example.org:8080/api/inferences/17/input", StoredImage("17")),
        ("https://other.example.org/api/inferences/17/input", RemoteImage("https://other.example.org/api/inferences/17/input")),
        ("https://models.example.org/api/inferences/17/input", RemoteImage("https://models.example.org/api/inferences/17/input")),
        (f"http://models.example.org:8080/api/blobs/{DIGEST}?signature=s&expires=1", SignedImage(DIGEST, {"signature": "s", "expires": "1"})),
        ("/data/upload/1/a.jpg", RemoteImage("http://studio.example.org/data/upload/1/a.jpg")),
        ("//evil.example.org/a.jpg", RemoteImage("//evil.example.org/a.jpg")),
        ("ftp://example.org/a.jpg", RemoteImage("ftp://example.org/a.jpg")),
        ("/api/inferences/17/inputs", RemoteImage("http://studio.example.org/api/inferences/17/inputs")),
    ],
)  # fmt: skip
def test_a_link_says_where_the_image_is(link, expected):
    assert find_image({"image": link}, "image", OWN, HOME) == expected


def test_the_id_of_an_inference_goes_before_its_link():
    data = {"image": "https://example.org/a.jpg", "inference_id": "9"}
    assert find_image(data, "image", OWN, HOME) == StoredImage("9")
    for other in (9, "x", "", None, ["9"], "9" * 20, "٣"):
        assert find_image({**data, "inference_id": other}, "image", OWN, HOME) == RemoteImage("https://example.org/a.jpg")  # fmt: skip


@pytest.mark.parametrize("link", [None, "", 3, {}, ["a"], "a" * 5000, "http://[bad/"])
def test_what_is_no_link_is_refused(link):
    with pytest.raises(InvalidRequest, match=r"data\.image"):
        find_image({"image": link}, "image", OWN, HOME)


def test_a_path_needs_to_know_label_studio():
    with pytest.raises(InvalidRequest, match=r"label_studio\.url"):
        find_image({"image": "/data/upload/1/a.jpg"}, "image", OWN, "")
