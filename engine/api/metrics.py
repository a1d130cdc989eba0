"""The HTTP route of Prometheus' metrics."""

from typing import Any

from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from quadriga.engine.api.access import check_sees_everything
from quadriga.engine.api.routes import get
from quadriga.proto.access import Need


def metrics_route(*collectors: Collector, need: Need) -> HTTPRouteHandler:
    """Return the handler of `/metrics`, which has the metrics of all collectors, for callers with what it needs."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)

    @get("/metrics", need=need, media_type="text/plain")
    def read_metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Return all metrics, in the text format that Prometheus accepts."""
        if need != "nothing":
            check_sees_everything("metrics are")
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=media_type.removesuffix("; charset=utf-8"))

    return read_metrics
