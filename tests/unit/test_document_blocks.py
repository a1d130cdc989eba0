"""Every block of code of the documents is run by a test, or held against what it describes."""

import importlib
import json
import logging
import re
import shlex
import tomllib
from pathlib import Path

import cv2
import msgspec
import numpy as np
import pytest
import yaml
from rich_click import Context, Group

from quadriga.engine.cli import main
from quadriga.engine.config.settings import Settings, load
from quadriga.engine.models.recognition.model_toml import read_model_toml
from quadriga.engine.models.repository import ModelRepository
from quadriga.extras.sign_on.settings import parse_role_entries
from quadriga.extras.sign_on.sign_on import caller_of_claims
from quadriga.monitor.drift.watch.schedules import record_window
from quadriga.proto.access import ROLES
from quadriga.store.database.database import writer_engine
from tests.onnx_models import doubling
from tests.pages import ROOT, blocks, invoke
from tests.server_process import SAMPLE_MODELS
from tests.unit.documented_blocks import RUN_BY
from tests.unit.monitor.drift.window_reports import parameters, report

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def texts(page: str, beginning: str = "", language: str | None = None) -> list[str]:
    """Give the blocks of a page that begin so."""
    return [
        block.text
        for block in blocks(page)
        if block.text.startswith(beginning) and language in (None, block.language)
    ]


def test_every_block_has_a_test() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *SAMPLE_MODELS.rglob("*.md")]
    names = {str(page.relative_to(ROOT)) for page in pages} - {"CHANGELOG.md"}
    assert {page: [block.language for block in blocks(page)] for page in names} == {
        page: [entry.partition(" ")[0] for entry in entries] for page, entries in RUN_BY.items()
    }
    for entry in {entry for entries in RUN_BY.values() for entry in entries}:
        file, _, name = entry.partition(" ")[2].partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), entry


COMMANDS = [
    tuple(shlex.split(line, comments=True)[1:])
    for page in RUN_BY
    for block in blocks(page)
    for line in block.text.replace("\\\n", " ").splitlines()
    if re.match(r"(\.venv/bin/)?quadriga ", line)
]


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS), ids=" ".join)
def test_commands_have_the_options_that_are_written(command, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    found, words = main, list(command)
    while isinstance(found, Group):
        found = found.get_command(Context(found), words.pop(0))
    found.make_context("quadriga", words)


def test_extras_that_are_named_are_there() -> None:
    named = {
        extra
        for page in RUN_BY
        for extra in re.findall(r"quadriga\[(\w+)\]", (ROOT / page).read_text())
    }
    assert named
    assert named <= PYPROJECT["project"]["optional-dependencies"].keys()


def test_an_own_environment_is_installed_by_one_name() -> None:
    for page in ("README.md", "docs/client.md", "docs/first-hour.md"):
        assert re.search(r"\bpip install \.(`| )", (ROOT / page).read_text()), page


def test_commands_of_compose_name_its_services_and_secrets() -> None:
    file = (ROOT / "docker-compose.yml").read_text()
    services = yaml.safe_load(file)["services"]
    profiles = {name for service in services.values() for name in service.get("profiles", ())}
    written = "\n".join(block.text for page in RUN_BY for block in blocks(page))
    commands = re.findall(
        r"^(?:#   |\w+=\S+ )?docker compose (.*?)(?: +#.*)?$", f"{written}\n{file}", re.MULTILINE
    )
    assert len(commands) > 6
    for command in commands:
        match = re.fullmatch(
            r"(?:--profile (\w+) )?(?:up(?: --detach)?|exec (\w+) cat (\S+))", command
        )
        assert match, command
        profile, service, path = match.groups()
        assert profile in {None, *profiles}
        if service:
            mounts = [volume.removesuffix(":ro") for volume in services[service]["volumes"]]
            assert str(Path(path).parent) in [mount.rpartition(":")[2] for mount in mounts]


def test_the_page_of_a_load_knows_the_roles_of_keys() -> None:
    assert "does not yet" not in (ROOT / "docs" / "protocols.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/first-hour.md"])
def test_a_page_that_links_notebooks_says_how_to_open_them(page) -> None:
    text = (ROOT / page).read_text()
    assert ".ipynb" in text
    assert "jupyter lab docs/tutorials" in text


