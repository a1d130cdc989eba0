"""The alerts that come along: each fires on its fault and is silent without, names metrics that are there, and leads to its section."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from quadriga.engine.measures.metrics import TEXTS

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
ONE = 'instance="a",job="quadriga"'

FAULTS: dict[str, list[tuple[str, str]]] = {
    "QuadrigaDown": [(f"up{{{ONE}}}", "1 1 0x60")],
    "QuadrigaNotReady": [(f"quadriga_ready{{{ONE}}}", "1 0x60")],
    "QuadrigaRequestsFail": [
        (f'quadriga_requests_total{{{ONE},outcome="success"}}', "0+90x60"),
        (f'quadriga_requests_total{{{ONE},outcome="server_error"}}', "0+10x60"),
    ],
    "QuadrigaRequestsRefused": [
        (f'quadriga_requests_total{{{ONE},outcome="success"}}', "0+90x60"),
        (f'quadriga_requests_total{{{ONE},outcome="refused"}}', "0+5x60"),
        (f'quadriga_requests_total{{{ONE},outcome="deadline"}}', "0+5x60"),
    ],
    "QuadrigaQueueLong": [(f'quadriga_requests_expected_wait_seconds{{{ONE},model="m"}}', "3x60")],
    "QuadrigaProcessRestarts": [
        (f'quadriga_process_restarts_total{{{ONE},process="worker-0"}}', "0x40 1 2 3x20")
    ],
    "QuadrigaModelRefused": [(f"quadriga_models_refused{{{ONE}}}", "0x55 1 0x5")],
    "QuadrigaCertificateEnds": [
        (f"quadriga_tls_certificate_end_timestamp_seconds{{{ONE}}}", "500000x60")
    ],
    "QuadrigaKeyEnds": [
        (f'quadriga_key_end_timestamp_seconds{{{ONE},key="a1",name="line 4"}}', "500000x60")
    ],
    "QuadrigaStoreBehind": [(f"quadriga_store_oldest_waiting_seconds{{{ONE}}}", "0+60x60")],
    "QuadrigaJournalFillsUp": [
        (f"quadriga_store_lag_bytes{{{ONE}}}", "0+100x60"),
        (f"quadriga_store_lag_limit_bytes{{{ONE}}}", "1000x60"),
    ],
    "QuadrigaNotStored": [
        (f"quadriga_store_shed_total{{{ONE}}}", "0x60"),
        (f"quadriga_store_refused_total{{{ONE}}}", "0x50 1+1x10"),
        (f"quadriga_store_lost_total{{{ONE}}}", "0x60"),
    ],
    "QuadrigaRecordsSetAside": [
        (f"quadriga_store_dead_records{{{ONE}}}", "0x30 1x30"),
        (f"quadriga_store_dead_segments{{{ONE}}}", "0x60"),
        (f"quadriga_store_damaged_databases{{{ONE}}}", "0x60"),
    ],
    "QuadrigaDiskFillsUp": [(f'quadriga_disk_free_bytes{{{ONE},folder="data"}}', "50e9-500e6x60")],
    "QuadrigaClockWrong": [
        (f"quadriga_store_clock_ahead_seconds{{{ONE}}}", "0x30 3600 0x30"),  # it is followed then
        (f"quadriga_store_clock_jumps_total{{{ONE}}}", "0x30 1x30"),
    ],
    "QuadrigaDrift": [(f'quadriga_drift_alarm{{{ONE},model="m"}}', "0x30 1x30")],
    "QuadrigaJobsFail": [(f'quadriga_jobs{{{ONE},kind="drift",state="failed"}}', "0x30 1x30")],
    "QuadrigaAuditFails": [
        (f"quadriga_audit_failing{{{ONE}}}", "0x30 1x30"),
        (f"quadriga_audit_lost_total{{{ONE}}}", "0x60"),
    ],
    "QuadrigaKeysTried": [(f"quadriga_audit_refusals_total{{{ONE}}}", "0+600x60")],
}
"""Series of an hour, a sample a minute, at whose end an alert fires."""

USUAL = [
    (f"up{{{ONE}}}", "1x60"),
    (f"quadriga_ready{{{ONE}}}", "1x60"),
    (f'quadriga_requests_total{{{ONE},outcome="success"}}', "0+900x60"),
    (f'quadriga_requests_total{{{ONE},outcome="client_error"}}', "0+300x60"),
    (f'quadriga_requests_total{{{ONE},outcome="refused"}}', "0+1x60"),
    (f'quadriga_requests_total{{{ONE},outcome="model_failure"}}', "0+1x60"),
    (f'quadriga_requests_expected_wait_seconds{{{ONE},model="m"}}', "0.1x30 5x2 0.1x28"),
    (f'quadriga_process_restarts_total{{{ONE},process="worker-0"}}', "0x40 1 2x20"),
    (f"quadriga_models_refused{{{ONE}}}", "0x60"),
    (f"quadriga_tls_certificate_end_timestamp_seconds{{{ONE}}}", "900000x60"),
    (f'quadriga_key_end_timestamp_seconds{{{ONE},key="a1",name="line 4"}}', "900000x60"),
    (f"quadriga_store_oldest_waiting_seconds{{{ONE}}}", "0x30 100 0x30"),
    (f"quadriga_store_lag_bytes{{{ONE}}}", "100x60"),
    (f"quadriga_store_lag_limit_bytes{{{ONE}}}", "1000x60"),
    *((f"quadriga_store_{name}_total{{{ONE}}}", "3x60") for name in ("shed", "refused", "lost", "clock_jumps")),
    *((f"quadriga_store_{name}{{{ONE}}}", "0x60") for name in ("dead_records", "dead_segments", "damaged_databases")),
    (f'quadriga_disk_free_bytes{{{ONE},folder="data"}}', "500e9-1e9x60"),
    (f'quadriga_disk_free_bytes{{{ONE},folder="blobs"}}', "50e9x60"),
    ('quadriga_disk_free_bytes{instance="new",folder="data"}', "_x30 50e9-1e9x30"),
    (f"quadriga_store_clock_ahead_seconds{{{ONE}}}", "0x60"),
    (f'quadriga_drift_alarm{{{ONE},model="m"}}', "0x60"),
    (f'quadriga_jobs{{{ONE},kind="drift",state="failed"}}', "4x60"),
    (f"quadriga_audit_failing{{{ONE}}}", "0x60"),
    (f"quadriga_audit_lost_total{{{ONE}}}", "2x60"),
    (f"quadriga_audit_refusals_total{{{ONE}}}", "0+6x60"),
]  # fmt: skip
"""Series of a server on a usual day: none of them raises an alert."""


def test_each_alert_has_a_fault_a_section_and_says_how_bad_it_is():
    sections = re.findall(
        r"^### (\w+)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE
    )
    assert sections == list(ALERTS) == list(FAULTS)
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_alerts_name_metrics_that_are_there():
    for name, rule in ALERTS.items():
        metrics = set(re.findall(r"\bquadriga_\w+", rule["expr"]))
        assert metrics or name == "QuadrigaDown"
        for metric in metrics:
            family = re.sub(r"_(total|bucket|sum|count)$", "", metric)
            assert family in TEXTS, (name, metric)


def test_the_metrics_of_the_runbook_are_there():
    text = (ROOT / "docs" / "operations.md").read_text()
    for metric in set(re.findall(r"\bquadriga_\w+", text)):
        family = re.sub(r"_(total|bucket|sum|count)$", "", metric)
        assert family in TEXTS or family.startswith("quadriga_key_"), metric


@pytest.fixture(scope="module")
def promtool() -> str:
    """Return Prometheus' own tool."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not there: it comes with Prometheus")
    return tool


