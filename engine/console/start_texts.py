"""Texts of the forms that start comparisons, evaluations and exports."""

from collections.abc import Mapping

START_TEXTS: Mapping[str, str] = {
    "no_reports_text": "Start a comparison or an evaluation above; a schedule makes them without being asked.",
    "no_reports_otherwise": "Evaluations and drift comparisons make reports: whoever may monitor starts them here, once a model "
    "has stored inferences.",
    "start_new": "Compare times, or evaluate",
    "start_drift": "Compare times",
    "start_evaluation": "Evaluate",
    "start_evaluation_text": "On the inferences that have truth, all or those of the filter.",
    "period": "Period",
    "period_day": "the last 24 hours",
    "period_today": "today (UTC)",
    "period_week": "this week, since Monday (UTC)",
    "period_seven_days": "the last 7 days",
    "period_own": "Own times instead (UTC)",
    "period_from": "From",
    "period_to": "Until",
    "before_previous": "the period of the same length before",
    "before_baseline": "the baseline {baseline}, kept of {models}",
    "versions_together": "{model}, versions {versions} together",
    "compared_slices": "Slices by",
    "compared_slices_text": "Keys of the metadata, with commas. Without any, the source, such as a camera, and the keys with the fewest values.",
    "no_truth_to_evaluate": "nothing to evaluate: no inference of {model} that the filter finds has truth",
    "export_these": "Export these",
    "export_format": "Format",
    "export_annotations": "Annotations of datasets",
    "export_either": "truth, else predictions",
    "export_ground_truth": "truth",
    "export_predictions": "predictions",
    "download": "Download {file}",
}
