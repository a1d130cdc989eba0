"""schemathesis against the server's own OpenAPI document: nothing undocumented, no fault of the server."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.server_process import IMAGES, ServerProcess, image_input

PHOTO = IMAGES / "detection" / "scene_01.jpg"
ROOT = Path(__file__).parent.parent.parent
COMMAND = ROOT / ".conformance" / "schemathesis" / "bin" / "schemathesis"
LEFT_OUT = (
    "negative_data_rejection",  # what is more than the document says is passed over
    "positive_data_acceptance",  # no document says which models there are and what they take
    "missing_required_header",
    "ignored_auth",
    "use_after_free",
    "ensure_resource_availability",
    "object_level_authorization",
)
NAMES = ["sum", "identity-fp32", "identity-bytes", "half_plus_three", "shapes-detector", "none"]
RELOADED = ["spare", "none"]
"""Models whose loading disturbs no other call."""

SETTINGS = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "4xx", 501, 503]

# TF Serving answers 400 to what it does not know below /v1
[[operations]]
include-path-regex = "^/v1/"
checks.unsupported_method.enabled = false
"""

pytestmark = pytest.mark.conformance


@pytest.fixture
def server(models, tmp_path):
    """A server of its own, whose models may be unloaded at any time."""
    with ServerProcess(tmp_path / "data", models, "--no-strict-readiness") as running:
        yield running


def with_names(document: dict[str, Any], inferences: list[str]) -> dict[str, Any]:
    """Put what is served and stored in place of any text, so that most calls reach something."""
    for path, item in document["paths"].items():
        names = RELOADED if path.endswith("load") else NAMES
        values_by_name = {"name": names, "version": ["1", "9"], "inference_id": [*inferences, "1"]}
        for operation in item.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path" and parameter["name"] in values_by_name:
                    parameter["schema"] = {
                        "type": "string",
                        "enum": values_by_name[parameter["name"]],
                    }
    return document


@pytest.mark.parametrize("names", ["any", "served"])
def test_the_server_answers_as_it_documents(server, tmp_path, names):
    assert COMMAND.exists(), f"expected {COMMAND}: make conformance"
    status, document = server.call("GET", "/schema/openapi.json")
    assert status == 200
    if names == "served":
        path = "/v2/models/shapes-detector/infer"
        status, answer = server.call("POST", path, {"inputs": [image_input(PHOTO.read_bytes())]})
        assert status == 200, answer
        (stored,) = server.query({"model": "shapes-detector"})[:1]
        document = with_names(document, [stored["id"]])
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(document))
    settings = tmp_path / "schemathesis.toml"
    settings.write_text(SETTINGS)
    ran = subprocess.run(
        [
            COMMAND, "--config-file", str(settings), "run", str(file), "--url", f"http://{server.host}",
            "--exclude-checks", ",".join(LEFT_OUT), "--phases", "examples,coverage,fuzzing",
            "--max-examples", "25", "--max-time", "20", "--seed", "7", "--continue-on-failure",
            "--suppress-health-check", "all", "--no-color",
        ],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, f"{ran.stdout[-12_000:]}\n{ran.stderr[-2000:]}"
    assert server.call("GET", "/v2/health/live")[0] == 200
