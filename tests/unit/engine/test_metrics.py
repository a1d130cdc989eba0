import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from litestar.testing import create_test_client
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from quadriga.engine.api.metrics import metrics_route
from quadriga.engine.measures.metrics import TEXTS, ProcessMetrics, PrometheusMetrics
from quadriga.engine.measures.model_counts import ModelCounters
from quadriga.engine.measures.shared_counts import RequestCounts, ServerNumbers, SharedCounts
from quadriga.proto.errors import NotFound
from quadriga.proto.messages import HealthPart, HealthReport, ModelInfo, ModelStatus, ProcessHealth
from quadriga.proto.request import QueueStatistics


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
            QueueStatistics(""),
            QueueStatistics("a", 3, 2, expected_wait_s=1.5),
        ]


NUMBERS = {"lag_bytes": 7, "shed_total": 2, "body_bytes": 3, "clock_ahead_seconds": 0.5}
QUEUES = [
    QueueStatistics("", refused={"queue_full": 1}),
    QueueStatistics("a", 3, 2, {"queue_full": 5, "wait_too_long": 7}, {"deadline": 4}),
]
ODD = 'odd "name"\\'


def count_some(counts: SharedCounts) -> None:
    """Count what a worker would: four requests to a model, one of which failed, and one over another protocol."""
    model = ModelCounters(counts, ODD, "1")
    for size, duration_ms in ((1, 1), (1, 4), (3, 40_000)):
        end_ns = 10 + duration_ms * 10**6
        events = [(0, 10, -1, None), (10, end_ns, size, None), (0, end_ns, 0, None)]
        model.count_success(size, 0, events)
    model.count_failure(0, [(0, 10, -1, None), (0, 10 + 5 * 10**8, 0, None)])
    events = [(0, 10, -1, None), (10, 20, 200, None), (0, 20, 0, None)]
    model.count_success(1, 2 * 10**6, events, "v2-grpc")
    RequestCounts(counts).count("v1", "refused")


def read(*collectors: Collector) -> str:
    with create_test_client([metrics_route(*collectors, need="key")]) as client:
        response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    return response.text


def samples_of(text: str) -> dict[tuple[object, ...], float]:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def server_metrics(counts: SharedCounts) -> PrometheusMetrics:
    numbers = ServerNumbers(counts, lambda: NUMBERS, lambda: QUEUES)
    return PrometheusMetrics(Counted(), "1.2", numbers.totals, counts)


def test_a_model_without_requests_has_no_histograms() -> None:
    counts = SharedCounts()
    ModelCounters(counts, "idle", "1")
    samples = samples_of(read(server_metrics(counts)))
    assert {
        name: value for (name, *labels), value in samples.items() if ("model", "idle") in labels
    } == {
        "quadriga_images_total": 0,
        "quadriga_executions_total": 0,
    }


