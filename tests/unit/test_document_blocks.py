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
from rich_click import Group

from quadriga.engine.claim_roles import parse_role_entries
from quadriga.engine.cli import main
from quadriga.engine.recognition.model_toml import read_model_toml
from quadriga.engine.repository import ModelRepository
from quadriga.engine.settings import Settings
from quadriga.engine.settings_reading import load
from quadriga.engine.sign_on.people import caller_of_claims
from quadriga.monitor.drift.watch.history import record_window
from quadriga.proto.access import ROLES
from quadriga.proto.conformance_cases import CASES
from tests.onnx_models import doubling
from tests.pages import ROOT, blocks, invoke
from tests.server_process import SAMPLE_MODELS
from tests.unit.monitor.drift.window_reports import parameters, report

HERE = "tests/unit/test_document_blocks.py::test_"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TRAINING = f"sh {HERE}commands_of_the_training_are_there"
FIRST_HOUR = "tests/e2e/test_first_hour.py::test_the_hour_goes_as_the_page_says"
STORE = "tests/e2e/test_store_page.py::test_the_commands_of_the_page_do_what_it_says"
CLIENT = "tests/e2e/test_client_page.py::test_the_examples_of_the_pages_run"
README = "tests/e2e/test_readme.py::test_the_curl_gives_the_answer_and_the_queries_find_it"
PROTOCOLS = "tests/e2e/test_protocol_page.py::test_the_commands_of_the_pages_answer_without_errors"
ENVELOPE = "tests/e2e/test_chariot.py::test_the_page_s_request_has_the_page_s_answer"
GRPC = "tests/e2e/test_grpc.py::test_the_program_in_the_documents_runs"
V1 = "tests/e2e/test_v1.py::test_the_page_s_lines_run"
MOVE = "tests/e2e/test_scaling_page.py::test_a_store_in_use_moves_to_postgresql"
CLICKHOUSE = "tests/e2e/test_scaling_page.py::test_what_is_stored_is_sent_to_clickhouse_too"
STATEMENTS = "tests/unit/store/test_clickhouse.py::test_the_statements_of_the_page_do_what_it_says"
PAGES = "tests/e2e/test_drift.py::test_commands_of_the_pages_are_answered"
MESSAGES = "tests/unit/monitor/watch/test_webhook_messages.py::"
EVALUATION = "tests/unit/monitor/evaluation/"
TRAFFIC = "tests/e2e/test_traffic.py::test_the_commands_of_the_page_try_a_version_and_promote_it"
ELSEWHERE = "tests/e2e/test_elsewhere_page.py::test_"
KEYS = "tests/e2e/test_keys.py::test_the_commands_of_the_page_do_what_it_says"
LIMITS = (
    "tests/e2e/test_key_limits.py::test_the_page_shows_the_commands_and_an_answer_of_the_server"
)
TWO_VERSIONS = (
    "tests/e2e/test_two_versions.py::test_two_replicas_go_to_the_next_version_and_back_under_load"
)
DATASETS = "tests/e2e/test_datasets_page.py::test_the_commands_of_the_page_do_what_it_says"
TABLES = "tests/conformance/test_other_tools.py::test_tables_of_a_running_server_are_read_in_a_line"
SELECTION = "tests/unit/engine/test_select_command.py::test_the_command_of_the_page_selects"
RUN_BY = {
    "SECURITY.md": [],
    "README.md": [
        f"sh {HERE}words_of_make_are_there",
        f"sh {HERE}words_of_make_are_there",
        f"sh {README}",
        f"json {README}",
        f"sh {README}",
        f"python {CLIENT}",
    ],
    "CONTRIBUTING.md": [],
    "docs/architecture.md": [
        f" {HERE}the_packages_are_drawn_in_their_layers",
        f" {HERE}what_is_drawn_of_a_request_is_there",
        f"toml {HERE}tables_of_model_toml_are_read",
    ],
    "docs/client.md": [
        *[f"python {CLIENT}"] * 2,
        "sh tests/e2e/test_infer_command.py::test_the_command_of_the_page_draws_a_folder",
        *[f"python {CLIENT}"] * 2,
    ],
    "docs/coming-from.md": [],
    "docs/console.md": ["sh tests/e2e/test_console.py::test_the_server_prints_where_the_console_is"],
    "docs/datasets.md": [
        *[f"sh {DATASETS}"] * 2,
        f" {DATASETS}",
        f"sh {SELECTION}",
        f"json {SELECTION}",
        *[f"python {TABLES}"] * 2,
    ],
    "docs/drift.md": [
        f"csv {HERE}files_are_compared_as_the_page_says",
        f"sh {HERE}files_are_compared_as_the_page_says",
        f"sh {PAGES}",
        f"sh {PAGES}",
        "sh tests/unit/monitor/drift/test_schedules.py::test_the_example_of_the_document_is_a_schedule",
        f"text {HERE}an_alarm_is_logged_as_the_page_shows",
    ],
    "docs/drift-reference.md": [
        *[f"sh {PAGES}"] * 3,
        "json tests/unit/monitor/drift/test_alerts.py::test_an_alert_is_signed_with_its_time",
        "python tests/unit/monitor/drift/test_alerts.py::test_an_alert_is_signed_with_its_time",
        f"json {MESSAGES}test_the_body_of_standard_webhooks_has_type_timestamp_and_data",
        f"json {MESSAGES}test_the_page_shows_the_body_of_alertmanager",
    ],
    "docs/label-studio.md": [f"sh {HERE}commands_have_the_options_that_are_written"] * 5,
    "docs/elsewhere.md": [
        f"sh {ELSEWHERE}the_commands_of_the_page_do_what_it_says",
        f"json {ELSEWHERE}the_commands_of_the_page_do_what_it_says",
        f"python {ELSEWHERE}the_hook_of_the_page_logs_what_a_server_of_tensors_answered",
        f"sh {ELSEWHERE}the_commands_of_the_page_do_what_it_says",
        f"yaml {ELSEWHERE}the_logger_of_the_page_sends_its_events_to_a_server_with_keys",
    ],
    "docs/evaluation.md": [
        "sh tests/e2e/test_evaluate_command.py::test_the_command_of_the_page_is_answered",
        f"sh {HERE}commands_have_the_options_that_are_written",
        f"sh {HERE}files_are_evaluated_as_the_page_says",
        f"json {EVALUATION}test_files.py::test_the_record_of_the_document_is_one",
        f"sh {HERE}commands_have_the_options_that_are_written",
        f"sh {EVALUATION}test_schedules.py::test_the_example_of_the_document_is_a_schedule",
    ],
    "docs/evaluation-reference.md": [
        f"json {EVALUATION}test_detection.py::test_the_example_of_the_document_gives_its_numbers",
        f"json {EVALUATION}test_instances.py::test_the_documented_squares_overlap_by_a_third",
        f"json {EVALUATION}test_evaluation_examples.py::test_examples_give_their_numbers",
        f"json {EVALUATION}test_evaluation_documents.py::test_examples_have_the_numbers_that_are_said",
        f"json {EVALUATION}test_evaluation_documents.py::test_examples_have_the_numbers_that_are_said",
        f"json {EVALUATION}test_evaluation_examples.py::test_examples_give_their_numbers",
        "sh tests/e2e/test_evaluations.py::test_the_command_of_the_page_submits_a_job",
        f"json {EVALUATION}test_history.py::test_an_alert_and_its_line_are_as_the_page_shows",
        "python tests/unit/monitor/report/test_page.py::test_documented_lines_write_a_page",
        f"sh {HERE}commands_have_the_options_that_are_written",
    ],
    "docs/first-hour.md": [
        f"{language} {FIRST_HOUR}"
        for language in ("sh", "text", "sh", "sh", "python", *["sh"] * 3, "json", "sh", "sh", "python", "sh")
    ],
    "docs/glossary.md": [],
    "docs/models.md": [
        f" {HERE}the_folders_of_the_page_are_models",
        f"toml {HERE}tables_of_model_toml_are_read",
        f"toml {HERE}tables_of_model_toml_are_read",
        "json tests/e2e/test_models_behind.py::test_the_page_shows_the_answer_and_filters_that_find_it",
        f" {HERE}the_embedding_is_named_as_the_page_shows",
        f"toml {HERE}tables_of_model_toml_are_read",
    ],
    "docs/performance.md": [],
    "docs/protocols.md": [
        f"json {ENVELOPE}",
        f"json {ENVELOPE}",
        f"sh {PROTOCOLS}",
        f"sh {PROTOCOLS}",
    ],
    "docs/protocols-reference.md": [
        *[f"sh {PROTOCOLS}"] * 3,
        f"sh {GRPC}",
        f"python {GRPC}",
        f"sh {V1}",
        f"json {V1}",
        f"sh {V1}",
        f"sh {V1}",
        "json tests/e2e/test_image_text.py::test_the_question_of_the_page_is_answered",
        f" {HERE}commands_have_the_options_that_are_written",
        f" {HERE}findings_of_the_conformance_are_of_its_cases",
    ],
    "docs/query.md": [
        "sh tests/e2e/test_query_page.py::test_one_question_in_three_forms_finds_the_one_inference",
        "json tests/unit/store/test_query_page.py::test_the_examples_find_what_the_page_says",
        "json tests/unit/store/test_facets.py::test_the_answer_of_the_page_has_the_shape_of_an_answer",
        "json tests/unit/store/test_query_page.py::test_the_examples_find_what_the_page_says",
    ],
    "docs/upgrading.md": [
        "sh tests/e2e/test_kept_stores.py::test_a_kept_store_is_backed_up_first_and_restored",
        "sh tests/e2e/test_kept_stores.py::test_a_kept_store_is_backed_up_first_and_restored",
        f"sh {TWO_VERSIONS}",
        f"text {TWO_VERSIONS}",
        f"sh {TWO_VERSIONS}",
        f"text {TWO_VERSIONS}",
    ],
    "docs/kubernetes.md": [
        "sh tests/unit/test_kubernetes.py::test_a_kustomization_names_what_is_there_and_all_of_it",
    ],
    "docs/operations.md": [
        "sh tests/e2e/test_backup.py::test_what_was_acknowledged_before_a_backup_is_restored",
        "sh tests/e2e/test_request_logs.py::test_the_level_changes_in_all_processes_and_is_audited",
        "json tests/e2e/test_traces.py::test_a_trace_goes_from_a_client_through_server_writer_and_job",
    ],
    "docs/scaling.md": [
        f"sh {MOVE}",
        "sql tests/unit/store/test_clickhouse.py::test_dropping_partitions_drops_a_month",
        f" {HERE}containers_are_run_from_what_is_there",
        f"sh {CLICKHOUSE}",
        *[f"sql {STATEMENTS}"] * 7,
        "sh tests/e2e/test_scaling_page.py::test_the_archive_is_exported",
    ],
    "docs/security.md": [
        *[f"sh {KEYS}"] * 3,
        f"toml {HERE}settings_of_a_provider_give_roles_as_the_page_says",
        *[f"{language} {LIMITS}" for language in ("sh", "http")],
        "sh tests/unit/engine/test_tls_files.py::test_the_certificates_of_the_page_are_accepted",
        "sh tests/e2e/test_tls.py::test_the_health_check_of_the_page_gets_in",
        f"Caddyfile {HERE}proxies_reach_the_ports_of_the_server",
        *[f"yaml {HERE}proxies_reach_the_ports_of_the_server"] * 2,
        f"sh {HERE}commands_have_the_options_that_are_written",
        f"sh {HERE}tools_against_the_environment_are_given_what_is_there",
        "sh tests/unit/test_licences.py::test_the_command_of_the_page_lists_every_package",
        *["sh tests/unit/test_signed_releases.py::test_a_release_is_accepted_as_it_was_signed_only"] * 2,
    ],
    "docs/serving.md": [
        f"sh {HERE}commands_have_the_options_that_are_written",
        *[f"sh {TRAFFIC}"] * 4,
    ],
    "docs/speed.md": [
        f"sh {HERE}commands_have_the_options_that_are_written",
        f"sh {HERE}commands_have_the_options_that_are_written",
        f"toml {HERE}tables_of_model_toml_are_read",
        f"sh {HERE}other_builds_of_onnxruntime_take_its_place",
        f"sh {HERE}other_builds_of_onnxruntime_take_its_place",
        f"toml {HERE}tables_of_model_toml_are_read",
    ],
    "docs/team.md": ["sh tests/e2e/test_team_page.py::test_two_teams_share_a_server_as_the_page_says"] * 9,
    "docs/store.md": [
        f"{language} {STORE}"
        for language in ("", "json", "", "sh", "json", *["sh"] * 4, "json", *["sh"] * 3)
    ] + [
        f" {HERE}commands_have_the_options_that_are_written",
    ] + [
        f"{language} {STORE}" for language in ("json", "", "json", "sh", "json", *["sh"] * 3)
    ],
    "sample_models/README.md": [],
    "sample_models/images/README.md": [],
    "sample_models/shapes-classifier/README.md": [TRAINING],
    "sample_models/shapes-detector/README.md": [TRAINING],
    "sample_models/shapes-image-text/README.md": [f" {HERE}prompts_are_answered_as_the_page_shows", TRAINING],
    "sample_models/shapes-segmenter/README.md": [TRAINING],
    "sample_models/ships-oriented-detector/README.md": [TRAINING],
    "sample_models/training/README.md": [TRAINING],
}  # fmt: skip
"""The tests of the blocks of each page, in their order, behind each block's language."""


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
        found = found.commands[words.pop(0)]
    found.make_context("quadriga", words)


