"""Opens the store that the settings name, for reading."""

from quadriga.engine.config.settings import Settings
from quadriga.monitor.report.cells import listed_ids
from quadriga.monitor.report.saved import ReportStore
from quadriga.store.blobs.files import open_blobs
from quadriga.store.blobs.interface import Blobs
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.names import NamesOf


def open_reader(
    settings: Settings,
    timeout_s: float = 5.0,
    *,
    connections: int = 8,
    served: NamesOf | None = None,
) -> tuple[InferenceReader, Blobs]:
    """Open the database and the images; no connection is made yet.

    Args:
        settings: Settings of the server.
        timeout_s: Maximum time of a query.
        connections: Queries that may run at once; further ones wait.
        served: Returns the names of the models that are served, as for `InferenceReader`.

    Raises:
        quadriga.store.records.errors.StoreError: The database or the images cannot be read at their location.
    """
    blobs = open_blobs(settings.blob_location)
    reports = ReportStore(Jobs(settings.jobs_directory))
    inferences = InferenceReader(
        settings.database_url,
        settings.journal_directory,
        blobs,
        timeout_s=timeout_s,
        connections=connections,
        url_secret=settings.session_key,
        served=served,
        cell_ids=listed_ids(lambda scope, id_: reports.within(scope).directory(id_)),
    )
    return inferences, blobs
