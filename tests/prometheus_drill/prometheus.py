"""A Prometheus of its own on a free port of 127.0.0.1, and the queries that the drill asks it."""

import json
import math
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

import yaml

from quadriga.store.records.disk import write_atomically
from tests.server_process import free_port

JOB = "quadriga"
_START_S = 60.0

Labels = frozenset[tuple[str, str]]


class Firing(NamedTuple):
    """An alert that fires."""

    alert: str
    instance: str


class Prometheus:
    """A server that scrapes the targets of a file.

    Args:
        folder: Folder of its configuration and its data.
        rules: File of alerts.
        interval_s: Seconds between two scrapes, and between two evaluations of the rules.
    """

    def __init__(self, folder: Path, rules: Path, interval_s: float = 1.0) -> None:
        self._folder = folder
        self._rules = rules
        self._targets = folder / "targets.json"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.interval_s = interval_s

    @staticmethod
    def is_installed() -> bool:
        """Check whether its program is there."""
        return shutil.which("prometheus") is not None

    def __enter__(self) -> Self:
        """Start, and wait until it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.point_at({})
        configuration = self._folder / "prometheus.yml"
        interval = f"{round(self.interval_s * 1000)}ms"
        files = [{"files": [str(self._targets)], "refresh_interval": "1s"}]
        content = {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "evaluation_interval": interval,
            },
            "rule_files": [str(self._rules)],
            "scrape_configs": [
                {
                    "job_name": JOB,
                    "file_sd_configs": files,
                    "tls_config": {"insecure_skip_verify": True},
                }
            ],
        }
        configuration.write_text(yaml.safe_dump(content))
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={configuration}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdout=log,
                stderr=log,
            )
        until_s = time.monotonic() + _START_S
        while not self._is_ready():
            assert time.monotonic() < until_s, (self._folder / "prometheus.log").read_text()[-2000:]
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(60)

    def point_at(self, schemes: Mapping[str, str]) -> None:
        """Name the servers to scrape: `http` or `https` by `host:port`."""
        targets = [
            {"targets": [host], "labels": {"__scheme__": scheme}}
            for host, scheme in sorted(schemes.items())
        ]
        write_atomically(self._targets, json.dumps(targets).encode())

    def wait_for_scrapes(self, hosts: Iterable[str], count: int = 3) -> None:
        """Wait until each of some servers has been scraped a few times from now on."""
        begun_s = time.time()
        until_s = time.monotonic() + 60 + 10 * self.interval_s * count
        for host in hosts:
            while True:
                scraped = [
                    sample
                    for sample in self.samples(f'up{{instance="{host}"}}', begun_s, time.time())
                    if sample[1] == 1
                ]
                if len(scraped) >= count:
                    break
                assert time.monotonic() < until_s, f"{host} is not scraped"
                time.sleep(self.interval_s / 4)

    def values(self, query: str, at_s: float | None = None) -> dict[Labels, float]:
        """Return the values of a query at a time, or now, by their labels."""
        options = {"query": query} if at_s is None else {"query": query, "time": f"{at_s:.3f}"}
        rows = self._get("/api/v1/query", options)["result"]
        return {frozenset(row["metric"].items()): float(row["value"][1]) for row in rows}

    def value(self, query: str, at_s: float | None = None) -> float:
        """Return the value of a query that has one or none, which is NaN."""
        return next(iter(self.values(query, at_s).values()), math.nan)

    def series(self, selector: str, begin_s: float, end_s: float) -> dict[Labels, list[float]]:
        """Return all samples of some series between two times, in order."""
        return {
            labels: [value for _, value in samples]
            for labels, samples in self._matrix(selector, begin_s, end_s).items()
        }

    def samples(self, selector: str, begin_s: float, end_s: float) -> list[tuple[float, float]]:
        """Return time and value of all samples of some series between two times."""
        matrix = self._matrix(selector, begin_s, end_s).values()
        return [sample for samples in matrix for sample in samples]

    def _matrix(
        self, selector: str, begin_s: float, end_s: float
    ) -> dict[Labels, list[tuple[float, float]]]:
        span_ms = max(1, round((end_s - begin_s) * 1000))
        options = {"query": f"{selector}[{span_ms}ms]", "time": f"{end_s:.3f}"}
        return {
            frozenset(row["metric"].items()): [
                (at_s, float(value)) for at_s, value in row["values"]
            ]
            for row in self._get("/api/v1/query", options)["result"]
        }

    def firing(self) -> set[Firing]:
        """Return the alerts that fire now."""
        return {
            Firing(alert["labels"]["alertname"], alert["labels"].get("instance", ""))
            for alert in self._get("/api/v1/alerts", {})["alerts"]
            if alert["state"] == "firing"
        }

    def rule_errors(self) -> list[str]:
        """Return the alerts whose expressions could not be evaluated, with the reason."""
        return [
            f"{rule['name']}: {rule['lastError']}"
            for group in self._get("/api/v1/rules", {})["groups"]
            for rule in group["rules"]
            if rule.get("lastError")
        ]

    def _is_ready(self) -> bool:
        try:
            return self._request("/-/ready", {})[0] == 200
        except OSError:
            return False

    def _get(self, path: str, options: dict[str, str]) -> Any:
        status, body = self._request(path, options)
        assert status == 200, body
        return json.loads(body)["data"]

    def _request(self, path: str, options: dict[str, str]) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("GET", f"{path}?{urlencode(options)}" if options else path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def rise(values: Iterable[float]) -> float:
    """Return how much a counter rose, from its samples: after a reset, what it has counted since."""
    return sum(after - before if after >= before else after for before, after in pairwise(values))


def resets(values: Iterable[float]) -> int:
    """Count how often a counter fell."""
    return sum(after < before for before, after in pairwise(values))
