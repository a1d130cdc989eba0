"""A service for the tests of logged inferences."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from quadriga.engine.external import log_service
from quadriga.proto.request import set_current_request
from tests.unit.engine.logged.log_harness import LogHarness


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogHarness]:
    """Yield a service whose caller is anybody."""
    set_current_request(None)
    monkeypatch.setattr(log_service, "MAX_REQUEST_PIXELS", 50_000)
    running = LogHarness(tmp_path / "data", max_pixels=10_000)
    yield running
    running.close()
    set_current_request(None)