def test_words_of_make_are_there() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for text in texts("README.md", "make"):
        assert {line.split()[1] for line in text.splitlines()} <= set(targets)


def test_the_picture_of_the_sample_models_is_what_its_command_draws(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    readme = (SAMPLE_MODELS / "README.md").read_text()
    picture = r"!\[.*?\]\((.*?)\)\n\nThis picture comes from\n`(quadriga validate .*?)`"
    ((shown, command),) = re.findall(picture, readme)
    invoke(command, "--output", str(tmp_path / "drawn.jpg"))
    paths = (SAMPLE_MODELS / shown, tmp_path / "drawn.jpg")
    assert paths[0].stat().st_size < 150_000
    pictures = [cv2.imread(str(path)).astype(float) for path in paths]
    assert np.abs(pictures[0] - pictures[1]).mean() < 1


def test_the_page_of_an_index_has_no_picture_as_it_would_not_find_it() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count("![") == 1
    for rule in PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"][
        "substitutions"
    ]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    assert "![" not in text
    assert "Made by" not in text


def test_the_packages_are_drawn_in_their_layers() -> None:
    (drawing,) = texts("docs/architecture.md", "        extras ")
    contract = PYPROJECT["tool"]["importlinter"]["contracts"][0]
    drawn = [re.match(r" *(\w+)(?: +\| +(\w+))?", line).groups() for line in drawing.splitlines()]
    assert [" | ".join(filter(None, names)) for names in drawn] == contract["layers"]


def test_what_is_drawn_of_a_request_is_there() -> None:
    (drawing,) = texts("docs/architecture.md", "bytes ")
    names = re.findall(r"\b((?:engine|proto|store|tasks)\.\w+)", drawing)
    assert len(names) > 10
    for name in names:
        importlib.import_module(name)


def test_settings_of_a_provider_give_roles_as_the_page_says(tmp_path) -> None:
    (text,) = texts("docs/security.md", language="toml")
    (tmp_path / "quadriga.toml").write_text(text)
    settings = load({}, {}, tmp_path / "quadriga.toml")
    entries = parse_role_entries(settings.of_extra("sign_on", "roles"))
    for claims, role, team in (
        ({"groups": ["ops"]}, "operate", ""),
        ({"groups": ["vision-annotators"]}, "annotate", "quality"),
        ({"azp": "line-4"}, "infer", "line-4"),
        ({"groups": ["others"]}, None, ""),
    ):
        caller = caller_of_claims({"sub": "1", **claims}, entries)
        assert caller.rights == frozenset(ROLES[role] if role else ())
        assert caller.team == team


def test_tables_of_model_toml_are_read(tmp_path) -> None:
    for page in ("docs/architecture.md", "docs/models.md", "docs/speed.md"):
        for text in texts(page, language="toml"):
            (tmp_path / "model.toml").write_text(text)
            read = json.loads(msgspec.json.encode(read_model_toml(tmp_path, None)))
            for key, value in tomllib.loads(text).items():
                kept = (
                    {name: read[key][name] for name in value}
                    if isinstance(value, dict)
                    else read[key]
                )
                assert kept == value


def test_other_builds_of_onnxruntime_take_its_place() -> None:
    replacing, building = (
        text for text in texts("docs/speed.md", language="sh") if "onnxruntime-openvino" in text
    )
    assert replacing.splitlines()[0] == "pip uninstall --yes onnxruntime"
    words = shlex.split(building)
    file = ROOT / words[words.index("--file") + 1]
    (argument,) = (word for word in words if word.startswith("ONNXRUNTIME="))
    assert f"ARG {argument.partition('=')[0]}" in file.read_text().splitlines()
    assert replacing.splitlines()[1].split()[-1] == argument.partition("=")[2].partition("==")[0]
    assert file.parent == ROOT / words[-1]


def test_the_folders_of_the_page_are_models(tmp_path) -> None:
    (tree,) = texts("docs/models.md", "MODELS/")
    folder = tmp_path
    for line in tree.splitlines()[1:]:
        name = line.split()[0]
        if name.endswith("/"):
            folder = tmp_path / name
        elif name.endswith(".onnx"):
            doubling(folder / name)
    found = [(each.name, each.version) for each in ModelRepository(tmp_path).statuses()]
    assert sorted(found) == [
        ("another-model", "1"),
        ("another-model", "2"),
        ("shapes-detector", "1"),
    ]


