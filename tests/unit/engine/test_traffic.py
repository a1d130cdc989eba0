"""Which version answers: by rules that servers share, keep over a restart, and that never make a request fail."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from quadriga.engine.config.settings import Settings
from quadriga.engine.measures.shared_counts import SharedCounts
from quadriga.engine.models.model import Model
from quadriga.engine.models.overrides import Override
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.serving.pipeline import Pipeline
from quadriga.engine.serving.traffic import COPY_FILE, Traffic, TrafficRule, TrafficRules
from quadriga.proto.errors import ModelNotReady, NotFound, Unsupported
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.traffic import write_rule
from quadriga.store.records.errors import NotReadyError, StoreError
from tests.onnx_models import doubling
from tests.unit.engine.harness import small_settings
from tests.unit.store_harness import run_statements

HALVES = TrafficRule({"1": 0.5, "2": 0.5})


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    for version in ("1", "2", "3"):
        doubling(tmp_path / "models" / "numbers" / version / "model.onnx")
    doubling(tmp_path / "models" / "other" / "model.onnx")
    repository = ModelRepository(tmp_path / "models")
    repository.load_all()
    return repository


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = small_settings(data=str(tmp_path / "data"))
    migrate(settings.database_url)
    return settings


@pytest.fixture
def rules(settings: Settings) -> Iterator[TrafficRules]:
    rules = TrafficRules(settings)
    yield rules
    rules.close()


def ask(number: int = 0, model: str = "numbers", version: str | None = None) -> InferRequest:
    tensor = Tensor("x", "FP32", (1, 3), data=np.ones((1, 3), np.float32))
    return InferRequest(model, version, f"r-{number}", [tensor])


def keep(repository: ModelRepository, *versions: int) -> None:
    """Load some versions of the model alone."""
    policy = {"version_policy": {"specific": {"versions": list(versions)}}}
    repository.load("numbers", Override(policy, None))


def answering(traffic: Traffic, request: InferRequest) -> Model:
    return traffic.model_named(request.model, request.version, request)


def answered(traffic: Traffic, count: int = 200) -> Counter[str]:
    return Counter(answering(traffic, ask(number)).version for number in range(count))


def test_without_a_rule_the_highest_version_answers(repository, rules):
    traffic = Traffic(repository, rules)
    assert answered(traffic) == {"3": 200}
    assert traffic.main_version("numbers") is None
    rules.put("other", TrafficRule({"1": 1.0}), "somebody")
    assert answered(traffic) == {"3": 200}


@pytest.mark.parametrize("name", ["numbers", "m-numbers", "NUMBERS"])
def test_a_rule_holds_under_every_form_of_the_name(repository, rules, name):
    rules.put("numbers", TrafficRule({"1": 1.0}), "somebody")
    traffic = Traffic(repository, rules)
    assert answering(traffic, ask(model=name)).version == "1"
    assert answering(traffic, ask(model=name, version="2")).version == "2"
    assert traffic.main_version(name) == "1"


def test_the_share_of_a_version_that_is_gone_goes_to_the_others_and_is_counted(repository, rules):
    counts = SharedCounts()
    rules.put("numbers", HALVES, "somebody")
    traffic = Traffic(repository, rules, counts)
    before = answered(traffic)
    assert set(before) == {"1", "2"}
    keep(repository, 1, 3)
    assert answered(traffic) == {"1": 200}
    (row,) = [row for row in counts.totals() if row.name[0] == "redirected"]
    assert (row.name, row.cells[0]) == (("redirected", "numbers", "2"), before["2"])
    keep(repository, 3)
    assert answered(traffic) == {
        "3": 200
    }  # none of the shares' versions is there, and another is ready
    repository.unload("numbers")
    with pytest.raises(ModelNotReady, match="is unloaded"):
        answering(traffic, ask())
    with pytest.raises(NotFound):
        answering(traffic, ask(model="letters"))


def test_metadata_describes_the_version_with_the_largest_share(repository, rules, settings):
    rules.put("numbers", TrafficRule({"1": 0.4, "2": 0.6}), "somebody")
    pipeline = Pipeline(repository, None, settings, traffic=Traffic(repository, rules))
    assert pipeline.model_info("numbers", None).version == "2"
    assert pipeline.model_info("numbers", "1").version == "1"
    keep(repository, 1, 3)
    assert pipeline.model_info("numbers", None).version == "3"
    pipeline.close()


def test_other_servers_and_later_ones_have_the_rule(settings, tmp_path):
    first, second = TrafficRules(settings), TrafficRules(settings)
    rule = TrafficRule({"1": 0.9, "2": 0.1}, "camera")
    first.put("numbers", rule, "somebody")
    assert second.rules == {}
    second.refresh()
    assert second.rules == {"numbers": rule}
    assert second.stored("numbers").changed_by == "somebody"
    other_data = small_settings(data=str(tmp_path / "other"), database=settings.database_url)
    replica = TrafficRules(other_data)
    replica.refresh()
    assert replica.rules == {"numbers": rule}
    replica.put("numbers", TrafficRule(), "somebody else")
    second.refresh()
    assert second.rules == {}
    for server in (first, second, replica):
        server.close()


@pytest.mark.parametrize("shares", [{"1": 0.9, "2": 0.1}, {}])
def test_a_rule_with_a_shadow_keeps_its_shares(settings, rules, caplog, shares):
    """Release 0.2.0 stored such rules."""
    text = json.dumps({"shares": shares, "shadow": {"version": "3", "share": 0.25}})
    with writer_engine(settings.database_url) as engine:
        write_rule(engine, "numbers", text, "somebody")
    rules.refresh()
    rules.refresh()
    assert rules.rules == {"numbers": TrafficRule(shares)}
    assert rules.stored("numbers").changed_by == "somebody"
    assert [record.message for record in caplog.records] == [
        "numbers: the shadow of its traffic rule, of release 0.2.0, sees nothing any more: replay stored images instead"
    ]
    rules.put("numbers", TrafficRule(), "somebody else")
    assert rules.rules == {}


def test_a_rule_that_is_set_again_keeps_who_set_it_first(rules):
    rules.put("numbers", HALVES, "first")
    stored = rules.stored("numbers")
    rules.put("numbers", HALVES, "second")
    assert rules.stored("numbers") == stored


def test_rules_hold_while_the_database_is_away_and_over_a_restart(settings, rules):
    rules.put("numbers", HALVES, "somebody")
    run_statements(settings.database_url, ("ALTER TABLE traffic RENAME TO traffic_away", ()))
    with pytest.raises(StoreError):
        rules.refresh()
    with pytest.raises(NotReadyError, match="takes no writes"):
        rules.put("numbers", TrafficRule({"1": 1.0}), "somebody")
    assert rules.rules == {"numbers": HALVES}
    restarted = TrafficRules(settings)
    assert restarted.rules == {"numbers": HALVES}
    run_statements(settings.database_url, ("ALTER TABLE traffic_away RENAME TO traffic", ()))
    restarted.refresh()
    restarted.put("numbers", TrafficRule(), "somebody")
    restarted.close()
    assert TrafficRules(settings).rules == {}


DAMAGED: dict[str, Any] = {
    "no JSON": b"{",
    "no UTF-8": b"\xff",
    "another form": b'{"numbers": 1}',
    "nothing": b"",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_copy_is_none(settings, name):
    (Path(settings.data) / COPY_FILE).write_bytes(DAMAGED[name])
    assert TrafficRules(settings).rules == {}


def test_a_rule_of_a_newer_version_is_left_out_and_stays(settings, rules, caplog):
    with writer_engine(settings.database_url) as engine:
        write_rule(engine, "numbers", '{"shares": {"1": 1.0}, "region": "north"}', "newer")
        write_rule(engine, "other", msgspec.json.encode(HALVES).decode(), "older")
    rules.refresh()
    assert rules.rules == {"other": HALVES}
    assert rules.stored("numbers").changed_by == "newer"
    assert "a newer version wrote it" in caplog.text


def test_a_server_without_a_store_has_no_rules(tmp_path):
    rules = TrafficRules(Settings(store=False, data=str(tmp_path)))
    rules.start()
    rules.wait()
    with pytest.raises(Unsupported):
        rules.put("numbers", HALVES, "somebody")
    assert rules.rules == {}
    rules.close()


def test_nobody_waits_for_a_database_that_is_not_there_yet(tmp_path):
    rules = TrafficRules(small_settings(data=str(tmp_path / "none")))
    rules.start()
    rules.wait()
    with pytest.raises(StoreError):
        rules.refresh()
    with pytest.raises(NotReadyError, match="not there yet"):
        rules.put("numbers", HALVES, "somebody")
    rules.close()
