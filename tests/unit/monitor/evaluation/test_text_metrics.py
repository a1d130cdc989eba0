"""Numbers of texts, beside sacrebleu, rouge-score and the formulas of the papers."""

import math
import sys
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU

from quadriga.monitor.evaluation.text import prompts as answers
from quadriga.monitor.evaluation.text.prompts import (
    anls,
    bleu_counts,
    bleu_score,
    cider,
    exact_match,
    levenshtein,
    normalise_text,
    rouge_l,
    token_f1,
    vqa_accuracy,
    words,
)

WORDS = [
    "a",
    "the",
    "ship",
    "Ship's",
    "red",
    "RED",
    "3.5",
    "1,000",
    "left-hand",
    "of",
    "in",
    "on,",
    "dock.",
    "it's",
    "&",
    "<tag>",
    "é",
    "船",
    "no",
    "yes",
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
REFERENCES = st.lists(TEXTS, min_size=1, max_size=4)

NORMALISED = {
    "The  Ship!": "ship",
    "an apple, a pear": "apple pear",
    "theory of a.n": "theory of",
    "U.S.A.": "usa",
    "it's": "its",
    "": "",
    "the": "",
    "Été « 船": "été « 船",
}


@pytest.mark.parametrize(("text", "expected"), NORMALISED.items())
def test_normalisation_is_that_of_squad(text, expected):
    assert normalise_text(text) == expected


# answer, references: exact match, F1, accuracy, ANLS
AGREEMENT = {
    "same": ("yes", ["yes"], 1, 1, None, 1),
    "same but for form": ("The Yes.", ["yes"], 1, 1, None, 0),
    "another of two": ("no", ["yes", "No"], 1, 1, (0 + 1 / 3) / 2, 1),
    "wrong": ("red", ["blue"], 0, 0, None, 0),
    "one word of two": ("red ship", ["ship"], 0, 2 / 3, None, 0),
    "a word twice": ("red red ship", ["red ship ship"], 0, 2 / 3, None, 9 / 13),
    "nothing": ("", ["ship"], 0, 0, None, 0),
    "nothing, as expected": ("", ["", "ship"], 1, 1, (0 + 1 / 3) / 2, 1),
    "an article for nothing": ("the", ["a"], 1, 1, None, 0),
    "a letter off": ("shlp", ["ship"], 0, 0, None, 3 / 4),
    "half of the letters": ("shxx", ["ship"], 0, 0, None, 0),
    "just under half": ("abcxx", ["abcde"], 0, 0, None, 3 / 5),
    "case and spaces": (" Red\tship ", ["red  SHIP"], 1, 1, None, 1),
    "four of ten agree": ("2", ["2"] * 4 + ["3"] * 6, 1, 1, 1, 1),
    "three of ten agree": ("2", ["2"] * 3 + ["3"] * 7, 1, 1, (3 * 2 / 3 + 7) / 10, 1),
    "one of ten agrees": ("2", ["2"] + ["3"] * 9, 1, 1, 9 * (1 / 3) / 10, 1),
    "all of three agree": ("2", ["2"] * 3, 1, 1, 2 / 3, 1),
}


@pytest.mark.parametrize("case", AGREEMENT.values(), ids=AGREEMENT)
def test_agreement_by_hand(case):
    answer, references, match, f1, accuracy, likeness = case
    assert exact_match(answer, references) == match
    assert token_f1(answer, references) == pytest.approx(f1, abs=1e-12)
    actual = vqa_accuracy(answer, references)
    assert math.isnan(actual) if accuracy is None else actual == pytest.approx(accuracy, abs=1e-12)
    assert anls(answer, references) == pytest.approx(likeness, abs=1e-12)


def plain_levenshtein(first, second):
    row = list(range(len(second) + 1))
    for at, letter in enumerate(first, 1):
        diagonal, row[0] = row[0], at
        for place, with_ in enumerate(second, 1):
            diagonal, row[place] = (
                row[place],
                min(row[place] + 1, row[place - 1] + 1, diagonal + (letter != with_)),
            )
    return row[-1]


@settings(max_examples=200)
@given(st.text("ab 船", max_size=80), st.text("ab 船", max_size=80))
def test_distance_is_that_of_the_table(first, second):
    assert levenshtein(first, second) == plain_levenshtein(first, second)


@settings(max_examples=100)
@given(st.lists(st.tuples(TEXTS, REFERENCES), min_size=1, max_size=6))
def test_bleu_is_that_of_sacrebleu(pairs):
    counts = np.sum([bleu_counts(*pair) for pair in pairs], axis=0)
    most = max(len(references) for _, references in pairs)
    streams = [
        [references[at] if at < len(references) else None for _, references in pairs]
        for at in range(most)
    ]
    expected = BLEU().corpus_score([answer for answer, _ in pairs], streams).score
    assert bleu_score(counts) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=100)
