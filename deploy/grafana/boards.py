"""Writes the boards for Grafana beside this file: `python deploy/grafana/boards.py`. Import them with Prometheus as their data source.

A board is rows of panels; a panel is a title, its unit, and queries with the names of their lines. Tests compare the files with
what this writes, and the metrics with those that a server has.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
_WIDTH, _HEIGHT = 24, 8
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_INSTANCE = 'instance=~"$instance"'
_MODEL = f'{_INSTANCE},model=~"$model"'


class Panel(NamedTuple):
    """A chart of lines over time."""

    title: str
    unit: str
    """Grafana's name of the unit, such as `reqps`, `s`, `bytes`, `percentunit` and `short`."""
    queries: dict[str, str]
    """Queries by the names of their lines, in which `{{label}}` stands for a label's value."""
    text: str = ""
    """Text that one sees at the panel's title."""


class Board(NamedTuple):
    """A board."""

    name: str
    """Name of its file, without the ending."""
    title: str
    has_models: bool
    """Whether one chooses a model."""
    panels: list[Panel]


def _quantile(share: float, metric: str, labels: str, by: str) -> str:
    buckets = f"sum by ({', '.join(['le', *by.split()])}) (rate({metric}_bucket{{{labels}}}[5m]))"
    return f"histogram_quantile({share}, {buckets})"


_DURATION, _STAGE = "quadriga_request_duration_seconds", "quadriga_stage_duration_seconds"

