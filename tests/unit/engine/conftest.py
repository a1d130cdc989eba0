"""A server of the sample models, for tests without processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.store.database.database import migrate
from tests.server_process import SAMPLE_MODELS


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = Settings(models=str(SAMPLE_MODELS), data=str(tmp_path / "data"))
    migrate(settings.database_url)
    return settings


@pytest.fixture
def server(settings: Settings) -> Iterator[Application]:
    """Yield a server that needs no key."""
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    yield application
    application.close()
