"""What the pages are made from."""

from collections.abc import Callable
from typing import Any

import msgspec
from litestar import post

from quadriga.engine.api.models import ModelEntry
from quadriga.engine.api.store_queries import StoreQueries
from quadriga.engine.api.traffic import TrafficControl
from quadriga.engine.config.settings import Settings
from quadriga.engine.console.frame import Frame
from quadriga.monitor.drift.service import DriftService
from quadriga.monitor.drift.watch.current import CurrentDrift
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.watch.mutes import MuteStore
from quadriga.proto.access import Need
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.scope import Scoped


class ConsoleStore(msgspec.Struct, frozen=True, kw_only=True):
    """What the pages read of what is stored."""

    queries: StoreQueries
    """Runs searches, within the threads and limits of those of the API."""
    inferences: Scoped[InferenceReader]
    jobs: Scoped[Jobs]
    reports: Scoped[ReportStore]
    mutes: MuteStore
    """The mutes of models, of all teams."""
    drift: Scoped[DriftService]
    current_drift: Scoped[CurrentDrift]


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """What each page gets."""

    frame: Frame
    settings: Settings
    models: Callable[..., list[ModelEntry]]
    """Returns the models that the caller may see; without baselines and labels of descriptions if `is_brief`."""
    traffic: TrafficControl
    """Shows and changes the traffic of models, where anything is stored."""
    options: dict[str, Any]
    """Options of all handlers."""

    def form(self, path: str, need: Need, **options: Any) -> post:
        """Return the decorator of the handler of a form, after which the browser goes to a page."""
        options = {
            "status_code": 303,
            "sync_to_thread": True,
            "need": need,
            **self.options,
            **options,
        }
        return post(path, **options)
