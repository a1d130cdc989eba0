"""Traces of OpenTelemetry: spans of requests, batches of the writer, jobs and deliveries, sent by each process for itself.

This is the only module that imports opentelemetry. The SDK's own variables configure it: `OTEL_EXPORTER_OTLP_ENDPOINT`,
`OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_BSP_…`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME`.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any

import msgspec
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Link,
    SpanKind,
    StatusCode,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from quadriga.proto.request import ModelRun, RequestContext, TraceContext

FLUSH_S = 3.0
"""Maximum seconds that the end of a process waits for its last spans to be sent."""

MAX_LINKS = 128
"""Maximum requests that a batch of the writer is linked to."""

_FAILED = frozenset({"model_failure", "server_error", "deadline", "refused"})
_STAGES = (("input", "preprocess"), ("infer", "infer"), ("output", "postprocess"))


class Tracing:
    """The spans of one process. Safe to use from several threads.

    Args:
        process: Name of the process.
    """

    def __init__(self, process: str) -> None:
        self._provider = TracerProvider(resource=_resource(process), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("quadriga", version("quadriga"))

    def begin(self, request: RequestContext) -> None:
        """Begin the span of a request, if it is sampled."""
        span = self._tracer.start_span(
            request.method,
            _context("" if request.parent is None else request.parent.traceparent),
            SpanKind.SERVER,
            start_time=request.begun_epoch_ns,
        )
        request.restart = self.begin
        request.span, request.trace = None, request.parent
        if span.is_recording():
            request.span, request.trace = span, _trace_context(span)

    def end(self, request: RequestContext) -> None:
        """End the span of a request, with one for each of its stages.

        Of health, metadata and metrics there are spans only where a client sent the context, or where they fail.
        """
        span: Span | None = request.span
        has_failed = request.outcome in _FAILED
        if span is None or (
            request.protocol == "state" and request.parent is None and not has_failed
        ):
            return
        route = request.route or ("" if request.method == "RPC" else request.path)
        span.update_name(f"{request.method} {route}".removeprefix("RPC /").strip())
        span.set_attributes(_attributes(request))
        if has_failed:
            span.set_status(StatusCode.ERROR, request.outcome)
        if request.run is not None:
            self._add_stages(span, request, request.run)
        span.end(request.begun_epoch_ns + request.ended_ns - request.begun_ns)

    def note_batch(self, payloads: Sequence[bytes], begun_ns: int, ended_ns: int) -> None:
        """Record that the writer has committed records, with links to the requests that they are of.

        Args:
            payloads: Frames of the journal.
            begun_ns: Begin of the commit, in ns since 1970.
            ended_ns: Its end.
        """
        parents = map(_context, dict.fromkeys(map(_stored_traceparent, payloads)))
        contexts = [get_current_span(parent).get_span_context() for parent in parents]
        contexts = [context for context in contexts if context.is_valid]
        if not contexts:
            return
        span = self._tracer.start_span(
            "store batch",
            Context(),
            SpanKind.CONSUMER,
            attributes={"quadriga.records": len(payloads), "quadriga.traces": len(contexts)},
            links=[Link(context) for context in contexts[:MAX_LINKS]],
            start_time=begun_ns,
        )
        span.end(ended_ns)

    @contextmanager
    def job(self, kind: str, job_id: str, traceparent: str) -> Iterator[str]:
        """Record a job within the trace of whoever submitted it; yield the context that what it leads to is part of."""
        with self._span(f"job {kind}", SpanKind.INTERNAL, traceparent) as span:
            span.set_attributes({"quadriga.job": job_id, "quadriga.job.kind": kind})
            yield _trace_context(span).traceparent

    @contextmanager
    def delivery(self, host: str, model: str, traceparent: str) -> Iterator[str]:
        """Record the delivery of an alert; yield the context that its receiver gets."""
        with self._span("POST webhook", SpanKind.CLIENT, traceparent) as span:
            span.set_attributes({"server.address": host, "quadriga.model": model})
            yield _trace_context(span).traceparent

    def close(self) -> None:
        """Send the last spans, for at most `FLUSH_S` seconds."""
        ending = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(FLUSH_S)

    @contextmanager
    def _span(self, name: str, kind: SpanKind, traceparent: str) -> Iterator[Any]:
        span = self._tracer.start_span(name, _context(traceparent), kind)
        try:
            yield span
        except BaseException as error:
            span.set_status(StatusCode.ERROR, type(error).__name__)
            raise
        finally:
            span.end()

    def _add_stages(self, span: Span, request: RequestContext, run: ModelRun) -> None:
        """Add a span for each stage; of one that came several times, as with tiles, one that is as long as all of them."""
        context = set_span_in_context(span, Context())
        begun_ns = request.begun_epoch_ns + run.begun_ns - request.begun_ns
        queue_ns = _ns(run.stages_ms["queue"])
        self._add_stage(
            "queue", context, max(begun_ns - queue_ns, request.begun_epoch_ns), begun_ns
        )
        left_ns = _ns(run.duration_ms)
        for name, stage in _STAGES:
            stage_ns = min(_ns(run.stages_ms[stage]), left_ns)
            self._add_stage(name, context, begun_ns, begun_ns + stage_ns)
            begun_ns, left_ns = begun_ns + stage_ns, left_ns - stage_ns
        if run.inference_ids:
            self._add_stage("store", context, begun_ns, begun_ns + left_ns)

    def _add_stage(self, name: str, context: Context, begun_ns: int, ended_ns: int) -> None:
        if ended_ns > begun_ns:
            self._tracer.start_span(name, context, start_time=begun_ns).end(ended_ns)


class _StoredStandard(msgspec.Struct, frozen=True):
    trace_id: str = ""
    span_id: str = ""


class _StoredRecord(msgspec.Struct, frozen=True):
    standard: _StoredStandard = _StoredStandard()


_record_decoder = msgspec.json.Decoder(_StoredRecord)


def _stored_traceparent(payload: bytes) -> str:
    """Return the trace that a record is of; empty for none, and for other entries of the journal."""
    if b'"trace_id":' not in payload:  # to look for it costs less than to decode the record
        return ""
    with suppress(msgspec.DecodeError):
        standard = _record_decoder.decode(payload).standard
        if standard.trace_id:
            return f"00-{standard.trace_id}-{standard.span_id}-01"
    return ""


def _resource(process: str) -> Resource:
    """Return what all spans of a process have; a name of the environment has precedence."""
    own = {
        "service.version": version("quadriga"),
        "service.instance.id": f"{os.uname().nodename}-{os.getpid()}",
        "quadriga.process": process,
    }
    named = Resource.create({"service.name": "quadriga"}).merge(OTELResourceDetector().detect())
    return named.merge(Resource(own))


def _context(traceparent: str) -> Context:
    """Return the context of a parent; an empty one for none, and for a text that is none."""
    return TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())


def _trace_context(span: Any) -> TraceContext:
    context = span.get_span_context()
    return TraceContext(
        f"{context.trace_id:032x}", f"{context.span_id:016x}", int(context.trace_flags)
    )


def _attributes(request: RequestContext) -> dict[str, Any]:
    """Return what is known of a request, in the names of OpenTelemetry's conventions where they have one."""
    attributes: dict[str, Any] = {
        "quadriga.request_id": request.id,
        "quadriga.protocol": request.protocol,
        "quadriga.outcome": request.outcome,
    }
    if request.method == "RPC":
        attributes |= {"rpc.system": "grpc", "rpc.grpc.status": str(request.status)}
    else:
        attributes |= {
            "http.request.method": request.method,
            "http.route": request.route,
            "http.response.status_code": request.status,
            "http.request.body.size": request.bytes_in,
            "http.response.body.size": request.bytes_out,
        }
    if (run := request.run) is not None:
        attributes |= {
            "quadriga.model": run.model,
            "quadriga.version": run.version,
            "quadriga.inferences": run.inferences,
        }
    return attributes


def _ns(milliseconds: float) -> int:
    return max(int(milliseconds * 1e6), 0)
