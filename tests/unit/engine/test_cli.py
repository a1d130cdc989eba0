"""Messages of the commands about invalid options."""

import subprocess
import sys

import pytest
from click import Context
from click.testing import CliRunner

from quadriga.engine.cli import main
from tests.server_process import IMAGES, SAMPLE_MODELS

IMAGE = str(IMAGES / "detection" / "scene_01.jpg")
VALIDATE = ["validate", str(SAMPLE_MODELS / "shapes-detector"), "--image", IMAGE]

CASES = {
    "no inferences": (["query", "--limit", "0"], "1<=x<=1000"),
    "fewer than none": (["query", "--limit", "-1"], "1<=x<=1000"),
    "parameters are no object": ([*VALIDATE, "--parameters", "[1]"], "expected an object"),
    "no prompts": (
        ["validate", str(SAMPLE_MODELS / "shapes-image-text"), "--image", IMAGE],
        """--parameters '{"prompts": ["What is it?"]}'""",
    ),
    "no image": ([*VALIDATE[:3], "none.jpg"], "'none.jpg' does not exist"),
    "no model": (["inspect", "nowhere"], "cannot open nowhere: no such file or folder"),
    "several models": (
        ["inspect", str(SAMPLE_MODELS)],
        "got the folder shapes-classifier, the folder shapes-detector",
    ),
    "no server": (["baseline", "--model", "a", "--server", "127.0.0.1:1"], "Connection refused"),
    "no server at a URL": (["jobs", "--url", "http://127.0.0.1:1"], "Connection refused"),
    "no format of pictures": ([*VALIDATE, "--output", "a.foo"], "end in .png or .jpg, got a.foo"),
}


@pytest.mark.parametrize(("arguments", "message"), CASES.values(), ids=CASES)
def test_a_bad_option_is_named(arguments, message):
    result = CliRunner().invoke(main, arguments, terminal_width=200)
    assert result.exit_code == 2
    assert message in result.output


def test_every_command_stands_with_what_people_do():
    shown = [name for panel in main.panels for name in panel.commands]
    assert sorted(shown) == sorted(main.list_commands(Context(main)))


@pytest.mark.parametrize("command", ["query", "drift", "evaluate"])
def test_help_loads_neither_reports_nor_client_nor_database(command):
    """A command is ready soon: importing these takes longer than all that a help text needs."""
    script = f"""
import sys
from quadriga.engine.cli import main
main(["{command}", "--help"], standalone_mode=False)
heavy = ("quadriga.monitor.report.schema", "quadriga.client", "sqlalchemy", "numpy", "litestar")
print([name for name in heavy if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "Usage" in done.stdout
    assert done.stderr.splitlines()[-1] == "[]"


def test_a_folder_without_models_leaves_no_data(tmp_path):
    arguments = ["serve", str(tmp_path / "nowhere"), "--data", str(tmp_path / "data")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert result.output == f"quadriga: model folder not found: {tmp_path / 'nowhere'}\n"
    assert not (tmp_path / "data").exists()
