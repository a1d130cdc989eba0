"""The page of one inference: who may correct, neighbours within the filter, what it lists, and what is not there."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.engine.console.formats import task_words
from quadriga.proto.access import ROLES, Role
from quadriga.store.browsing.image_measures import LEAST
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import create_key
from quadriga.store.records.records import (
    IMAGE_STATISTICS,
    Feedback,
    ImageSignals,
    InferenceRecord,
    InputReference,
    JournaledChange,
    ModelReference,
    SignalsOfImages,
    TruthStatement,
)
from quadriga.tasks import SHORT_NAMES
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.console_harness import Answer, keyed_server, open_page
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import store_entries

HOSTILE = "</script><script>alert(1)</script>"
FIRST = 700_000_000_000
BOX = {"xmin": 1, "ymin": 2, "xmax": 30, "ymax": 40}
RECORDS = [
    make_record(FIRST, metadata={"camera": "north", "at": {"pier": 14}}, predictions=[{"label": "circle", "score": 0.98, **BOX}]),
    make_record(FIRST + 1, metadata={"camera": "east"}, team="a"),
    make_record(FIRST + 2, metadata={"camera": HOSTILE, HOSTILE: 1}, predictions=[{"label": HOSTILE, "score": 0.5, **BOX}]),
    make_record(FIRST + 3, metadata={"camera": "north"}, status=500, predictions=[]),
    make_record(FIRST + 4, metadata={}, task="TENSOR", predictions={"shape": [1]}),
    make_record(FIRST + 6, metadata={}, task="TENSOR", predictions=[
        {"name": "probabilities", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}, {"name": HOSTILE}]),
    make_record(FIRST + 7, metadata={}, task="TENSOR", status=500, predictions=[]),
    make_record(FIRST + 5, metadata={}, task="IMAGE_TEXT_TO_TEXT", predictions=[{"prompt": "What?", "answer": "two ships"}]),
]  # fmt: skip
CHANGES: list[Any] = [
    TruthStatement("id", str(FIRST), [{"label": "circle", **BOX}, {"label": "star"}], "mara", task="OBJECT_DETECTION"),
    Feedback(FIRST, "thumbs", 1.0, HOSTILE, "eve"),
]  # fmt: skip


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Application, dict[str, str]]]:
    """Yield a server with inferences, and a key of each role, and of a team."""
    data = tmp_path_factory.mktemp("inference") / "data"
    settings = Settings(models=str(SAMPLE_MODELS), data=str(data))
    migrate(settings.database_url)
    changes = [
        JournaledChange(FIRST + 100 + number, change) for number, change in enumerate(CHANGES)
    ]
    store_entries(settings.database_url, settings.journal_directory, [*RECORDS, *changes])
    with keyed_server(settings, team={"roles": ["annotate"], "team": "b"}) as keyed:
        yield keyed


def show(keyed: tuple[Application, dict[str, str]], path: str, role: str = "annotate") -> Answer:
    server, keys = keyed
    headers = {"authorization": f"Bearer {keys[role]}"}
    return open_page(server, f"/console/inferences/{path}", headers=headers)


@pytest.mark.parametrize("role", get_args(Role))
def test_only_who_may_annotate_has_what_corrects(keyed, role):
    page = show(keyed, str(FIRST), role)
    if "read" not in ROLES[role]:
        assert page.status == 403
        return
    assert page.status == 200
    may_annotate = "annotate" in ROLES[role]
    for part in ("annotate.js", 'data-do="accept"', "data-conflict"):
        assert (part in page.text) == may_annotate
    refusal = "Your key may read, not correct. Ask who gave it for `annotate`."
    assert (refusal in page.text) != may_annotate


@pytest.mark.parametrize("role", get_args(Role))
def test_the_api_refuses_by_hand_what_the_page_does_not_offer(keyed, role):
    server, keys = keyed
    headers = {"authorization": f"Bearer {keys[role]}", "content-type": "application/json"}
    for method, body in (("PUT", b"no JSON"), ("DELETE", b"")):
        answer = open_page(
            server, "/api/inferences/no-id/ground-truth", method=method, headers=headers, body=body
        )
        assert (answer.status == 403) == ("annotate" not in ROLES[role]), (method, answer)


def test_neighbours_and_links_stay_within_the_filter(keyed):
    page = show(keyed, f"{FIRST}?q=meta.camera%3Dnorth")
    assert f'href="/console/inferences/{FIRST + 3}?q=meta.camera%3Dnorth"' in page.text
    assert 'rel="next"' not in page.text
    oldest_first = show(keyed, f"{FIRST}?q=meta.camera%3Dnorth&order=ts")
    assert 'rel="prev"' not in oldest_first.text
    assert re.search(rf'rel="next" href="/console/inferences/{FIRST + 3}\?[^"]*order=ts', oldest_first.text)  # fmt: skip
    by_fields = show(keyed, f"{FIRST}?meta.camera=north")
    assert by_fields.status == 303
    assert (
        by_fields.headers["location"] == f"/console/inferences/{FIRST}?q=%22meta.camera%22%3Dnorth"
    )


def test_what_is_known_of_an_inference_is_listed(keyed):
    page = show(keyed, str(FIRST)).text
    assert "2 true, 1 predicted" in page
    assert ">0.98<" in page
    for field, value in (("meta.camera", "north"), ("meta.at.pier", "14"), ("id", str(FIRST))):
        assert re.search(rf'<dt title="{field}">{field}</dt><dd title="{value}">', page), field
    assert "q=meta.at.pier%3D14" in page
    assert "mara stated the truth" in page
    assert "eve: thumbs 1" in page
    assert "no image kept" in page
    assert "meta.camera%3Dnorth+%26+ts%3Dge%3A" in page  # the same source, around that time


def test_texts_of_clients_are_texts(keyed):
    for number in (0, 2):
        page = show(keyed, str(FIRST + number)).text
        assert HOSTILE not in page
        assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page
        assert page.count("</script>") == page.count("<script")
    assert "\\u003c/script\\u003e" in show(keyed, str(FIRST + 2)).text


@pytest.mark.parametrize(
    ("number", "words"), [(3, "failed after"), (4, ">tensors<"), (5, "What? → two ships")]
)
def test_other_answers_have_their_page(keyed, number, words):
    page = show(keyed, str(FIRST + number))
    assert page.status == 200
    assert words in page.text


def test_tensors_are_said_with_their_names_types_and_shapes(keyed):
    page = show(keyed, str(FIRST + 6))
    assert "probabilities FP32 [1, 4]" in page.text
    assert HOSTILE not in page.text
    grid = show(keyed, f"?q=id%3D{FIRST + 6}").text
    assert ">tensors<" in grid
    for text in (page.text, grid, show(keyed, str(FIRST + 4)).text):
        assert "(empty)" not in text
    assert ">tensors<" not in show(keyed, f"?q=id%3D{FIRST + 7}").text  # the model failed


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("IMAGE_CLASSIFICATION", "classification"), ("OBJECT_DETECTION", "detection"), ("TENSOR", "tensors"),
        ("ORIENTED_OBJECT_DETECTION", "oriented detection"), ("IMAGE_SEGMENTATION", "segmentation"),
        ("IMAGE_TEXT_TO_TEXT", "image-text"), ("OF_ANOTHER", "of another"), ("", ""), (None, ""),
    ],
)  # fmt: skip
def test_a_task_has_its_plain_name(task, words):
    assert task_words(task) == words
    assert task not in SHORT_NAMES.values() or task_words(task).split()[0] in {
        *SHORT_NAMES,
        "tensors",
    }


def test_a_filter_that_is_none_is_said_and_the_inference_is_there(keyed):
    page = show(keyed, f"{FIRST}?q=meta.camera")
    assert page.status == 200
    assert "“meta.camera” is compared with nothing" in page.text
    assert "2 true, 1 predicted" in page.text


@pytest.mark.parametrize(
    ("path", "role", "status"),
    [("1", "read", 404), ("x", "read", 400), (str(FIRST), "team", 404), (str(FIRST + 1), "team", 404)],
)  # fmt: skip
def test_what_is_not_there_is_not_found(keyed, path, role, status):
    assert show(keyed, path, role).status == status


def of_image(number: int, **fields: Any) -> InferenceRecord:
    source = InputReference("image", f"blake3:{number:064x}", 640, 480, "image/jpeg", kept=number != 4)  # fmt: skip
    return make_record(FIRST + number, input=source, **fields)


def strip_of(page: Answer) -> list[int]:
    """Return the inferences of the strip; 0 for the one of the page."""
    strip = re.search(r'<nav class="strip".*?</nav>', page.text, re.DOTALL)
    shots = re.findall(r'<(?:a|span) class="shot [^"]*"(?: href="[^"]*/(\d+)[^"]*")?', strip[0] if strip else "")  # fmt: skip
    return [int(id_ or FIRST) - FIRST for id_ in shots]


def test_the_strip_has_what_comes_before_and_after_in_the_filter(tmp_path):
    settings = Settings(models=str(SAMPLE_MODELS), data=str(tmp_path / "data"))
    migrate(settings.database_url)
    records = [
        of_image(number, team="b" if number == 3 else "a", predictions=[{"label": HOSTILE}] if number == 6 else [],
                 metadata={"odd": number % 2})
        for number in range(1, 12)
    ]  # fmt: skip
    store_entries(settings.database_url, settings.journal_directory, records)
    with writer_engine(settings.database_url) as engine:
        keys = {
            team: create_key(engine, name="x", roles=["annotate"], team=team)[1]
            for team in ("", "a", "b")
        }
    server = Application(settings)
    assert server._keys is not None
    server._keys.refresh()
    keyed = server, keys
    try:
        page = show(keyed, str(FIRST + 5), "")
        assert strip_of(page) == [8, 7, 6, 0, 4, 3, 2]
        assert f"{FIRST + 4}/input" not in page.text  # whose image is not kept
        assert HOSTILE not in page.text
        assert strip_of(show(keyed, f"{FIRST + 5}?order=ts", "")) == [2, 3, 4, 0, 6, 7, 8]
        assert strip_of(show(keyed, f"{FIRST + 5}?q=meta.odd%3D1", "")) == [11, 9, 7, 0, 3, 1]
        assert strip_of(show(keyed, str(FIRST + 5), "a")) == [8, 7, 6, 0, 4, 2, 1]
        assert strip_of(show(keyed, str(FIRST + 3), "b")) == []
        assert strip_of(show(keyed, f"{FIRST + 5}?q=meta.odd%3D9", "")) == []
        assert (
            strip_of(show(keyed, f"{FIRST + 5}?q=id%3D{FIRST + 4}", "")) == []
        )  # without an image
        assert strip_of(show(keyed, f"{FIRST + 5}?q=(", "")) == []
        assert strip_of(show(keyed, f"{FIRST + 5}?by=score", "")) == []  # in the queue
    finally:
        server.close()


SAME = "blake3:" + "5a" * 32
STATED = [{"label": "circle", **BOX}]


def copy_of(number: int, version: str, **fields: Any) -> InferenceRecord:
    """Return an inference of the one image."""
    source = InputReference("image", SAME, 640, 480, "image/jpeg", kept=True)
    return make_record(FIRST + number, input=source, model=ModelReference("shapes", version, version * 64), **fields)  # fmt: skip


@pytest.mark.parametrize(
    ("further", "statements", "answered", "truth"),
    [
        ([], {}, [], None),
        ([copy_of(2, "2")], {}, [2], None),
        ([copy_of(2, "2"), copy_of(3, "1")], {2: STATED}, [3, 2], 2),
        ([copy_of(2, "2"), copy_of(3, "2")], {2: STATED, 3: []}, [3, 2], 3),  # nothing is there
        ([copy_of(2, "2"), copy_of(3, "2")], {2: STATED, 3: (STATED, "rejected")}, [3, 2], 2),
        ([copy_of(2, "2")], {1: STATED, 2: STATED}, [2], None),  # which has its own
        ([copy_of(2, "2", task="IMAGE_CLASSIFICATION")], {2: [{"label": "circle"}]}, [2], None),
        ([copy_of(number, "2") for number in range(2, 9)], {2: STATED}, [8, 7, 6, 5], 2),
        ([copy_of(number, "2") for number in range(2, 60)], {2: STATED}, [59, 58, 57, 56], 2),
        ([make_record(FIRST + 9, predictions=[])], {9: STATED}, [], None),  # without an image
        ([copy_of(2, "2", team="b")], {2: STATED}, [], None),
    ],
)
def test_other_inferences_of_the_same_image_are_named_with_where_its_truth_is(tmp_path, further, statements, answered, truth):  # fmt: skip
    settings = Settings(models=str(SAMPLE_MODELS), data=str(tmp_path / "data"))
    migrate(settings.database_url)
    truths = [
        JournaledChange(FIRST + 100 + number, TruthStatement("id", str(FIRST + number), annotations, "mara", review=review))
        for number, stated in statements.items()
        for annotations, review in [stated if isinstance(stated, tuple) else (stated, "")]
    ]  # fmt: skip
    entries = [copy_of(1, "1", team="a"), *further, *truths]
    store_entries(settings.database_url, settings.journal_directory, entries)
    with keyed_server(settings, a={"roles": ["annotate"], "team": "a" if any(record.team == "b" for record in further) else ""}) as keyed:  # fmt: skip
        page = show(keyed, str(FIRST + 1), "a").text
        reader = show(keyed, str(FIRST + 1), "read").text
    said = "".join(re.findall(r"The same image was answered by (.*?)</p>", page, re.DOTALL))
    assert [int(id_) - FIRST for id_ in re.findall(r"/inferences/(\d+)", said)] == answered
    assert ("and more" in said) == (len(further) > 4)
    stated = re.search(
        r"Truth of it is stated at <a href=\"/console/inferences/(\d+)\">shapes", page
    )
    assert (stated and int(stated[1]) - FIRST) == truth
    assert (f'data-take-truth="/api/inferences/{FIRST + (truth or 0)}"' in page) == (
        truth is not None
    )
    assert "data-take-truth" not in reader


MEASURED = (14.65, 30.5, -1.806, 0.25, -3.0, 7.5, 0.5, 0.0)


@pytest.mark.parametrize(("images", "usual"), [(0, ""), (5, ""), (LEAST, "; usual 13.65 to 14.65")])
def test_what_was_measured_on_the_image_has_its_scale(tmp_path, images, usual):
    settings = Settings(models=str(SAMPLE_MODELS), data=str(tmp_path / "data"))
    migrate(settings.database_url)
    records = [make_record(FIRST + number, predictions=[]) for number in range(max(images, 1))]
    signals = [
        ImageSignals(FIRST + number, np.array((MEASURED[0] - number % 2, *MEASURED[1:]), "<f4").tobytes())
        for number in range(images)
    ]  # fmt: skip
    changes = [JournaledChange(FIRST + 100, SignalsOfImages(signals))] if signals else []
    store_entries(settings.database_url, settings.journal_directory, [*records, *changes])
    with keyed_server(settings) as keyed:
        page = show(keyed, str(FIRST)).text
    shown = dict(
        re.findall(r'<dt title="sig.image.(\w+)">.*?</dt><dd title="[^"]*">(.*?)</dd>', page)
    )
    assert list(shown) == (list(IMAGE_STATISTICS) if images else [])
    if not images:
        assert "Usual: nine in ten" not in page
        return
    assert shown["brightness"] == f'14.65<span class="scale">0 black, 100 white{usual}</span>'
    assert shown["blur"].startswith('40.5<span class="scale">0 sharp, 100 without an edge')
    assert "in a filter" not in shown["blur"]
    assert '<dd title="sig.image.blur=-1.806">' in page
    assert all("scale" in value for value in shown.values())
    assert (f"nine in ten of the newest {LEAST} measured images" in page) == (images == LEAST)
