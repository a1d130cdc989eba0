"""Documents say what the code does: settings, operators, links."""

import importlib
import json
import re
from pathlib import Path

import msgspec
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from quadriga.engine.api.audit import audit_route
from quadriga.engine.api.jobs import job_routes
from quadriga.engine.api.metrics import metrics_route
from quadriga.engine.api.monitoring.drift import drift_alarm_routes, drift_routes
from quadriga.engine.api.monitoring.evaluations import evaluation_routes
from quadriga.engine.api.monitoring.schedules import evaluation_schedule_routes, schedule_routes
from quadriga.engine.api.stored.changes import change_routes, ground_truth_routes
from quadriga.engine.api.stored.inference_tables import table_routes
from quadriga.engine.api.stored.inferences import browsing_routes, inference_routes
from quadriga.engine.api.stored.logged_inferences import logged_inference_routes
from quadriga.engine.api.stored.tail import tail_route
from quadriga.engine.api.traffic import traffic_routes
from quadriga.engine.api.views import view_routes
from quadriga.engine.config.settings import fields
from quadriga.engine.measures.metrics import TEXTS, PrometheusMetrics
from quadriga.engine.measures.shared_counts import SharedCounts
from quadriga.engine.models.image_text.generation import TextTable
from quadriga.engine.models.recognition import model_toml
from quadriga.engine.models.recognition.families import FAMILIES
from quadriga.monitor.watch.mutes import MuteStore
from quadriga.proto.grpc.messages import POOL, REPOSITORY_SERVICE, SERVICE
from quadriga.proto.http.operations import WireOptions, all_operations, expand_path
from quadriga.store.query.filters.comparisons import MAX_CORNERS, MAX_DEPTH, MAX_IN, MAX_LEAVES
from quadriga.store.query.filters.syntax import FIELDS, OPERATORS, PROPERTIES
from quadriga.tasks import SHORT_NAMES, TASKS
from quadriga.tasks.decoders import DECODERS
from quadriga.tasks.generation import GenerationConfig, ImageTextToText
from quadriga.tasks.specification import Defaults, InputSpec, ModelSpec, OutputSpec, resolve

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "sample_models").rglob("*.md"))
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


def shown(value) -> str:
    if value in ("", None):
        return "\u2013"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


PAGES_OF_EXTRAS = {
    "clickhouse": "scaling",
    "label_studio": "label-studio",
    "object_stores": "models",
    "sign_on": "security",
}


@pytest.mark.parametrize(
    ("extra", "group"), dict.fromkeys((field.extra, field.group) for field in fields().values())
)
def test_settings_stand_in_the_table_of_their_group_with_their_defaults(extra, group):
    page = (ROOT / "docs" / f"{PAGES_OF_EXTRAS.get(extra, 'serving')}.md").read_text()
    section = page if extra else page.split(f"\n### {group}\n")[1].split("\n#")[0]
    (table,) = re.findall(r"^\| setting \| default \| \|\n((?:\|.*\n)+)", section, re.MULTILINE)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", table)
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", plain, re.MULTILINE)
    assert rows == [
        (field.attribute, shown(field.default), field.text)
        for field in fields().values()
        if (field.extra, field.group) == (extra, group)
    ]


def test_every_key_of_model_toml_is_described():
    text = (ROOT / "docs" / "models.md").read_text()
    for name, struct in model_toml.SPECIFIED.items():
        assert f"`[{name}]`" in text
        for field in msgspec.structs.fields(struct):
            assert f"`{field.encode_name}`" in text, field.encode_name
    for field in msgspec.structs.fields(model_toml.ModelToml):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            for name in field.type.__struct_fields__:
                assert f"`{name}`" in text, name
        else:
            assert f"`{field.name}`" in text or f"`[{field.name}]`" in text, field.name


def test_every_default_stands_in_the_table():
    table = (ROOT / "docs" / "models.md").read_text().partition("\n| `[defaults]`")[2]
    rows = re.findall(
        r"^(?:\|.*?)? \| `(\w+)` \| .*?([\d.]+|false)(?:;.*)? \|$", table, re.MULTILINE
    )
    fields = msgspec.structs.fields(Defaults)
    assert rows[: len(fields)] == [(each.name, str(each.default).lower()) for each in fields]


class Noting(dict):
    """Parameters of a request that note what is read of them."""

    def __init__(self):
        super().__init__(prompt="?")
        self.read = set()

    def get(self, name, default=None):
        self.read.add(name)
        return super().get(name, default)


@pytest.mark.parametrize(
    "row", ["classification", "detection", "oriented detection", "segmentation"]
)
def test_every_parameter_of_a_task_is_described(row):
    short = row.partition(" ")[0]
    decoder = {"detection": "ultralytics", "oriented": "ultralytics_obb"}.get(short, "class_map")
    spec = ModelSpec(
        task=SHORT_NAMES[short],
        input=InputSpec(name="x", size_wh=(8, 8)),
        output=OutputSpec(decoder=decoder),
        labels=("a",),
    )
    check_row(row, resolve(spec.task, TASKS, "a task")(spec))


def test_every_parameter_of_prompts_is_described():
    check_row("image-text", ImageTextToText(GenerationConfig()))


