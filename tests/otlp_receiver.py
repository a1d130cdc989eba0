"""A collector of OpenTelemetry for tests: takes spans by OTLP over HTTP, and gives them as its JSON has them."""

import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class OtlpReceiver:
    """A collector on a free port of 127.0.0.1.

    Args:
        status: What it answers.
        delay_s: Seconds before it does.
    """

    def __init__(self, status: int = 200, delay_s: float = 0.0) -> None:
        self.spans: list[dict[str, Any]] = []
        """Spans in OTLP's JSON; `attributes` and `resource` as plain values by name."""
        self.headers: list[dict[str, str]] = []
        self.status = status
        self.delay_s = delay_s
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.headers.append({name.lower(): v for name, v in self.headers.items()})
                time.sleep(receiver.delay_s)
                if receiver.status == 200 and self.path == "/v1/traces":
                    receiver.take(body, self.headers.get("content-encoding", ""))
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def take(self, body: bytes, encoding: str) -> None:
        """Add the spans of a request."""
        message = ExportTraceServiceRequest.FromString(
            gzip.decompress(body) if encoding == "gzip" else body
        )
        for of_process in message.resource_spans:
            resource = _plain(MessageToDict(of_process.resource))
            for scope in of_process.scope_spans:
                for span in scope.spans:
                    fields = MessageToDict(span)
                    fields |= {"traceId": span.trace_id.hex(), "spanId": span.span_id.hex()}
                    fields["parentSpanId"] = span.parent_span_id.hex()
                    fields["links"] = [
                        {"traceId": link.trace_id.hex(), "spanId": link.span_id.hex()}
                        for link in span.links
                    ]
                    fields["attributes"] = _plain(fields)
                    fields["resource"] = resource
                    self.spans.append(fields)

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the spans of a name."""
        return [span for span in self.spans if span["name"] == name]

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        attribute["key"]: next(iter(attribute["value"].values()), None)
        for attribute in fields.get("attributes", ())
    }
