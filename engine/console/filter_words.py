"""What the filter line offers while one types: fields, operators fit to each, and words that say what they mean."""

from datetime import UTC, datetime
from typing import Any

from quadriga.engine.console.filter_problems import OUTCOME_NAMES
from quadriga.engine.console.search_words import FIELD_SYNONYMS, phrases
from quadriga.engine.console.texts import FIELD_WORDS, OPERATOR_WORDS, TEXTS
from quadriga.store.query.filters.syntax import BOUNDS, FIELDS, OPERATORS, PROPERTIES, SIGNAL_FIELDS

SHOWN_TEXTS = (
    "suggestions", "suggestions_count", "recent", "forget_recent", "one_equals", "full_name", "right_form", "from_day", "until_day",
    "on_day", "last_hour", "last_day", "last_week", "value_of", "and_score", "at_least_score", "about",
)  # fmt: skip
"""Names of the texts that the script shows."""

_OTHER_OPERATORS = {"label": ("ne", "in"), "best": ("ne", "in"), "box": (), "geo": ("exists",)}
"""Operators of the fields that are a kind of their own."""

_FIRST = (
    "model", "label", "ts", "ground_truth", "ground_truth.review", "box", "latency_ms", "status", "predictions",
)  # fmt: skip
_REVIEWS = ("needs_review", "approved", "rejected")


def filter_words() -> dict[str, Any]:
    """Return what the script completes with, besides the values that are stored; it takes it as JSON.

    Returns:
        `fields`: name, kind and words of each, in the order in which they are offered. `operators`: of each kind, with their
        words. `properties`: what a prediction is bounded by, with its words. `values`: those that a field can have at all.
        `names`: fields by other words for them. `outcomes`: words that evaluations have filters for, with what they find. `phrases`: words that stand for a comparison, with it and what it finds.
        `texts`: what else is shown.
    """
    kinds = {
        **FIELDS,
        **dict.fromkeys(SIGNAL_FIELDS, "number"),
        **{name: name for name in _OTHER_OPERATORS},
    }
    names = [*_FIRST, *(name for name in kinds if name not in _FIRST)]
    operators = dict[str, tuple[str, ...]](OPERATORS.items()) | _OTHER_OPERATORS
    return {
        "fields": [[name, kinds[name], _words(name)] for name in names],
        "operators": {
            kind: [[name, OPERATOR_WORDS["time" if kind == "time" else "value"][name]] for name in of_kind]
            for kind, of_kind in operators.items()
        },
        "bounds": [[name, OPERATOR_WORDS["value"][name]] for name in BOUNDS],
        "properties": [[name, FIELD_WORDS[f"of.{name}"]] for name in (*PROPERTIES, "n")],
        "values": {"ground_truth.review": list(_REVIEWS)},
        "names": {name: field for field, names in FIELD_SYNONYMS.items() for name in names},
        "phrases": [[[*phrase.names], phrase.line, TEXTS[phrase.meaning]] for phrase in phrases(datetime.now(UTC).date())],
        "outcomes": [[[*names], TEXTS[f"outcome_{kind}"]] for kind, names in OUTCOME_NAMES.items()],
        "texts": {name: TEXTS[name] for name in SHOWN_TEXTS},
    }  # fmt: skip


def _words(field: str) -> str:
    return FIELD_WORDS["sig.image" if field.startswith("sig.image.") else field]