def series(pairs: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in pairs]


def test_each_alert_fires_on_its_fault_and_is_silent_on_a_usual_day(promtool: str, tmp_path: Path):
    tests = []
    for name, fault in FAULTS.items():
        faulty = {metric for metric, _ in fault}
        pairs = fault + [
            pair for pair in USUAL if pair[0] not in faulty and not _is_of(pair, fault)
        ]
        tests.append(
            {
                "interval": "1m",
                "input_series": series(pairs),
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) > bool 0',
                        "eval_time": "59m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                ],
            }
        )
    tests.append(
        {
            "interval": "1m",
            "input_series": series(USUAL),
            "promql_expr_test": [
                {"expr": "ALERTS", "eval_time": f"{at}m", "exp_samples": []} for at in (20, 45, 59)
            ],
        }
    )
    file = tmp_path / "tests.yml"
    content = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    file.write_text(yaml.safe_dump(content))
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(file)]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_replicas_on_one_database_have_one_alert_for_a_key(promtool: str, tmp_path: Path):
    def key(instance: str, job: str, key: str) -> str:
        labels = f'instance="{instance}",job="{job}",key="{key}",name="line 4"'
        return f"quadriga_key_end_timestamp_seconds{{{labels}}}"

    pairs = [
        (key("a", "quadriga", "a1"), "500000x60"),
        (key("b", "quadriga", "a1"), "500000x60"),
        (key("a", "quadriga", "a2"), "2000000x60"),  # ends in three weeks
        (key("c", "other", "b1"), "500000x60"),
    ]
    firing = 'ALERTS{alertname="QuadrigaKeyEnds",alertstate="firing"}'
    samples = [
        {
            "labels": f'{firing[:-1]},job="{job}",key="{key}",name="line 4",severity="warning"}}',
            "value": 1,
        }
        for job, key in (("other", "b1"), ("quadriga", "a1"))
    ]
    expected = {"expr": firing, "eval_time": "59m", "exp_samples": samples}
    test = {"interval": "1m", "input_series": series(pairs), "promql_expr_test": [expected]}
    file = tmp_path / "tests.yml"
    content = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
    file.write_text(yaml.safe_dump(content))
    command = [promtool, "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _is_of(pair: tuple[str, str], fault: list[tuple[str, str]]) -> bool:
    """Check whether a usual series is of a metric that the fault has series of."""
    return pair[0].partition("{")[0] in {metric.partition("{")[0] for metric, _ in fault}
