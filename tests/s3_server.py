"""An S3 on this machine."""

from datetime import UTC, datetime
from typing import Any

import httpx
from moto.server import ThreadedMotoServer

BUCKET = "images"


class S3Server:
    """moto's server, in a thread, with one bucket; `environment` is what its clients need."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "reader",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        httpx.put(f"{self.url}/{BUCKET}").raise_for_status()

    @property
    def objects(self) -> dict[str, Any]:
        """The objects of the bucket by their names."""
        from moto.s3.models import s3_backends  # noqa: PLC0415 - slow, and the server has it by now

        (account,) = s3_backends.values()
        return account["aws"].buckets[BUCKET].keys

    def set_put_at(self, name: str, put_at: float) -> None:
        """Make an object as old as if it had been put then."""
        self.objects[name].last_modified = datetime.fromtimestamp(put_at, UTC)

    def close(self) -> None:
        httpx.post(
            f"{self.url}/moto-api/reset"
        ).raise_for_status()  # servers of a process share all
        self._server.stop()