def test_extras_that_are_named_are_there() -> None:
    named = {
        extra
        for page in RUN_BY
        for extra in re.findall(r"quadriga\[(\w+)\]", (ROOT / page).read_text())
    }
    assert named
    assert named <= PYPROJECT["project"]["optional-dependencies"].keys()


def test_words_of_make_are_there() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for text in texts("README.md", "make"):
        assert {line.split()[1] for line in text.splitlines()} <= set(targets)


def test_the_picture_of_the_readme_is_what_its_command_draws(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    readme = (ROOT / "README.md").read_text()
    (shown,) = re.findall(r"!\[.*?\]\((.*?)\)", readme)
    (command,) = re.findall(r"`(quadriga validate .*?)`", readme)
    invoke(command, "--output", str(tmp_path / "drawn.jpg"))
    assert Path(shown).stat().st_size < 150_000
    pictures = [cv2.imread(str(path)).astype(float) for path in (shown, tmp_path / "drawn.jpg")]
    assert np.abs(pictures[0] - pictures[1]).mean() < 1


def test_the_packages_are_drawn_in_their_layers() -> None:
    (drawing,) = texts("docs/architecture.md", "        engine ")
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
    entries = parse_role_entries(settings.oidc_roles)
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


def test_findings_of_the_conformance_are_of_its_cases() -> None:
    (shown,) = texts("docs/protocols-reference.md", "ok ")
    found = re.findall(r"^(?:ok     |differs)  (must|should) +(\S.*)$", shown, re.MULTILINE)
    assert len(found) == 2
    assert set(found) <= {(case.severity, case.name) for case in CASES}


def test_containers_are_run_from_what_is_there() -> None:
    build, run = texts("docs/scaling.md", "docker ")[0].splitlines()
    words = shlex.split(run)
    assert shlex.split(build)[3] == words[-1]
    engine = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["engine"]
    mounts = [words[i + 1].split(":")[1] for i, word in enumerate(words) if word == "--volume"]
    assert mounts == [
        each.rsplit(":", 2)[-2 if each.endswith(":ro") else -1] for each in engine["volumes"]
    ]
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
    (ingress,) = map(yaml.safe_load, texts("docs/security.md", "apiVersion"))
    annotations = ingress["metadata"]["annotations"]
    size = annotations["nginx.ingress.kubernetes.io/proxy-body-size"]
    assert int(size.removesuffix("m")) << 20 > settings.max_body_bytes
    (path,) = ingress["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"]["port"]["number"] == http


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
        assert invoke(command)
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
