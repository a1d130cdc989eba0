"""The store that the settings name, opened to be read."""

from quadriga.engine.settings import Settings
from quadriga.store.blobs.files import open_blobs
from quadriga.store.blobs.interface import Blobs
from quadriga.store.inferences import InferenceReader


def open_reader(settings: Settings, timeout_s: float = 5.0) -> tuple[InferenceReader, Blobs]:
    """Open the database, of which a query may take so long, and the images; asks neither yet.

    Raises:
        quadriga.store.errors.StoreError: They are nowhere that can be read.
    """
    blobs = open_blobs(settings.blob_location, settings.blob_grace_s)
    inferences = InferenceReader(
        settings.database_url,
        settings.journal_directory,
        blobs,
        timeout_s=timeout_s,
        presign_s=settings.presign_s,
    )
    return inferences, blobs
