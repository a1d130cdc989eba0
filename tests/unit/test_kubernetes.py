"""The manifests for Kubernetes and KServe: their parts fit one another, their settings are there, and so are the paths that they probe."""

import ipaddress
import json
import re
import runpy
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import Context
from click.testing import CliRunner

from quadriga.engine.cli import main
from quadriga.engine.config.settings import PREFIX, Settings, load

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FOLDERS = [path.parent for path in sorted(DEPLOY.rglob("kustomization.yaml"))]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PROBED = {"/v2/health/live", "/v2/health/ready"}


def documents(folder: Path) -> list[dict[str, Any]]:
    """Return the manifests of a folder."""
    paths = [path for path in sorted(folder.glob("*.yaml")) if path.name != "kustomization.yaml"]
    return [one for path in paths for one in yaml.safe_load_all(path.read_text())]


BASE = {(one["kind"], one["metadata"]["name"]): one for one in documents(DEPLOY / "kubernetes" / "base")}  # fmt: skip
SET = BASE["StatefulSet", "quadriga"]
POD = SET["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
RUNTIMES = [
    yaml.safe_load((DEPLOY / "kserve" / name).read_text())
    for name in ("servingruntime.yaml", "servingruntime-grpc.yaml")
]
RUNTIME_CONTAINERS = [one for runtime in RUNTIMES for one in runtime["spec"]["containers"]]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_kustomization_names_what_is_there_and_all_of_it(folder: Path):
    content = yaml.safe_load((folder / "kustomization.yaml").read_text())
    resources, patches = content["resources"], [one["path"] for one in content.get("patches", [])]
    for name in (*resources, *patches):
        assert (folder / name).exists(), name
    files = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert files == {name for name in (*resources, *patches) if name.endswith(".yaml")}
    for name in patches:
        patch = yaml.safe_load((folder / name).read_text())
        assert (patch["kind"], patch["metadata"]["name"]) in BASE
        assert patch["apiVersion"] == BASE[patch["kind"], patch["metadata"]["name"]]["apiVersion"]


def test_selectors_select_the_pods():
    labels = SET["spec"]["template"]["metadata"]["labels"]
    assert SET["spec"]["selector"]["matchLabels"] == labels
    assert ("Service", SET["spec"]["serviceName"]) in BASE
    for kind, name in (("Service", "quadriga"), ("Service", "quadriga-each")):
        assert BASE[kind, name]["spec"]["selector"] == labels
    assert BASE["NetworkPolicy", "quadriga"]["spec"]["podSelector"]["matchLabels"] == labels
    budget = yaml.safe_load((DEPLOY / "kubernetes/overlays/postgresql/disruption.yaml").read_text())
    assert budget["spec"]["selector"]["matchLabels"] == labels
    monitor = yaml.safe_load((DEPLOY / "kubernetes/overlays/prometheus-operator/servicemonitor.yaml").read_text())  # fmt: skip
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    watched = [one for one in BASE.values() if wanted <= one["metadata"].get("labels", {}).items()]
    assert [one["metadata"]["name"] for one in watched] == ["quadriga-each"]
    assert watched[0]["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "quadriga"


def test_the_alerts_for_kubernetes_are_those_of_prometheus():
    script = runpy.run_path(str(DEPLOY / "prometheus" / "kubernetes.py"))
    text = script["TARGET"].read_text()
    assert text == script["prometheus_rule"]()
    manifest = yaml.safe_load(text)
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
    assert len(groups) == 3
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    interval = scraped["global"]["evaluation_interval"]
    assert manifest["spec"] == {"groups": [{**group, "interval": interval} for group in groups]}
    assert (manifest["apiVersion"], manifest["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")  # fmt: skip


def test_the_page_applies_files_that_are_there():
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    applied = re.findall(r" -[fk] (\S+)", page)
    assert "deploy/kubernetes/overlays/prometheus-operator/prometheusrule.yaml" in applied
    assert all((ROOT / path).exists() for path in applied)


def test_settings_are_there():
    containers = [CONTAINER, *RUNTIME_CONTAINERS]
    for path in DEPLOY.rglob("overlays/*/statefulset.yaml"):
        containers += yaml.safe_load(path.read_text())["spec"]["template"]["spec"]["containers"]
    names = {entry["name"] for container in containers for entry in container["env"]}
    for name in names:
        setting = name.removeprefix("QUADRIGA_").removesuffix("_FILE").lower()
        assert hasattr(Settings(), setting), name
    assert len(names) > 5


def test_ports_volumes_and_probes_fit():
    ports = {port["name"] for port in CONTAINER["ports"]}
    for name in ("quadriga", "quadriga-each"):
        for port in BASE["Service", name]["spec"]["ports"]:
            assert port["targetPort"] in ports
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = CONTAINER[probe]["httpGet"]
        assert asked["path"] in PROBED
        assert asked["port"] in ports
    claims = [claim["metadata"]["name"] for claim in SET["spec"]["volumeClaimTemplates"]]
    volumes = {volume["name"] for volume in POD["volumes"]} | {*claims}
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == volumes


def test_a_runtime_of_kserve_serves_its_model_by_the_name_of_the_service():
    for container, kind, port in zip(
        RUNTIME_CONTAINERS, ("http1", "h2c"), (8080, 8081), strict=True
    ):
        assert container["args"] == ["serve", "/mnt/models", "--name", "{{.Name}}"]
        assert container["ports"] == [{"name": kind, "containerPort": port, "protocol": "TCP"}]
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["timeoutSeconds"] > 1
            (asked,) = container[probe].keys() & {"httpGet", "grpc", "tcpSocket"}
            assert container[probe][asked]["port"] == port
            assert container[probe][asked].get("path", "/v2/health/ready") in PROBED


def test_pods_are_as_restricted_as_the_image_allows():
    dockerfile = (ROOT / "Dockerfile").read_text()
    user = int(re.findall(r"^USER (\d+)", dockerfile, re.MULTILINE)[-1])
    for container, pod in ((CONTAINER, POD), *((one, {}) for one in RUNTIME_CONTAINERS)):
        allowed = {**pod.get("securityContext", {}), **container["securityContext"]}
        assert (allowed["runAsNonRoot"], allowed["runAsUser"]) == (True, user)
        assert allowed["allowPrivilegeEscalation"] is False
        assert allowed["capabilities"] == {"drop": ["ALL"]}
        assert allowed["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["image"] == f"quadriga:{VERSION}"
        assert "memory" in container["resources"]["limits"]
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_pod_has_the_time_to_end_in_order():
    drain_s = next(float(one["value"]) for one in CONTAINER["env"] if one["name"] == "QUADRIGA_DRAIN_S")  # fmt: skip
    least_s = drain_s + 2 * Settings().exit_timeout_s  # for the workers, and then for the writer
    assert POD["terminationGracePeriodSeconds"] > least_s


def test_the_secrets_of_the_page_are_values_of_their_settings():
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    literals = dict(re.findall(r'--from-literal=(\w+)="(.*?)"', page))
    del literals["key"]  # of another secret, for Prometheus
    environment = {
        PREFIX + name.removesuffix("_url").upper(): subprocess.run(["sh", "-c", f'printf %s "{text}"'], capture_output=True, text=True, check=True).stdout
        for name, text in literals.items()
    }  # fmt: skip
    settings = load({}, environment)
    assert settings.admin_key.startswith("quadriga-ops.")
    assert all(getattr(settings, name.removesuffix("_url")) for name in literals)


REPLICAS = DEPLOY / "kubernetes" / "overlays" / "postgresql"
PATCHED = yaml.safe_load((REPLICAS / "statefulset.yaml").read_text())["spec"]["template"]["spec"]


def test_replicas_share_what_one_address_needs():
    values = {entry["name"]: entry["value"] for entry in PATCHED["containers"][0]["env"]}
    shared = {"DATABASE_FILE", "BLOBS", "SESSION_KEY_FILE"}
    assert {name.removeprefix(PREFIX) for name in values} == shared
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    for name, value in values.items():
        if name.endswith("_FILE"):  # an entry of the secret, which the page makes
            folder, _, entry = value.rpartition("/")
            assert folder == "/run/secrets/quadriga"
            assert f"--from-literal={entry}=" in page
    (mount,) = PATCHED["containers"][0]["volumeMounts"]
    assert mount["mountPath"] == "/data/events"
    (volume,) = PATCHED["volumes"]
    claim = yaml.safe_load((REPLICAS / "events.yaml").read_text())
    assert volume["name"] == mount["name"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_clients_load_no_models():
    for container in (CONTAINER, *RUNTIME_CONTAINERS):
        values = {entry["name"]: entry["value"] for entry in container["env"]}
        assert values["QUADRIGA_MODEL_CONTROL"] == "false"


def test_a_job_migrates_the_database_of_the_servers():
    (job,) = documents(DEPLOY / "kubernetes")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == CONTAINER["image"]
    assert container["args"][0] in main.list_commands(Context(main))
    assert container["env"][0] in PATCHED["containers"][0]["env"]
    assert container["securityContext"] == CONTAINER["securityContext"]
    assert pod["securityContext"] == POD["securityContext"]
    assert pod["volumes"][0] in POD["volumes"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert labels != SET["spec"]["selector"]["matchLabels"]  # no service sends requests to it
    assert (
        "kubectl apply -f deploy/kubernetes/migrate.yaml"
        in (ROOT / "docs/kubernetes.md").read_text()
    )


POLICIES = [
    (path, one)
    for path in sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
    for one in yaml.safe_load_all(path.read_text())
    if one["kind"] == "NetworkPolicy"
]
EXAMPLES = [one for path, one in POLICIES if path.parent.name == "examples"]


@pytest.mark.parametrize(("path", "policy"), POLICIES)
def test_no_rule_is_for_the_world(path: Path, policy: dict[str, Any]):
    """Each rule names ports, and peers by a label or by addresses that are few."""
    rules = [(rule, "from") for rule in policy["spec"].get("ingress", [])]
    rules += [(rule, "to") for rule in policy["spec"]["egress"]]
    for rule, side in rules:
        assert all(port.get("port") for port in rule["ports"]), path
        assert rule[side], path
        for peer in rule[side]:
            if block := peer.get("ipBlock"):
                assert ipaddress.ip_network(block["cidr"]).prefixlen >= 24
                continue
            assert peer
            assert all(selector["matchLabels"] for selector in peer.values()), path


def test_a_policy_of_the_base_closes_both_directions():
    policy = BASE["NetworkPolicy", "quadriga"]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    ports = [port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]]
    assert set(ports) == {53}
    patched = yaml.safe_load((REPLICAS / "networkpolicy.yaml").read_text())
    names, database = patched["spec"]["egress"]  # a patch replaces the list
    assert names == policy["spec"]["egress"][0]
    assert [port["port"] for port in database["ports"]] == [5432]


def test_examples_of_rules_are_for_the_pods_and_named_on_the_page():
    assert len(EXAMPLES) == len({one["metadata"]["name"] for one in EXAMPLES}) > 3
    labels = SET["spec"]["selector"]["matchLabels"]
    for example in EXAMPLES:
        assert example["spec"]["podSelector"]["matchLabels"] == labels
        assert example["spec"]["policyTypes"] == ["Egress"]
        for rule in example["spec"]["egress"]:
            for block in (peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer):
                network = ipaddress.ip_network(block["cidr"])
                assert any(network.subnet_of(one) for one in FOR_DOCUMENTS), network
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert "../deploy/kubernetes/examples/egress.yaml" in page
    assert set(re.findall(r"`(quadriga-to-[a-z-]+)`", page)) <= {
        one["metadata"]["name"] for one in EXAMPLES
    }


FOR_DOCUMENTS = [
    ipaddress.IPv4Network(block) for block in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
]
"""Addresses of RFC 5737, which are nobody's."""


def test_metrics_need_a_key_and_prometheus_has_it(tmp_path: Path):
    for path in DEPLOY.rglob("kubernetes/**/statefulset.yaml"):
        assert "OPEN_METRICS" not in path.read_text()
    monitor = yaml.safe_load(
        (DEPLOY / "kubernetes/overlays/prometheus-operator/servicemonitor.yaml").read_text()
    )
    (endpoint,) = monitor["spec"]["endpoints"]
    secret = endpoint["authorization"]["credentials"]
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert f"generic {secret['name']} " in page
    assert f"--from-literal={secret['key']}=" in page
    (words,) = re.findall(r"-- quadriga (keys create .*?) \|", page)
    arguments = [*words.split(), "--data", str(tmp_path / "data")]
    made = json.loads(CliRunner().invoke(main, arguments).output)
    assert (made["roles"], "key" in made) == (["metrics"], True)
    assert "| jq -r .key)" in page
