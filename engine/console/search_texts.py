"""Texts of the search: what words that are typed without a field find, and other lines that may have been meant."""

from collections.abc import Mapping

SEARCH_TEXTS: Mapping[str, str] = {
    "did_you_mean": "Did you mean",
    "bar_length": "A bar is {length}.",
    "zone": "Times are in {zone}; the filter and what is typed are in UTC.",
    "zone_utc": "Times are in UTC.",
    "view_replace_title": "Replace the view {view}?",
    "view_remove_title": "Remove the view {view}?",
    "view_replace": "Replace",
    "view_keep": "Keep",
    "view_has": "It has the filter",
    "view_would_have": "Instead it would have",
    "view_everything": "everything",
    "found_count": "finds {n}",
    "find_hint": "Find inferences, by label, score, time, model or metadata",
    "find_example": "Find inferences, such as {example}",
    "add_hint": "add another comparison",
    "phrase_low": "a prediction with a score below 0.5",
    "phrase_high": "a prediction with a score of at least 0.9",
    "phrase_many": "at least five predictions",
    "phrase_empty": "nothing was predicted",
    "phrase_yesterday": "yesterday, UTC",
    "phrase_today": "today, UTC",
    "phrase_failed": "the model failed",
    "phrase_slow": "answered in a second or more",
    "phrase_truth": "the truth is known",
    "phrase_no_truth": "the truth is not known",
    "phrase_score_lt": "a prediction with a score below {score}",
    "phrase_score_le": "a prediction with a score of at most {score}",
    "phrase_score_gt": "a prediction with a score above {score}",
    "phrase_score_ge": "a prediction with a score of at least {score}",
    "phrase_score_eq": "a prediction with a score of {score}",
}
"""Texts by name, as part of those of the console."""