def check_row(row, task):
    noting = Noting()
    task.options(noting)
    text = (ROOT / "docs" / "protocols-reference.md").read_text()
    (known,) = re.findall(rf"^\| {row} \| .* \| (.*) \|$", text, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", known)) | {"action"}
    if row == "oriented detection":
        assert "those of detection" in known
        named |= {"score_threshold", "iou_threshold", "max_detections"}
    assert noting.read <= named
    values = {"raw", "le90", "oc", "true", "false", "component", "class"}
    assert named - values <= noting.read


def first_column(heading):
    """Give what stands in code marks in the first cells of the tables of protocols-reference.md under a heading."""
    text = (ROOT / "docs" / "protocols-reference.md").read_text().replace(r"\|", "\0")
    rows = re.findall(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    cells = re.findall(r"^\|([^|]*)\|", "".join(rows), re.MULTILINE)
    return [name.replace("\0", "|") for cell in cells for name in re.findall("`([^`]+)`", cell)]


def test_every_endpoint_stands_in_a_table_once():
    described = [
        (verb, path)
        for endpoint in first_column("endpoint")
        for verb in endpoint.rpartition(" ")[0].split(", ")
        for path in expand_path(endpoint.rpartition(" ")[2])
    ]
    operations = all_operations(None, WireOptions(server_version=""))
    offered = [
        (operation.method, path) for operation in operations for path in expand_path(operation.path)
    ]
    offered += [
        (verb, path.replace(":str", ""))
        for handler in [
            *browsing_routes(None),
            tail_route(None, None),
            *inference_routes(None, None, None),
            *change_routes(None, None),
            *ground_truth_routes(None, None, 1 << 20),
            *job_routes(None, None),
            *evaluation_routes(None, None, None),
            *table_routes(None, None, 1.0),
            *drift_routes(None),
            *schedule_routes(ROOT, None),
            *evaluation_schedule_routes(ROOT, None, None),
            *drift_alarm_routes(None, MuteStore(ROOT), None),
            *view_routes(ROOT),
            *traffic_routes(None),
            *logged_inference_routes(None, None, None, 1 << 20),
            audit_route(ROOT),
            metrics_route(PrometheusMetrics(None, "", dict, SharedCounts()), need="key"),
        ]
        for verb in handler.http_methods - {"OPTIONS"}
        for path in handler.paths
    ]
    assert sorted(described) == sorted([*offered, ("GET", "/schema/openapi.json")])


def test_every_rpc_stands_in_the_table_once():
    services = [POOL.FindServiceByName(name) for name in (SERVICE, REPOSITORY_SERVICE)]
    for module in (health_pb2, reflection_pb2):
        services += module.DESCRIPTOR.services_by_name.values()
    offered = [
        rpc.name if service.full_name == SERVICE else f"{service.name}/{rpc.name}"
        for service in services
        for rpc in service.methods
    ]
    assert sorted(first_column("RPC")) == sorted(offered)


def test_every_metric_is_described():
    rows = (ROOT / "docs" / "serving.md").read_text().partition("\n## Metrics\n")[2]
    rows = rows.partition("\n## ")[0]
    described = {name.removesuffix("_total") for name in re.findall(r"`((?:quadriga|…)\w+)`", rows)}
    for name in TEXTS:
        assert {name, name.replace("quadriga_store", "…")} & described, name


def test_every_decoder_is_described():
    text = (ROOT / "docs" / "models.md").read_text().partition("\n## Decoders\n")[2]
    text = text.partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(DECODERS)


def test_every_key_for_text_models_is_described():
    text = (ROOT / "docs" / "models.md").read_text()
    for name in TextTable.__struct_fields__:
        assert f"`{name}`" in text, name


def test_every_family_is_described():
    text = (ROOT / "docs" / "models.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \| (.*) \|$", text, re.MULTILINE)
    assert rows == [(name, family.task, family.description) for name, family in FAMILIES.items()]


def test_every_field_and_operator_of_a_query_is_described():
    text = (ROOT / "docs" / "query.md").read_text()
    for name in (*FIELDS, *PROPERTIES, "label", "box", "geo", "meta.<path>", "std.<path>"):
        assert f"`{name}`" in text, name
    examples = text.partition("<!-- examples")[2]
    for operator in {name for names in OPERATORS.values() for name in names}:
        assert f'"{operator}":' in examples, operator
    numbers = f"{MAX_IN:,} values, a filter up to {MAX_LEAVES} comparisons, {MAX_DEPTH} deep"
    assert numbers in text.replace("\n", " ")
    assert f"3 to {MAX_CORNERS} corners" in text


def test_messages_of_the_first_hour_are_those_of_the_code():
    text = (ROOT / "docs" / "first-hour.md").read_text().partition("## When it does not work")[2]
    code = "".join(
        path.read_text()
        for package in ("engine", "extras", "monitor", "proto", "store", "tasks")
        for path in (ROOT / package).rglob("*.py")
    )
    first_cells = "".join(re.findall(r"^\|([^|]*)\|", text, re.MULTILINE))
    for message in re.findall("`([^`]+)`", first_cells):
        own_text = message.removesuffix(": Address already in use")  # the system says so
        for part in own_text.split("…"):
            assert part.strip(" ,.:") in code, message


def anchors(page: Path) -> set[str]:
    """Give what a link may name within a page, as GitHub makes it of headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def texts_of(page: Path) -> str:
    """Give the text of a page; of a notebook that of its cells without code."""
    if page.suffix != ".ipynb":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", texts_of(page)):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_names_of_code_are_there(page):
    packages = "engine|extras|proto|tasks|store|monitor"
    text = page.read_text()
    for path in re.findall(rf"`((?:{packages}|bench|tests|sample_models)/[\w./]+)`", text):
        assert (ROOT / path).exists() or "acme" in path, path
    for name in re.findall(r"`(quadriga\.(?:[a-z]\w*\.)*\w+)`", text):
        if name != "quadriga.toml":
            importing(name)


def importing(name):
    """Find what a dotted name means: a module, or what stands in one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importing(module), attribute)
