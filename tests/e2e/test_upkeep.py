"""A server that counts what it served, and removes what is kept no longer."""

import subprocess
import sys

from tests.server_process import ROOT, SAMPLE_MODELS, ServerProcess, image_input

MODEL = SAMPLE_MODELS / "shapes-classifier"


def test_what_was_served_is_counted_and_images_go_beyond_a_size(data, shape, photo):
    with ServerProcess(data, MODEL, "--max-input-bytes", "1") as server:
        ids = []
        for image in (shape[0], photo):
            body = {"inputs": [image_input(image)]}
            status, answer = server.call("POST", "/v2/models/shapes-classifier/infer", body)
            assert status == 200
            ids.append(answer["outputs"][0]["parameters"]["inference_id"])
        server.query({}, consistency="journal")
        asked = {"where": {"model": "shapes-classifier"}, "group": ["model"]}
        status, answer = server.call("POST", "/api/inferences/aggregate", asked)
        (group,) = answer["groups"]
        assert (status, answer["source"]) == (200, "rollups")
        assert (group["model"], group["count"], group["error_rate"]) == ("shapes-classifier", 2, 0)
        assert group["latency_p50"] > 0
        rule = {"inputs_days": 1, "inferences_days": 2.5}
        path = "/api/models/shapes-classifier/retention"
        assert server.call("PUT", path, rule) == (200, {"model": "shapes-classifier", **rule})
        oldest = f"/api/inferences/{ids[0]}"
        server.wait_until(lambda: not server.call("GET", oldest)[1]["input"]["kept"], timeout_s=40)
        assert server.call("GET", f"{oldest}/input")[0] == 404
        rebuilt = subprocess.run(
            [sys.executable, "-m", "engine.cli", "store", "rebuild", "--data", str(data)],
            capture_output=True, text=True, cwd=ROOT, timeout=60, check=False,
        )  # fmt: skip
        assert (rebuilt.returncode, rebuilt.stdout) == (0, "rebuilt\n")
        assert server.call("POST", "/api/inferences/aggregate", asked)[1]["groups"] == [group]