def test_the_embedding_is_named_as_the_page_shows() -> None:
    (line,) = texts("docs/models.md", "embedding")
    assert line.strip() in invoke(f"quadriga inspect {SAMPLE_MODELS / 'shapes-classifier'}")


def test_containers_are_run_from_what_is_there() -> None:
    (text,) = texts("docs/scaling.md", "docker build")
    build, run = text.splitlines()
    words = shlex.split(run)
    assert shlex.split(build)[3] == words[-1]
    engine = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["engine"]
    mounts = [words[i + 1].split(":")[1] for i, word in enumerate(words) if word == "--volume"]
    served = [each.removesuffix(":ro").rpartition(":")[2] for each in engine["volumes"]]
    assert mounts == [path for path in served if path != "/secrets"]  # of PostgreSQL
    assert words[words.index("--publish") + 1] in engine["ports"]
    assert words[words.index("--cap-drop") + 1] in engine["cap_drop"]
    assert words[words.index("--tmpfs") + 1] in engine["tmpfs"]


def test_tools_against_the_environment_are_given_what_is_there() -> None:
    (text,) = texts("docs/security.md", "pipx")
    audit, bill = (shlex.split(line) for line in text.splitlines())
    assert (ROOT / audit[audit.index("--requirement") + 1]).exists()
    assert bill[bill.index("environment") + 1] == ".venv/bin/python"


def test_proxies_reach_the_ports_of_the_server() -> None:
    """They send gRPC by HTTP/2, and bodies as large as the server takes; the proxies themselves are not run."""
    settings = Settings()
    http, grpc = settings.port, settings.grpc_port
    (caddy,) = texts("docs/security.md", "models.example.org {")
    assert re.findall(r"reverse_proxy (\S+)(?: (\S+))?", caddy) == [
        ("@grpc", f"h2c://127.0.0.1:{grpc}"),
        (f"127.0.0.1:{http}", ""),
    ]
    (envoy,) = map(yaml.safe_load, texts("docs/security.md", "static_resources"))
    clusters = {
        cluster["name"]: (
            cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"][
                "socket_address"
            ]["port_value"],
            "http2_protocol_options" in str(cluster),
        )
        for cluster in envoy["static_resources"]["clusters"]
    }
    assert clusters == {"http": (http, False), "grpc": (grpc, True)}
    (nginx,) = texts("docs/security.md", "upstream quadriga {")
    assert re.findall(r"^    server (\S+?)[; ]", nginx, re.MULTILINE) == [
        f"127.0.0.1:{http}",
        f"127.0.0.1:{grpc}",
    ]
    assert re.findall(r"(?:proxy|grpc)_pass (\S+);", nginx) == ["http://quadriga", "grpc://quadriga_grpc"]  # fmt: skip
    for size in re.findall(r"client_max_body_size (\d+)m;", nginx):
        assert int(size) << 20 > settings.max_body_bytes
    (ingress,) = map(yaml.safe_load, texts("docs/security.md", "apiVersion"))
    annotations = ingress["metadata"]["annotations"]
    size = annotations["nginx.ingress.kubernetes.io/proxy-body-size"]
    assert int(size.removesuffix("m")) << 20 > settings.max_body_bytes
    (path,) = ingress["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"]["port"]["number"] == http


def test_the_url_of_a_database_with_tls_is_one() -> None:
    (text,) = texts("docs/security.md", "postgresql://")
    settings = load({"database": text.strip()}, {})
    with writer_engine(settings.database_url) as engine:
        _, options = engine.dialect.create_connect_args(engine.url)
    assert options["sslmode"] == "verify-full"
    assert options["sslrootcert"].endswith(".pem")


