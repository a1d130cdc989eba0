"""Texts of the pages of reports: labels, the confusion matrix, and what their numbers count."""

from collections.abc import Mapping

REPORT_TEXTS: Mapping[str, str] = {
    "labels_note": "the worst first; numbers lead to their images",
    "labels_more": "{n} more labels come after these; the whole report has them.",
    "labels_more_one": "1 more label comes after these; the whole report has it.",
    "labels_counts": "What is true, missed or false, recall and precision count {unit}, as the confusion matrix does",
    "counts_once": "an image with several stands once in their list",
    "counts_once_sentence": "An image with several stands once in their list.",
    "cell_counts": "{n} {unit} on {images}",
    "labels_true": "True",
    "labels_lost": "Missed or taken for another",
    "labels_wrong": "False",
    "confusion_rule": "predictions with a score of at least {score}, overlap (IoU) at least {iou}",
    "confusion_note": "rows: truth; columns: predicted; a cell leads to its images",
    "moved_where": "most where {by} is {value}: moved {effect} there, {other} elsewhere",
    "moved_where_alone": "most where {by} is {value}: moved {effect} there",
    "back_to_console": "Back to the report in the console",
    "strip_few": "too few values, or not compared",
    "versions_compared": "Versions {versions} are compared together: what changed may be how much each of them answered. Compare times takes one version, too.",
    "drift_over": "no alarm since then",
    "compare_counted": "Images: those that both have answered and that have truth. A row leads to the images of {b} with truth there; those that {a} has not "
    "answered are among them, and each answer to an image that was sent several times.",
    "compare_needs_images": "They can be evaluated side by side once both have answered the same images.",
    "compare_needs_truth": "They can be evaluated side by side once some of the images that both have answered have truth with {b}.",
    "compare_needs_truth_found": "They can be evaluated side by side once some of the images that the filter finds have truth with {b}.",
    "compare_needs_images_found": "They can be evaluated side by side once both have answered the same images: none of those that the filter finds.",
    "curves_of": "of the {shown} labels with the least area below, of {total}",
    "curves_note": "At the chosen score, overlap (IoU) at least {iou}. The precision of objects is interpolated: the best one at this recall or a higher "
    "one, so 1.00 can stand beside false predictions. What is counted stands in the table of labels and in the confusion matrix.",
    "curves_note_labels": "At the chosen score. What is counted stands in the table of labels and in the confusion matrix.",
}
"""Texts by name, as part of those of the console."""