def test_prometheus_reads_what_the_workers_counted() -> None:
    counts = SharedCounts(2)
    count_some(counts)
    count_some(SharedCounts(2, 1, counts.descriptor))
    samples = samples_of(read(server_metrics(counts)))
    model, version = ("model", ODD), ("version", "1")
    assert samples["quadriga_build_info", ("version", "1.2")] == 1
    assert samples["quadriga_ready",] == 0
    assert samples["quadriga_images_total", model, version] == 12
    places = {
        dict(labels)["provider"]: value
        for (name, *labels), value in samples.items()
        if name == "quadriga_model_providers"
    }
    assert places == {"CUDAExecutionProvider": 1, "CPUExecutionProvider": 2}
    assert samples["quadriga_executions_total", model, version] == 8
    buckets = [
        samples["quadriga_batch_size_bucket", ("le", bound), model, version]
        for bound in ("1", "2", "4", "128", "+Inf")
    ]
    assert buckets == [4, 4, 6, 6, 8]
    assert samples["quadriga_batch_size_sum", model, version] == 2 * 205
    assert samples["quadriga_batch_size_count", model, version] == 8
    requests, success = "quadriga_request_duration_seconds", ("outcome", "success")
    v2, grpc = ("protocol", "v2"), ("protocol", "grpc")
    buckets = [
        samples[f"{requests}_bucket", ("le", bound), model, success, v2, version]
        for bound in ("0.001", "0.0025", "0.005", "30.0", "+Inf")
    ]
    assert buckets == [2, 2, 4, 4, 6]
    assert samples[f"{requests}_count", model, success, v2, version] == 6
    assert samples[f"{requests}_sum", model, success, v2, version] == 2 * 40.005
    assert samples[f"{requests}_count", model, success, grpc, version] == 2
    assert samples[f"{requests}_sum", model, ("outcome", "failure"), v2, version] == 1
    stage = "quadriga_stage_duration_seconds"
    assert samples[f"{stage}_sum", model, ("stage", "infer"), version] == 2 * 40.00500001
    assert samples[f"{stage}_count", model, ("stage", "queue"), version] == 8
    assert samples[f"{stage}_sum", model, ("stage", "queue"), version] == 0.004
    assert samples["quadriga_store_lag_bytes",] == 7
    assert samples["quadriga_store_clock_ahead_seconds",] == 0.5
    assert samples["quadriga_store_shed_total",] == 2
    assert samples["quadriga_body_bytes",] == 3
    assert samples["quadriga_process_restarts_total", ("process", "jobs")] == 3
    assert samples["quadriga_process_hangs_total", ("process", "jobs")] == 1
    model, unknown = ("model", "a"), ("model", "")
    assert samples["quadriga_requests_waiting", model] == 3
    assert samples["quadriga_requests_running", model] == 2
    assert samples["quadriga_requests_expected_wait_seconds", model] == 1.5
    refused = "quadriga_requests_refused_total"
    assert samples[refused, model, ("reason", "queue_full")] == 5
    assert samples[refused, model, ("reason", "wait_too_long")] == 7
    assert samples[refused, unknown, ("reason", "queue_full")] == 1
    assert samples["quadriga_requests_stopped_total", model, ("reason", "deadline")] == 4
    answered = "quadriga_requests_total"
    assert samples[answered, ("outcome", "refused"), ("protocol", "v1")] == 2
    assert samples[answered, ("outcome", "gone"), ("protocol", "none")] == 0


def test_numbers_of_a_worker_that_starts_again_go_on_where_they_ended() -> None:
    counts = SharedCounts(2)
    other = ServerNumbers(counts, lambda: {"stored_total": 5, "body_bytes": 2}, lambda: QUEUES)
    other.publish()

    def worker(stored: int) -> ServerNumbers:
        memory = SharedCounts(2, 1, counts.descriptor)
        return ServerNumbers(
            memory, lambda: {"stored_total": stored, "body_bytes": 7, "lag_bytes": 9}, list
        )

    first = worker(30)
    assert first.totals() == {"stored_total": 35, "body_bytes": 9, "lag_bytes": 9}
    again = worker(1)
    assert again.totals() == {"stored_total": 36, "body_bytes": 9, "lag_bytes": 9}
    assert again.totals() == {"stored_total": 36, "body_bytes": 9, "lag_bytes": 9}
    assert other.totals() == {"stored_total": 36, "body_bytes": 9}


def test_each_metric_has_a_text_of_its_own() -> None:
    counts = SharedCounts()
    count_some(counts)
    texts = dict(re.findall("^# HELP ([^ ]+) (.*)$", read(server_metrics(counts)), re.MULTILINE))
    assert len(set(texts.values())) == len(texts)
    assert len(set(TEXTS.values())) == len(TEXTS)
    assert all(text.endswith(".") and "\n" not in text for text in TEXTS.values())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_own_check_finds_nothing() -> None:
    counts = SharedCounts()
    count_some(counts)
    text = read(server_metrics(counts), ProcessMetrics(0))
    check = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert (check.stdout + check.stderr, check.returncode) == ("", 0)


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
    return {
        (sample.name, sample.labels["process"]): sample.value
        for family in text_string_to_metric_families(read(metrics))
        for sample in family.samples
    }


NAMES = {
    "process_cpu_seconds_total", "process_resident_memory_bytes", "process_virtual_memory_bytes",
    "process_start_time_seconds", "process_open_fds", "process_max_fds", "process_threads",
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
