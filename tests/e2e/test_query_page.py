"""The first commands of docs/query.md, copied, find what a detector has just seen, at its place alone."""

import json
import re
import sys

from tests.pages import blocks, shell
from tests.server_process import IMAGES, ServerProcess


def test_one_question_in_three_forms_finds_the_one_inference(data) -> None:
    image = (IMAGES / "detection" / "scene_01.jpg").read_bytes()
    with ServerProcess(data) as server:
        ids = []
        for camera, latitude in (("north", 51.52), ("north", 51.56), ("south", 51.52)):
            place = {"latitude": latitude, "longitude": -0.12}
            metadata = json.dumps({"camera": camera, "note": "[/b]", **place})
            ids.append(server.store("m-shapes-detector", image, metadata=metadata))
        server.query({})  # waits until all is stored
        (block,) = (text for language, text in blocks("docs/query.md") if language == "sh")
        by_url, by_json, by_command = re.split(r"\n(?=curl|quadriga)", block)
        for command in (by_url, by_json):
            page = json.loads(shell(command.replace("localhost:8080", server.host)))
            assert [inference["id"] for inference in page["inferences"]] == ids[:1]
        by_command = by_command.replace("quadriga", f"{sys.executable} -m quadriga.engine.cli")
        printed = shell(f"{by_command.strip()} --data {data}")
        assert [json.loads(line)["id"] for line in printed.splitlines()] == ids[:1]
        table = shell(f"{by_command.replace('--json', '').strip()} --data {data}")
        assert ids[0] in table
        assert re.search(r"│ \w+ 0\.\d\d", table)  # in 80 columns there is room for a word