BOARDS = [
    Board(
        "serving",
        "Quadriga: serving",
        True,
        [
            Panel("Requests by outcome", "reqps", {"{{outcome}}": f"sum by (outcome) (rate(quadriga_requests_total{{{_INSTANCE}}}[5m]))"}),
            Panel("Answered in, by model", "s", {
                "{{model}} p50": _quantile(0.5, _DURATION, f'{_MODEL},outcome="success"', "model"),
                "{{model}} p95": _quantile(0.95, _DURATION, f'{_MODEL},outcome="success"', "model"),
                "{{model}} p99": _quantile(0.99, _DURATION, f'{_MODEL},outcome="success"', "model"),
            }),
            Panel("Stages, p95", "s", {"{{stage}}": _quantile(0.95, _STAGE, _MODEL, "stage")}, "queue: more workers or replicas. infer: the model. input: larger images."),
            Panel("Images", "ops", {"{{model}} {{version}}": f"sum by (model, version) (rate(quadriga_images_total{{{_MODEL}}}[5m]))"}),
            Panel("Waiting, and how long", "short", {
                "{{model}} waiting": f"sum by (model) (quadriga_requests_waiting{{{_MODEL}}})",
                "{{model}} running": f"sum by (model) (quadriga_requests_running{{{_MODEL}}})",
                "{{model}} expected wait, s": f"max by (model) (quadriga_requests_expected_wait_seconds{{{_MODEL}}})",
            }),
            Panel("Refused and stopped", "reqps", {
                "{{reason}}": f"sum by (reason) (rate(quadriga_requests_refused_total{{{_INSTANCE}}}[5m]))",
                "{{reason}} (stopped)": f"sum by (reason) (rate(quadriga_requests_stopped_total{{{_INSTANCE}}}[5m]))",
            }),
            Panel("Processor", "percentunit", {"{{process}}": f"sum by (process) (rate(process_cpu_seconds_total{{{_INSTANCE}}}[5m]))"}),
            Panel("Memory", "bytes", {"{{process}}": f"sum by (process) (process_resident_memory_bytes{{{_INSTANCE}}})"}),
            Panel("Certificate ends in", "s", {"{{instance}}": f"quadriga_tls_certificate_end_timestamp_seconds{{{_INSTANCE}}} - time()"}),
            Panel("Keys end in", "s", {"{{name}} ({{key}})": f"min by (key, name) (quadriga_key_end_timestamp_seconds{{{_INSTANCE}}}) - time()"}, "Keys that end within 30 days."),
            Panel("Ends of processes", "short", {"{{process}} {{cause}}": f"sum by (process, cause) (increase(quadriga_process_ends_total{{{_INSTANCE}}}[15m]))"}),
        ],
    ),
    Board(
        "store",
        "Quadriga: store",
        False,
        [
            Panel("Stored", "ops", {"inferences": f"sum(rate(quadriga_store_stored_total{{{_INSTANCE}}}[5m]))"}),
            Panel("Not stored", "ops", {
                name: f"sum(rate(quadriga_store_{name}_total{{{_INSTANCE}}}[5m]))" for name in ("shed", "refused", "blocked", "behind", "lost")
            }),
            Panel("Journal that waits for the database", "bytes", {
                "{{instance}}": f"quadriga_store_lag_bytes{{{_INSTANCE}}}",
                "{{instance}} limit": f"quadriga_store_lag_limit_bytes{{{_INSTANCE}}}",
            }),
            Panel("Oldest record that waits", "s", {"{{instance}}": f"quadriga_store_oldest_waiting_seconds{{{_INSTANCE}}}"}),
            Panel("Free on the disk", "bytes", {"{{instance}} {{folder}}": f"quadriga_disk_free_bytes{{{_INSTANCE}}}"}),
            Panel("Database", "bytes", {"{{instance}}": f"quadriga_store_database_bytes{{{_INSTANCE}}}"}),
            Panel("Images", "bytes", {"{{instance}}": f"quadriga_store_image_bytes{{{_INSTANCE}}}"}, "Counted each hour. Servers that share images each count all of them."),
            Panel("Number of images", "short", {"{{instance}}": f"quadriga_store_images{{{_INSTANCE}}}"}),
            Panel("Set aside", "short", {
                "records": f"sum(quadriga_store_dead_records{{{_INSTANCE}}})",
                "parts of the journal": f"sum(quadriga_store_dead_segments{{{_INSTANCE}}})",
                "databases": f"sum(quadriga_store_damaged_databases{{{_INSTANCE}}})",
            }),
            Panel("Searches that wait, and were refused", "short", {
                "waiting": f"sum(quadriga_queries_waiting{{{_INSTANCE}}})",
                "refused in 5 m": f"sum(increase(quadriga_queries_refused_total{{{_INSTANCE}}}[5m]))",
            }),
        ],
    ),
    Board(
        "monitoring",
        "Quadriga: drift and quality",
        True,
        [
            Panel("Drift alarm", "short", {"{{model}}": f"max by (model) (quadriga_drift_alarm{{{_MODEL}}})"}, "1: the newest report has an alarm."),
            Panel("Signals with an alarm", "short", {"{{model}}": f"max by (model) (quadriga_drift_alarmed_signals{{{_MODEL}}})"}),
            Panel("First metric of the newest evaluation", "short", {"{{model}} {{metric}}": f"max by (model, metric) (quadriga_evaluation_metric{{{_MODEL}}})"}),
            Panel("Age of the newest reports", "s", {
                "{{model}} drift": f"time() - max by (model) (quadriga_drift_report_timestamp_seconds{{{_MODEL}}})",
                "{{model}} evaluation": f"time() - max by (model) (quadriga_evaluation_timestamp_seconds{{{_MODEL}}})",
            }),
            Panel("Jobs", "short", {"{{kind}} {{state}}": f"sum by (kind, state) (quadriga_jobs{{{_INSTANCE}}})"}),
            Panel("Signals of images", "ops", {
                "stored": f"sum(rate(quadriga_store_signals_total{{{_INSTANCE}}}[5m]))",
                "not chosen": f"sum(rate(quadriga_store_signals_skipped_total{{{_INSTANCE}}}[5m]))",
                "dropped": f"sum(rate(quadriga_store_signals_dropped_total{{{_INSTANCE}}}[5m]))",
            }),
        ],
    ),
]  # fmt: skip


def board_json(board: Board) -> str:
    """Return a board as Grafana imports it."""
    variables = [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]  # fmt: skip
    variables.append(_variable("instance", "quadriga_ready"))
    if board.has_models:
        variables.append(_variable("model", "quadriga_images_total"))
    content: dict[str, Any] = {
        "uid": f"quadriga-{board.name}",
        "title": board.title,
        "schemaVersion": 39,
        "tags": ["quadriga"],
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": variables},
        "panels": [_panel_json(number, panel) for number, panel in enumerate(board.panels)],
    }
    return json.dumps(content, indent=1) + "\n"


def _variable(name: str, metric: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": f"label_values({metric}, {name})",
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _panel_json(number: int, panel: Panel) -> dict[str, Any]:
    half = _WIDTH // 2
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": {"x": number % 2 * half, "y": number // 2 * _HEIGHT, "w": half, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": query, "legendFormat": name}
            for place, (name, query) in enumerate(panel.queries.items())
        ],
    }  # fmt: skip


if __name__ == "__main__":
    for each in BOARDS:
        (FOLDER / f"{each.name}.json").write_text(board_json(each))
