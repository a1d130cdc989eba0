"""The lines of docs/datasets.md that read tables with Polars, DuckDB and pyarrow, run as they are written."""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from plain_checks import check, described

PAGE = (Path(__file__).parents[3] / "docs" / "datasets.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
URL = "http://localhost:8080"
expected = {int(item["id"]) for item in described["inferences"]}


def run(marker: str) -> dict[str, Any]:
    """Run the block of the page that has a marker, against this server; return its names."""
    (block,) = (block for block in BLOCKS if marker in block)
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(block.replace(URL, f"http://{described['http']}"), names)
    return names


@check("Polars reads the stream")
def _() -> None:
    table = run("read_ipc_stream")["inferences"]
    assert {*table["id"]} == expected
    assert table.schema["id"].is_integer()


@check("DuckDB queries the stream and the file")
def _() -> None:
    names = run("import duckdb")
    assert names["labels"], names["labels"]
    assert sum(count for _, count in names["cameras"]) == len(expected)
