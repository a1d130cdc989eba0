"""Triton, the server of NVIDIA's pytriton wheel, with models in its Python backend: the wheel brings no other.

`python server.py` writes the folder of models that Triton reads, and starts it: an instance of each model for each core. It
wants a process for each instance, and Python 3.12: the interpreter of its wheel for 3.11 is older than the libraries.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import peer_models
from peer_models import CORES, model_names, peer_settings

CONFIGURATION = """
name: "{name}"
backend: "python"
max_batch_size: 0
input [{{name: "image" data_type: {type} dims: {dims}}}]
output [{outputs}]
instance_group [{{kind: KIND_CPU count: {count}}}]
"""


def output(name: str, datatype: str, dims: str) -> str:
    """Describe an output."""
    return f'{{name: "{name}" data_type: TYPE_{datatype} dims: {dims}}}'


def write_models(models: str) -> None:
    """Write two models for each graph: one for tensors, and one for images in base64, whose name ends with -image."""
    sources = (Path(__file__).with_name("model.py"), Path(peer_models.__file__))
    for name in model_names(models):
        labels = [output("labels", "STRING", "[-1]"), output("scores", "FP32", "[-1]")]
        boxes = [output("boxes", "FP32", "[-1, 4]")] if "detector" in name else []
        kinds = {f"{name}-image": ("TYPE_STRING", "[1]", labels + boxes)}
        if not boxes:
            scores = [output("scores", "FP32", "[-1, -1]")]
            kinds[name] = ("TYPE_FP32", "[-1, 3, -1, -1]", scores)
        for served, (type_, dims, outputs) in kinds.items():
            folder = Path("models", served)
            (folder / "1").mkdir(parents=True)
            for source in sources:
                shutil.copy(source, folder / "1")
            (folder / "config.pbtxt").write_text(
                CONFIGURATION.format(
                    name=served, type=type_, dims=dims, outputs=", ".join(outputs), count=CORES
                )
            )


if __name__ == "__main__":
    models, http_port, grpc_port = peer_settings()
    write_models(models)
    packages = sysconfig.get_path("purelib")
    home = Path(packages, "pytriton", "tritonserver")
    shutil.copytree(home / "backends", "backends")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = home / "python_backend_stubs" / version / "triton_python_backend_stub"
    shutil.copy(stub, "backends/python")
    libraries = f"{packages}/nvidia_pytriton.libs:{sysconfig.get_config_var('LIBDIR')}"
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": libraries,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "VIRTUAL_ENV": sys.prefix,
        "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{packages}",
    }
    program = str(home / "bin" / "tritonserver")
    flags = {
        "model-repository": "models",
        "backend-directory": "backends",
        "http-address": "127.0.0.1",
        "http-port": http_port,
        "grpc-address": "127.0.0.1",
        "grpc-port": grpc_port,
        "allow-metrics": "false",
    }
    os.execve(
        program, [program, *(f"--{name}={value}" for name, value in flags.items())], environment
    )
