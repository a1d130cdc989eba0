"""Databases and stores, as of the tests of the engine."""

from tests.unit.conftest import (  # noqa: F401 - fixtures
    database_url,
    migrated_file,
    no_request,
    postgres,
    store,
    umask,
)
from tests.unit.store.conftest import file_store, record  # noqa: F401 - fixtures
