"""The words of the pages mean what the glossary says, and stand in the templates where people meet them."""

import re

import pytest

from quadriga.engine.console.frame import Frame
from quadriga.engine.console.texts import WORD_GROUPS, WORDS, words_of_metrics
from quadriga.store.records.records import IMAGE_STATISTICS
from tests.server_process import ROOT

GLOSSARY = dict(
    re.findall(
        r"^\| ([^|]+?) \| ([^|]+?) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE
    )
)


@pytest.mark.parametrize("id_", [id_ for id_, word in WORDS.items() if word.glossary])
def test_meanings_begin_as_in_the_glossary(id_):
    meaning = GLOSSARY[WORDS[id_].name]
    assert WORDS[id_].meaning.startswith(meaning.split(". ")[0].removesuffix("."))


def test_every_word_stands_in_one_group_and_every_signal_of_an_image_is_explained():
    assert len(WORDS) == sum(len(group) for group in WORD_GROUPS.values())
    assert {f"image.{name}" for name in IMAGE_STATISTICS} <= WORDS.keys()
    assert all(word.meaning.endswith(".") for word in WORDS.values())


def test_links_to_words_lead_to_their_place_below_the_path_of_a_proxy():
    frame = Frame("https://one.example/under", has_store=True)
    parts = frame._environment.get_template("parts.html.jinja").module
    link = str(parts.term("effect", "Effect"))
    assert 'href="/under/console/words#effect"' in link
    assert WORDS["effect"].meaning in link
    assert str(parts.terms([])) == ""


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        ([], []),
        (["AP", "AP, IoU 0.5", "AR, 1 per image"], ["ap", "iou", "ar"]),
        (["F1, macro average", "<b>", "TopKAccuracy, k = 1"], ["f1"]),
    ],
)
def test_words_of_metrics(names, ids):
    assert words_of_metrics(names) == ids
