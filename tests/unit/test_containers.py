"""The image and the services are built from what is locked, run as nobody special, and name what exists."""

import json
import os
import re
import shlex
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from quadriga.engine.api.metrics import metrics_route
from quadriga.engine.config.settings import load
from quadriga.proto.http import operations
from quadriga.proto.http.operations import WireOptions, expand_path

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
INSTRUCTIONS = [
    line.split(None, 1) for line in DOCKERFILE.splitlines() if line and not line.startswith("#")
]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
PROMETHEUS = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())


def given(name: str) -> list[str]:
    """Return what stands behind an instruction of the Dockerfile, in order."""
    return [value for instruction, value in INSTRUCTIONS if instruction == name]


def substituted(text: str, **environment: str) -> str:
    """Return text as compose reads it."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: environment.get(found[1], found[2]), text)


IMAGES = [value.split()[0] for value in given("FROM")] + [
    each["image"] for each in SERVICES.values()
]


@pytest.mark.parametrize("image", IMAGES)
def test_images_are_named_with_a_version_and_without_a_host(image) -> None:
    name, _, tag = image.partition(":")
    assert re.match(r"v?\d", tag)
    first, slash, _ = name.partition("/")
    assert not (slash and "." in first)


def test_every_package_comes_from_the_lock_by_its_hash() -> None:
    first, second = (value for value in given("RUN") if value.startswith("pip "))
    words = shlex.split(first.partition("&&")[0])
    assert "--require-hashes" in words
    lock = ROOT / words[words.index("--requirement") + 1]
    entries = re.split(r"\n(?=\w)", lock.read_text().strip())
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries)
    locked = {re.split(r"\W*==", entry)[0].lower() for entry in entries}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["postgres"]]
    asked += project["optional-dependencies"]["clickhouse"]
    needed = {re.match(r"[\w-]+", each)[0].lower() for each in asked}
    assert needed <= locked
    assert shlex.split(second)[-2:] == ["--no-deps", "."]


def test_all_packages_are_in_the_image_and_sent_to_who_builds_it() -> None:
    copied = [value.split()[:-1] for value in given("COPY") if not value.startswith("--from")]
    sources = {source for each in copied for source in each}
    assert all((ROOT / source).exists() for source in sources)
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    (package,) = hatch["build"]["targets"]["wheel"]["packages"]
    parts = {path.name for path in (ROOT / package).iterdir() if path.is_symlink()}
    assert parts == {"client", "engine", "extras", "proto", "tasks", "store", "monitor"}
    assert {package.partition("/")[0], *parts} <= sources
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert {f"!{source}" for source in sources} <= set(ignored)


def test_the_image_runs_as_a_user_of_its_own() -> None:
    (user,) = given("USER")
    assert int(user.split(":")[0]) > 0
    assert INSTRUCTIONS.index(["USER", user]) < INSTRUCTIONS.index(["ENTRYPOINT", '["quadriga"]'])
    assert given("VOLUME") == ["/data"]


def test_the_image_is_healthy_while_its_server_lives() -> None:
    (check,) = given("HEALTHCHECK")
    command = json.loads(check[check.index("CMD") + 4 :])
    assert command[0] == "python"
    compile(command[2], "HEALTHCHECK", "exec")
    path = re.search(r"http://127\.0\.0\.1:8080(/[\w/]+)", command[2])[1]
    offered = {
        plain
        for operation in operations.all_operations(None, WireOptions(server_version=""))
        for plain in expand_path(operation.path)
        if operation.method == "GET"
    }
    assert path in offered


def make_secrets(folder: Path) -> dict[str, int]:
    """Run the script of the service that makes the secrets; return who each new file is for."""
    folder.mkdir(exist_ok=True)
    programs = folder.parent / "programs"
    programs.mkdir(exist_ok=True)
    given_away = programs / "given away"
    given_away.write_text("")
    (programs / "chown").write_text(f'#!/bin/sh\necho "$@" >> "{given_away}"\n')
    (programs / "chown").chmod(0o755)
    shell, script, _ = SERVICES["secrets"]["entrypoint"]
    assert f"./deploy{script}:{script}:ro" in SERVICES["secrets"]["volumes"]
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [shell, f"{ROOT}/deploy{script}", folder], check=True, env={"PATH": path}, stdout=-3
    )
    rows = (line.split(None, 1) for line in given_away.read_text().splitlines())
    return {Path(file).stem: int(user) for user, file in rows}


def start_engine(folder: Path, *arguments: str, **environment: str) -> str:
    """Run the entry point of the engine with secrets in a folder and a program that prints what it was told."""
    programs = folder.parent / "told"
    programs.mkdir(exist_ok=True)
    (programs / "quadriga").write_text('#!/bin/sh\necho "$QUADRIGA_DATABASE_FILE" "$@"\n')
    (programs / "quadriga").chmod(0o755)
    entry = [
        word.replace("$$", "$").replace("/secrets", str(folder))
        for word in SERVICES["engine"]["entrypoint"]
    ]
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    command = [*entry, *SERVICES["engine"]["command"], *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env={"PATH": path, **environment}
    ).stdout


def test_the_engine_has_sqlite_until_there_is_the_url_of_postgresql(tmp_path) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    assert start_engine(folder, "--workers", "2") == " serve --workers 2\n"
    make_secrets(folder)
    assert start_engine(folder) == f"{folder}/database_url serve\n"


def test_one_command_starts_the_engine_alone(tmp_path) -> None:
    assert [name for name, service in SERVICES.items() if "profiles" not in service] == ["engine"]
    needed = SERVICES["engine"]["depends_on"]
    assert all(row["required"] is False for row in needed.values())
    for service in SERVICES.values():
        for name, row in dict(service.get("depends_on", {})).items():
            is_left_out = row.get("required") is False
            assert is_left_out or SERVICES[name]["profiles"] == service["profiles"]


def test_every_setting_of_the_containers_exists_and_fits(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_secrets(tmp_path / "secrets")
    environment = dict(re.findall(r"(QUADRIGA_\w+)=(\S+)", given("ENV")[0]))
    assert len(environment) >= 3
    environment |= SERVICES["engine"]["environment"]
    environment["QUADRIGA_DATABASE_FILE"] = start_engine(tmp_path / "secrets").split()[0]
    found = load({}, environment)
    password = (tmp_path / "secrets" / "postgres_password").read_text()
    assert found.database == f"postgresql://quadriga:{password}@postgres:5432/quadriga"
    assert (found.host, found.data, found.models) == ("0.0.0.0", "/data", "/models")
    assert not found.insecure
    exposed = {int(port) for port in given("EXPOSE")[0].split()}
    assert {found.port, found.grpc_port} == exposed
    assert {int(port.rpartition(":")[2]) for port in SERVICES["engine"]["ports"]} == exposed
    assert float(SERVICES["engine"]["stop_grace_period"].rstrip("s")) > 2 * found.exit_timeout_s


@pytest.mark.parametrize("name", SERVICES)
def test_services_may_do_no_more_than_they_must(name) -> None:
    service = SERVICES[name]
    # what gives files away is root, has no network and ends
    is_giving = service.get("cap_add") == ["CHOWN"] and service["network_mode"] == "none"
    assert is_giving or ("cap_add" not in service and int(service["user"].split(":")[0]) > 0)
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert not service.get("privileged")
    assert re.fullmatch(r"\d+g", substituted(service["mem_limit"]))
    assert service["pids_limit"] <= 2048
    assert "healthcheck" in service or "build" in service or is_giving
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:")
    for volume in service["volumes"]:
        source = substituted(volume).partition(":")[0]
        assert source in COMPOSE["volumes"] or (ROOT / source).exists()


def test_secrets_are_made_once_each_for_its_user(tmp_path) -> None:
    folder = tmp_path / "secrets"
    users = make_secrets(folder)
    assert {
        file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()
    } == dict.fromkeys(users, 0o600)
    password = (folder / "postgres_password").read_text()
    assert re.fullmatch(r"[0-9a-f]{48}", password)
    assert make_secrets(folder) == {}
    make_secrets(tmp_path / "others")
    assert (tmp_path / "others" / "postgres_password").read_text() != password
    read = {}
    for service in SERVICES.values():
        text = str([service.get("environment"), service.get("entrypoint")])
        for name in set(re.findall(r"/secrets/(\w+)", text)):
            read[name] = int(service["user"].split(":")[0])
            assert "${SECRETS:-secrets}:/secrets:ro" in service["volumes"]
    assert read == users


def test_a_secret_that_is_missing_is_added_to_the_others(tmp_path) -> None:
    folder = tmp_path / "secrets"
    make_secrets(folder)
    before = {file.name: file.read_text() for file in folder.iterdir()}
    (folder / "grafana_password").unlink()
    make_secrets(folder)
    after = {file.name: file.read_text() for file in folder.iterdir()}
    assert after.keys() == before.keys()
    assert {name for name, text in after.items() if text != before[name]} == {"grafana_password"}


def test_no_password_stands_in_a_file() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert not re.findall(r"PASSWORD: .*|PASSWORD__FILE: (?!/secrets/).*|://[^/ ]*@", text)


def test_prometheus_asks_what_is_there() -> None:
    jobs = {job["job_name"]: job for job in PROMETHEUS["scrape_configs"]}
    assert jobs["quadriga"]["static_configs"] == [{"targets": ["engine:8080"]}]
    assert jobs["quadriga"]["metrics_path"] in metrics_route(None, need="key").paths
    mounted = [volume.split(":")[0] for volume in SERVICES["prometheus"]["volumes"]]
    assert "./deploy/prometheus.yml" in mounted
    assert "./deploy/prometheus/rules.yml" in mounted
    assert PROMETHEUS["rule_files"] == ["rules.yml"]


def test_grafana_has_all_boards_and_its_prometheus() -> None:
    folder = ROOT / "deploy" / "grafana"
    mounted = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    boards = {f"./deploy/grafana/{path.name}" for path in folder.glob("*.json")}
    provisioning = folder / "provisioning"
    assert mounted["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards/quadriga.yml").read_text())[
        "providers"
    ]
    assert {
        source
        for source, target in mounted.items()
        if target.startswith(f"{provider['options']['path']}/")
    } == boards
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"] is True
