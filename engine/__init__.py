"""Assembly: command line, settings, request pipeline, model repository, sessions, processes."""

import os

# onnxruntime reads it when it is loaded, which only modules of this package do; a value of the environment stays.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
