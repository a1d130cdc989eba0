"""Writes the alerts for Kubernetes: rules.yml as a PrometheusRule of Prometheus' operator, beside the ServiceMonitor.

Run it after a change of rules.yml; tests/unit/test_kubernetes.py checks that the two agree.
"""

from pathlib import Path
from textwrap import indent

RULES = Path(__file__).with_name("rules.yml")
TARGET = Path(__file__).parents[1] / "kubernetes/overlays/prometheus-operator/prometheusrule.yaml"
INTERVAL = "15s"
"""How often the alerts are evaluated, as deploy/prometheus.yml says where there is no operator."""

_HEAD = """\
# Written by deploy/prometheus/kubernetes.py from deploy/prometheus/rules.yml: change that one, and run the script.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: quadriga
  labels: {app.kubernetes.io/name: quadriga}
spec:
"""


def prometheus_rule() -> str:
    """Return the alerts as a PrometheusRule."""
    lines = []
    for line in RULES.read_text("utf-8").partition("groups:\n")[2].splitlines():
        lines.append(line)
        if line.startswith("  - name: "):
            lines.append(f"    interval: {INTERVAL}")
    return _HEAD + indent("\n".join(["groups:", *lines]), "  ") + "\n"


if __name__ == "__main__":
    TARGET.write_text(prometheus_rule(), "utf-8")
