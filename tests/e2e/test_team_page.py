"""The page for teams, copied block by block into an empty folder, does what it says."""

import json
import re
import ssl
import sys
from pathlib import Path

import pytest

from tests.pages import blocks, shell
from tests.server_process import ROOT, ServerProcess


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like the repository's after `make demo`."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "quadriga").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m quadriga.engine.cli "$@"\n'
    )
    (programs / "quadriga").chmod(0o755)
    (tmp_path / "sample_models").symlink_to(ROOT / "sample_models")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def answers(output: str) -> list[dict]:
    """Read the JSON texts that stand one behind the other."""
    decoder, position, found = json.JSONDecoder(), 0, []
    while position < len(output):
        value, position = decoder.raw_decode(output, position)
        found.append(value)
        position += len(output[position:]) - len(output[position:].lstrip())
    return found


def test_two_teams_share_a_server_as_the_page_says(folder: Path) -> None:
    certify, make, serve, send, refused, see, correct, end, audit = (
        block.text for block in blocks("docs/team.md")
    )
    shell(certify, folder)
    listed = shell(make, folder)
    assert re.search(r"labellers of quality *│ *annotate *│[^│]*quality", listed)
    keys = {path.stem: path.read_text().strip() for path in (folder / "shared").glob("*.key")}
    flags = serve.split()[serve.split().index("--tls-certificate") :]
    flags = [str(folder / flag) if flag.startswith("shared/") else flag for flag in flags]
    server = ServerProcess(folder / "shared" / "data", ROOT / "sample_models", *flags)
    server.tls = ssl.create_default_context(cafile=folder / "shared" / "ca.pem")
    definitions = re.search(r"ask\(\) .*?^IMAGES=.*?$", send, re.MULTILINE | re.DOTALL)
    assert definitions

    def run(block: str, *, with_definitions: bool = True) -> str:
        text = f"{definitions[0]}\n{block}" if with_definitions else block
        text = text.replace("https://localhost:8080", f"https://{server.host}")
        return shell(text.replace("sleep 1\n", ""), folder / "shared")

    with server:
        by_line, by_harbour = answers(run(send, with_definitions=False))
        assert by_line["outputs"][0]["data"][0][0]["label"] == "circle"
        assert by_harbour["model_name"] == "ships-oriented-detector"
        server.wait_until(
            lambda: len(answers(run("ask you /api/inferences"))[0]["inferences"]) == 2
        )
        other_model, no_read, no_key = answers(run(refused))
        assert "expected a key for the model 'ships-oriented-detector'" in other_model["error"]
        assert "expected a key with the role read" in no_read["error"]
        assert "got none" in no_key["error"]
        of_quality, of_logistics, of_both = (page["inferences"] for page in answers(run(see)))
        assert [record["metadata"]["place"] for record in of_quality] == ["line 4"]
        assert [record["metadata"]["place"] for record in of_logistics] == ["berth 2"]
        assert len(of_both) == 2
        *_, hidden = answers(run(correct))
        assert "not found" in hidden["error"]
        _, (record,) = (
            answers(run("ask labellers /api/inferences")),
            answers(run("ask you '/api/inferences?meta.place=line+4'"))[0]["inferences"],
        )
        assert record["ground_truth"] == [{"label": "circle"}]
        revoked, metadata = answers(run(end)[run(end).index("{") :])
        assert "expected a valid key" in revoked["error"]
        assert metadata["name"] == "shapes-classifier"
    assert server.process is not None
    assert server.process.returncode == 0
    log = shell(audit, folder / "shared")
    assert all(name in log for name in ("keys create", "keys rotate", "keys revoke", "labellers"))
    assert not any(key.partition(".")[2] in log for name, key in keys.items() if "." in key)