def test_a_server_without_a_container_is_installed_as_the_image() -> None:
    (commands,) = texts("docs/operations.md", "useradd")
    dockerfile = (ROOT / "Dockerfile").read_text()
    for options in (
        "--no-deps --only-binary=:all: --require-hashes --requirement requirements-extras.lock",
        "--no-deps .",
    ):
        assert f"{options}\n" in commands
        assert re.search(rf"{re.escape(options)}( |\n)", dockerfile)
    (unit,) = texts("docs/operations.md", "[Unit]")
    lines = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    variables = dict(word.split("=", 1) for word in lines["Environment"].split())
    assert lines["ReadWritePaths"] in variables["QUADRIGA_DATA"]
    assert variables["QUADRIGA_DATA"] in commands
    settings = load({}, {"QUADRIGA_DATA": variables["QUADRIGA_DATA"]})
    assert int(lines["TimeoutStopSec"]) > settings.drain_s + 2 * settings.exit_timeout_s
    program, command, models = lines["ExecStart"].split()
    assert program.startswith("/opt/quadriga/")
    assert command in main.list_commands(Context(main))
    assert models in commands


def test_commands_of_the_training_are_there() -> None:
    for page in RUN_BY:
        for line in "".join(texts(page, language="sh")).splitlines():
            if "-m sample_models.training." in line:
                module, *options = line.partition("-m ")[2].split()
                text = (ROOT / f"{module.replace('.', '/')}.py").read_text()
                if "TrainingRun(__doc__" in text:
                    text += (ROOT / "sample_models/training/training_run.py").read_text()
                for option in options[::2]:
                    assert f'"{option}"' in text, line


def test_prompts_are_answered_as_the_page_shows(tmp_path) -> None:
    (shown,) = texts("sample_models/shapes-image-text/README.md", "How many")
    expected = [tuple(re.split(r"  +", line)) for line in shown.splitlines()]
    prompts = json.dumps({"prompts": [prompt for prompt, _ in expected]})
    image = SAMPLE_MODELS / "images" / "image-text" / "scene_04.png"
    said = invoke(
        f"quadriga validate {SAMPLE_MODELS / 'shapes-image-text'} --image {image} --json",
        "--parameters", prompts, "--output", str(tmp_path / "a.png"),
    )  # fmt: skip
    answers = json.loads(said)["predictions"]
    assert [(each["prompt"], each["answer"]) for each in answers] == expected


def test_files_are_compared_as_the_page_says(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (commands,) = texts("docs/drift.md", "quadriga drift --baseline march")
    (rows,) = texts("docs/drift.md", language="csv")
    for name in ("march.csv", "april.csv"):
        Path(name).write_text(rows)
    pq = pytest.importorskip("pyarrow.parquet")
    table = importlib.import_module("pyarrow").table({"score": [0.1, 0.2, 0.3]})
    pq.write_table(table, "usual.parquet")
    Path("today.jsonl").write_text('{"score": 0.1}\n{"score": 0.2}\n')
    for command in commands.splitlines():
        is_check = "--fail-on-drift" in command  # a few rows are too few to say
        assert invoke(command, code=3 if is_check else 0)
    assert Path("report.html").read_text().startswith("<!DOCTYPE html>")


def test_files_are_evaluated_as_the_page_says(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (commands,) = texts(
        "docs/evaluation.md", "quadriga evaluate --task detection --records answers.jsonl"
    )
    (record,) = texts("docs/evaluation.md", '{"id": "17", "width": 640')
    Path("answers.jsonl").write_text(record.replace("\n", " "))
    box = {"image_id": 1, "category_id": 1, "bbox": [10, 10, 20, 20]}
    Path("instances_val2017.json").write_text(json.dumps({
        "images": [{"id": 1, "width": 64, "height": 64}], "categories": [{"id": 1, "name": "ship"}],
        "annotations": [{"id": 1, "area": 400, "iscrowd": 0, **box}],
    }))  # fmt: skip
    Path("results.json").write_text(json.dumps([{"score": 0.9, **box}]))
    for command in commands.splitlines():
        assert "1 images" in invoke(command)
    assert Path("report.html").read_text().startswith("<!DOCTYPE html>")


def test_an_alarm_is_logged_as_the_page_shows(tmp_path, caplog) -> None:
    moment = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    signal = r"\S+ \(\w+ [\d.]+\)"
    line = rf"drift of \S+ from {moment} to {moment}: {signal}(, {signal})*, report \d{{19}}-[0-9a-f]{{4}}"
    with caplog.at_level(logging.WARNING):
        record_window(tmp_path, report(1, alarms="ab"), parameters(1))
    (shown,) = texts("docs/drift.md", "WARNING")
    assert re.fullmatch(line, caplog.messages[0])
    assert re.fullmatch(f"WARNING {line}", shown.strip())
