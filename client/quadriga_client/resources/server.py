"""The server itself."""

from typing import Any

from ..errors import ServerRefused
from ..transport.calls import read_call, read_text
from .resource import Resource


class Server(Resource):
    """`client.server`: health, settings at run time, logs of who did what."""

    def live(self) -> bool:
        """Check whether the server runs.

        Raises:
            Unreachable: There is no answer.
        """
        return bool(self._get("/v2/health/live")["live"])

    def ready(self) -> bool:
        """Check whether the server answers requests to all its models.

        Raises:
            Unreachable: There is no answer.
        """
        try:
            return bool(self._get("/v2/health/ready")["ready"])
        except ServerRefused as error:
            if error.status in {400, 503}:
                return False
            raise

    def metadata(self) -> dict[str, Any]:
        """Return name, version and extensions of the server."""
        return self._get("/v2")

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text form."""
        return self._sender.send(read_call("/metrics"), read_text)

    def audit(
        self,
        *,
        since: str | None = None,
        key: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Any:
        """Return a page of who did what."""
        return self._get("/api/audit", since=since, key=key, limit=limit, cursor=cursor)

    def erasures(self) -> Any:
        """Return the erasures of personal data and how far they are."""
        return self._get("/api/erasures")

    def erasure(self, erasure_id: str) -> Any:
        """Return one erasure."""
        return self._get("/api/erasures/{}", erasure_id)
