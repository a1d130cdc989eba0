"""Drift of stored inferences for the command line: here, or by a running server."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from engine.drift_options import Options, drift_parameters
from engine.report_output import Page, tell
from engine.server_client import ServerClient
from engine.server_reports import done, fetched
from engine.store_commands import store_settings
from monitor.drift.baselines import Baselines
from monitor.drift.parameters import DriftParameters, absolute
from monitor.drift.stored import compare_stored
from monitor.places import Places
from monitor.report import Report
from store.blobs.files import open_blobs
from store.errors import QueryError
from store.inferences import Inferences
from store.jobs import QUERY_S


def compared(options: Options) -> tuple[Report, Page]:
    """Compare a window of a model; returns the report and what makes its page.

    Raises:
        DriftError: There is nothing to compare.
        StoreError: The database does not answer, or what was asked means nothing.
        ServerError: The server does not answer, or refuses.
    """
    asked = drift_parameters(options)
    if options.server is not None:
        server = ServerClient(options.server)
        return fetched(server, done(server, server.call("POST", "/api/drift", asked), _show))
    try:
        parameters = msgspec.convert(asked, DriftParameters)
    except msgspec.ValidationError as error:
        raise QueryError(str(error)) from error
    now_us = time.time_ns() // 1000
    settings = store_settings({"data": options.data, "database": options.database})
    baselines = Baselines(settings.baselines_directory)
    parameters = baselines.resolved(absolute(parameters, now_us))
    blobs = open_blobs(settings.blob_place, settings.blob_grace_s)
    inferences = Inferences(
        settings.database_url, settings.journal_directory, blobs, timeout_s=QUERY_S
    )
    named = parameters.baseline
    baseline = baselines.read(parameters.model, named) if isinstance(named, str) else None
    with _places(options.on, settings.database_url) as places:
        report = compare_stored(
            inferences, parameters, baseline, _show, places=places, now_us=now_us
        )

    def make(report: Report) -> str:
        from monitor.page import page  # noqa: PLC0415 - loads matplotlib

        return page(report, lambda key: blobs.get(key) if key.startswith("blake3:") else None)

    return report, make


@contextmanager
def _places(address: str | None, database_url: str) -> Iterator[Places | None]:
    """Give a Ray cluster to read on, None where none is wanted."""
    if address is None:
        yield None
        return
    from monitor.evaluation.on_ray import Cluster, StoredOnCluster  # noqa: PLC0415 - it is an extra

    cluster = Cluster(address)
    try:
        yield StoredOnCluster(cluster, database_url)
    finally:
        cluster.close()


def _show(read: int, total: int | None) -> None:
    tell(f"read {read} of {total} inferences" if total else "choosing")
