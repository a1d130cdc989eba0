"""An installation beside other people's modules of the same names: nothing of theirs is read, nothing of ours hides theirs."""

import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.server_process import IMAGES, ROOT, SAMPLE_MODELS

NAMES = ("client", "engine", "extras", "monitor", "proto", "store", "tasks")
COMMAND = "import sys; from quadriga.engine.cli import main; sys.exit(main())"
DETECTOR = SAMPLE_MODELS / "shapes-detector"
PHOTO = IMAGES / "detection" / "scene_05.jpg"
REPORT_AT_EXIT = f"""
import atexit, sys
atexit.register(lambda: sys.stderr.write(f"bare names: {{sorted(set({NAMES}) & set(sys.modules))}}"))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installed copy: what the wheel holds, without links."""
    folder = tmp_path_factory.mktemp("site")
    package = ROOT / "src" / "quadriga"
    inside = (path for name in NAMES for path in (package / name).rglob("*"))
    for path in (*package.glob("*.py"), *inside):
        if path.is_file() and "__pycache__" not in path.parts:
            target = folder / "quadriga" / path.relative_to(package)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return folder


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """A folder with a module of its user for each name of our packages, which fails when imported."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(
            f"raise SystemExit('{name}.py of the user was imported')"
        )
    return tmp_path


def run(
    folder: Path, site: Path, *arguments: object, preload: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command of the installed copy in a folder that is on Python's path, as `PYTHONPATH=.` puts it."""
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{folder}"}
    return subprocess.run(
        [sys.executable, "-c", preload + COMMAND, *map(str, arguments)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def wait_until_ready(url: str) -> None:
    """Wait until every model is loaded."""
    for _ in range(600):
        with suppress(HTTPError), urlopen(f"{url}/v2/health/ready"):
            return
        time.sleep(0.1)
    raise TimeoutError(url)


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", DETECTOR),
        ("validate", DETECTOR, "--image", PHOTO),
        ("migrate", "--data", "data"),
        ("evaluate", "--model", "shapes-detector", "--data", "data"),
        ("drift", "--model", "shapes-detector", "--data", "data"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_imports_no_module_of_the_current_folder(crowded, site, arguments) -> None:
    finished = run(crowded, site, *arguments, preload=REPORT_AT_EXIT)
    assert "of the user" not in finished.stderr + finished.stdout
    assert "bare names: []" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_server_is_queried_from_a_folder_with_modules_of_the_same_names(crowded, site) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{crowded}"}
    flags = ["serve", str(SAMPLE_MODELS), "--port", "0", "--grpc-port", "-1", "--data", "data"]
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *flags],
        cwd=crowded, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            wait_until_ready(url)
            with urlopen(f"{url}/console/") as answer:
                page = answer.read().decode()
            for path in re.findall(r'"(/console/static/[^"]+)"', page):
                with urlopen(url + path) as answer:
                    assert answer.read()
            assert page.count("/console/static/") > 3
        finally:
            server.terminate()
            _, log = server.communicate(timeout=60)
    assert server.returncode == 0, log
    result = run(crowded, site, "query", "{}", "--data", "data")
    assert result.returncode == 0, result.stderr


def test_the_user_s_modules_stay_importable(tmp_path, site) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    script = f"import quadriga.engine.assembly.app, {', '.join(NAMES)}; print({' and '.join(f'{name}.MINE' for name in NAMES)})"
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{tmp_path}"}
    finished = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout == "True\n"


def test_the_client_is_the_same_under_both_of_its_names(tmp_path, site) -> None:
    shutil.copytree(ROOT / "client" / "quadriga_client", tmp_path / "quadriga_client")
    script = """
import sys, quadriga, quadriga.client, quadriga_client
assert quadriga.Client is quadriga.client.Client is not quadriga_client.Client
assert quadriga.AsyncClient is quadriga.client.AsyncClient
for package in (quadriga.client, quadriga_client):
    for name in package.__all__:
        assert getattr(package, name).__module__.startswith(package.__name__ + "."), name
print([name for name in sys.modules if name.startswith("quadriga.") and "client" not in name])
"""
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{tmp_path}"}
    finished = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert finished.stdout == "[]\n"


def test_python_dash_m_is_the_command(crowded, site) -> None:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    finished = subprocess.run(
        [sys.executable, "-m", "quadriga", "inspect", DETECTOR],
        cwd=crowded, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "OBJECT_DETECTION" in finished.stdout


def test_importing_the_package_loads_none_of_its_parts(site) -> None:
    script = "import sys, quadriga; print([name for name in sys.modules if name.startswith('quadriga.')])"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    finished = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert finished.stdout == "[]\n"


def test_a_folder_of_extensions_shadows_nothing(tmp_path, site) -> None:
    extensions, model = tmp_path / "extensions", tmp_path / "detector"
    extensions.mkdir()
    for name in (*NAMES, "quadriga", "numpy"):
        (extensions / f"{name}.py").write_text("raise SystemExit('shadowed')")
    (extensions / "acme.py").write_text("from quadriga.tasks.decoders import raw_head\n")
    shutil.copytree(DETECTOR, model)
    settings = (DETECTOR / "model.toml").read_text()
    (model / "model.toml").write_text(settings.replace('"ultralytics"', '"acme:raw_head"'))
    arguments = ("validate", model, "--image", PHOTO)
    finished = run(tmp_path, site, *arguments, "--extensions", extensions)
    assert finished.returncode == 0, finished.stderr
    refused = run(tmp_path, site, *arguments)
    assert refused.returncode == 2
    assert "name its folder by the setting extensions" in refused.stderr
    missing = run(tmp_path, site, *arguments, "--extensions", "nowhere")
    assert "folder of the setting extensions not found: nowhere" in missing.stderr
