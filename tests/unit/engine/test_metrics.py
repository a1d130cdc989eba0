import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from litestar.testing import create_test_client
from prometheus_client.parser import text_string_to_metric_families

from quadriga.engine.api.metrics import metrics_route
from quadriga.engine.metrics import PrometheusMetrics
from quadriga.engine.process_metrics import ProcessMetrics
from quadriga.proto.errors import NotFound
from quadriga.proto.messages import (
    BatchStatistics,
    Duration,
    HealthPart,
    HealthReport,
    ModelInfo,
    ModelStatistics,
    ModelStatus,
    ProcessHealth,
    QueueStatistics,
)


class Counted:
    def unready_reason(self) -> str | None:
        return "still loading"

    def health_report(self) -> HealthReport:
        part = HealthPart("ready")
        jobs = ProcessHealth("jobs", "ready", None, restarts=3, hangs=1)
        return HealthReport(
            status="ready", process=part, store=part, models=part, lag_bytes=0, processes=[jobs],
            versions=[],
        )  # fmt: skip

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
                batches=[
                    BatchStatistics(batch_size=size, compute_infer=Duration(count, 1))
                    for size, count in ((1, 2), (3, 1), (200, 1))
                ],
            )
        ]

    def model_statuses(self) -> Sequence[ModelStatus]:
        return [
            ModelStatus(name="m", version="1", state="READY"),
            ModelStatus(name="left", version="1", state="READY"),
            ModelStatus(name="m", version="2", state="LOADING"),
        ]

    def model_info(self, name: str, version: str) -> ModelInfo:
        if name == "left":
            raise NotFound("model not found: left")
        return ModelInfo(
            name=name,
            version=version,
            versions=[version],
            platform="",
            task="TENSOR",
            inputs=[],
            outputs=[],
            providers=("CUDAExecutionProvider", "CPUExecutionProvider"),
        )

    def queue_statistics(self) -> Sequence[QueueStatistics]:
        return [
            QueueStatistics("", refused={"queue_full": 1}),
            QueueStatistics("a", 3, 2, {"queue_full": 5, "wait_too_long": 7}, {"deadline": 4}),
        ]


def test_prometheus_reads_what_the_workers_counted() -> None:
    metrics = PrometheusMetrics(Counted(), "1.2", lambda: {"journal_bytes": 7, "shed_total": 2})
    with create_test_client([metrics_route(metrics, need="key")]) as client:
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
    places = {
        dict(labels)["provider"]: value
        for (name, *labels), value in samples.items()
        if name == "quadriga_model_providers"
    }
    assert places == {"CUDAExecutionProvider": 1, "CPUExecutionProvider": 2}
    assert samples["quadriga_executions_total", model, version] == 4
    buckets = [
        samples["quadriga_batch_size_bucket", ("le", bound), model, version]
        for bound in ("1", "2", "4", "128", "+Inf")
    ]
    assert buckets == [2, 2, 3, 3, 4]
    assert samples["quadriga_batch_size_sum", model, version] == 205
    assert samples["quadriga_batch_size_count", model, version] == 4
    requests = "quadriga_request_duration_seconds"
    assert samples[f"{requests}_count", model, ("outcome", "success"), version] == 3
    assert samples[f"{requests}_sum", model, ("outcome", "success"), version] == 2.5
    assert samples[f"{requests}_sum", model, ("outcome", "failure"), version] == 0.5
    stage = "quadriga_stage_duration_seconds_sum"
    assert samples[stage, model, ("stage", "infer"), version] == 1
    assert samples["quadriga_store_journal_bytes",] == 7
    assert samples["quadriga_store_shed_total",] == 2
    assert samples["quadriga_process_restarts_total", ("process", "jobs")] == 3
    assert samples["quadriga_process_hangs_total", ("process", "jobs")] == 1
    model, unknown = ("model", "a"), ("model", "")
    assert samples["quadriga_requests_waiting", model] == 3
    assert samples["quadriga_requests_running", model] == 2
    refused = "quadriga_requests_refused_total"
    assert samples[refused, model, ("reason", "queue_full")] == 5
    assert samples[refused, model, ("reason", "wait_too_long")] == 7
    assert samples[refused, unknown, ("reason", "queue_full")] == 1
    assert samples["quadriga_requests_stopped_total", model, ("reason", "deadline")] == 4


@pytest.fixture
def children() -> Iterator[list[int]]:
    """A child of this process whose command line is that of a worker, and another child."""
    wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    commands = [[*wait, "quadriga.engine.processes.worker", "worker-7"], [*wait, "worker-8"]]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for command in commands]
    yield [process.pid for process in processes]
    for process in processes:
        process.communicate()


def process_samples(metrics: ProcessMetrics) -> dict[tuple[str, str], float]:
    with create_test_client([metrics_route(metrics, need="key")]) as client:
        text = client.get("/metrics").text
    return {
        (sample.name, sample.labels["process"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


NAMES = {
    "process_cpu_seconds_total", "process_resident_memory_bytes", "process_virtual_memory_bytes",
    "process_start_time_seconds", "process_open_fds", "process_max_fds",
}  # fmt: skip


def test_each_process_of_the_server_is_measured(children) -> None:
    samples = process_samples(ProcessMetrics(3, os.getpid()))
    processes = {"supervisor", "worker-3", "worker-7"}
    assert samples.keys() == {(name, process) for name in NAMES for process in processes}
    for (name, _), value in samples.items():
        assert value > 0 or name == "process_cpu_seconds_total", name
    assert samples["process_open_fds", "worker-3"] > samples["process_open_fds", "worker-7"]


def test_a_process_that_has_ended_is_left_out(children) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    samples = process_samples(ProcessMetrics(0, ended.pid))
    assert {process for _, process in samples} == {"worker-0"}
