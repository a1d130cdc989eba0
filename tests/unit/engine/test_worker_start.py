"""The start of a worker."""

import gc
from unittest.mock import MagicMock

import pytest

from quadriga.engine.processes import serving


def test_garbage_is_looked_for_once_a_worker_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("ModelHost", "SharedCounts"):
        monkeypatch.setattr(serving, part, MagicMock())
    monkeypatch.setattr(serving, "Application", MagicMock(side_effect=lambda *_, **__: object()))
    gc.disable()  # as a worker does before it loads anything
    try:
        serving._open_application(MagicMock(), None)
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.enable()
        gc.unfreeze()