@given(TEXTS, REFERENCES)
def test_rouge_is_that_of_rouge_score(answer, references):
    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    expected = max(scorer.score(reference, answer)["rougeL"].fmeasure for reference in references)
    assert rouge_l(answer, references) == pytest.approx(expected, abs=1e-9)


def test_without_the_extra_they_are_undefined(monkeypatch):
    for name in ("sacrebleu.metrics", "rouge_score.rouge_scorer"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(answers, "_bleu", answers._bleu.__wrapped__)
    monkeypatch.setattr(answers, "_rouge", answers._rouge.__wrapped__)
    assert np.isnan(bleu_counts("a", ["a"])).all()
    assert math.isnan(bleu_score([1.0] * 10))
    assert math.isnan(rouge_l("a", ["a"]))


class CiderScorer:
    """The formulas of pycocoevalcap's `cider_scorer.py`, step by step."""

    def __init__(self, pairs):
        self.tests = [self.precook(answer) for answer, _ in pairs]
        self.refs = [
            [self.precook(reference) for reference in references] for _, references in pairs
        ]
        self.df = defaultdict(float)
        for refs in self.refs:
            for ngram in {ngram for ref in refs for ngram in ref}:
                self.df[ngram] += 1
        self.ref_len = np.log(float(len(self.refs)))

    def precook(self, text):
        row, counts = words(text), defaultdict(int)
        for k in range(1, 5):
            for i in range(len(row) - k + 1):
                counts[tuple(row[i : i + k])] += 1
        return counts

    def counts2vec(self, counts):
        vec, norm, length = [defaultdict(float) for _ in range(4)], [0.0] * 4, 0
        for ngram, term_freq in counts.items():
            n = len(ngram) - 1
            df = np.log(max(1.0, self.df.get(ngram, 0.0)))
            vec[n][ngram] = float(term_freq) * (self.ref_len - df)
            norm[n] += pow(vec[n][ngram], 2)
            if n == 1:
                length += term_freq
        return vec, [np.sqrt(n) for n in norm], length

    def sim(self, hyp, ref):
        (vec_hyp, norm_hyp, length_hyp), (vec_ref, norm_ref, length_ref) = hyp, ref
        delta = float(length_hyp - length_ref)
        val = np.zeros(4)
        for n in range(4):
            for ngram in vec_hyp[n]:
                val[n] += min(vec_hyp[n][ngram], vec_ref[n][ngram]) * vec_ref[n][ngram]
            if norm_hyp[n] != 0 and norm_ref[n] != 0:
                val[n] /= norm_hyp[n] * norm_ref[n]
            val[n] *= np.e ** (-(delta**2) / (2 * 6.0**2))
        return val

    def scores(self):
        scores = []
        for test, refs in zip(self.tests, self.refs, strict=True):
            score = np.zeros(4)
            for ref in refs:
                score += self.sim(self.counts2vec(test), self.counts2vec(ref))
            scores.append(np.mean(score) / len(refs) * 10.0)
        return scores


@settings(max_examples=100)
@given(st.lists(st.tuples(TEXTS, REFERENCES), min_size=1, max_size=8))
def test_cider_is_that_of_the_reference_program(pairs):
    scores = cider([answer for answer, _ in pairs], [references for _, references in pairs])
    np.testing.assert_allclose(scores, CiderScorer(pairs).scores(), rtol=0, atol=1e-9)


def test_cider_of_what_everybody_says_is_ten():
    answers = ["a red ship lies at the dock", "two blue planes stand on a runway"]
    np.testing.assert_allclose(cider(answers, [[answer] for answer in answers]), [10, 10])
    assert cider([], []).shape == (0,)
