from collections.abc import Sequence

from litestar.testing import create_test_client
from prometheus_client.parser import text_string_to_metric_families

from quadriga.engine.api.metrics import metrics_route
from quadriga.engine.metrics import PrometheusMetrics
from quadriga.proto.messages import Duration, ModelStatistics


class Counted:
    def unready_reason(self) -> str | None:
        return "still loading"

    def statistics(self, name: None, version: None) -> Sequence[ModelStatistics]:
        return [
            ModelStatistics(
                name='odd "name"\\',
                version="1",
                inference_count=5,
                execution_count=4,
                success=Duration(3, 2_500_000_000),
                fail=Duration(1, 500_000_000),
                compute_infer=Duration(4, 1_000_000_000),
            )
        ]


def test_prometheus_reads_what_the_workers_counted() -> None:
    metrics = PrometheusMetrics(Counted(), "1.2", lambda: {"journal_bytes": 7, "shed_total": 2})
    with create_test_client([metrics_route(metrics)]) as client:
        response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    model, version = ("model", 'odd "name"\\'), ("version", "1")
    assert samples["quadriga_build_info", ("version", "1.2")] == 1
    assert samples["quadriga_ready",] == 0
    assert samples["quadriga_images_total", model, version] == 5
    assert samples["quadriga_executions_total", model, version] == 4
    requests = "quadriga_request_duration_seconds"
    assert samples[f"{requests}_count", model, ("outcome", "success"), version] == 3
    assert samples[f"{requests}_sum", model, ("outcome", "success"), version] == 2.5
    assert samples[f"{requests}_sum", model, ("outcome", "failure"), version] == 0.5
    stage = "quadriga_stage_duration_seconds_sum"
    assert samples[stage, model, ("stage", "infer"), version] == 1
    assert samples["quadriga_store_journal_bytes",] == 7
    assert samples["quadriga_store_shed_total",] == 2
