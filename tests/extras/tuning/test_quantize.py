"""`quadriga quantize` with images that a server stored, and the server that serves what came of it."""

import json
import shutil

from tests.server_process import SAMPLE_MODELS, ServerProcess, quadriga
from tests.unseen_scenes import write_unseen

MODEL = "shapes-detector"


def test_a_version_in_int8_is_written_only_if_it_is_as_good(tmp_path):
    models, data, current = tmp_path / "models", tmp_path / "data", tmp_path / "current"
    current.mkdir()
    shutil.copytree(SAMPLE_MODELS / MODEL, models / MODEL)
    write_unseen(MODEL, tmp_path / "scenes", 60)
    image = (tmp_path / "scenes" / "0000.png").read_bytes()

    def quantize(*options, code):
        store = ("--data", data, "--database", f"sqlite:///{data}/store.db")
        arguments = ("quantize", models / MODEL, *store, *options)
        return quadriga(*arguments, code=code, cwd=current, timeout_s=300)

    with ServerProcess(data, models) as server:
        server.store(MODEL, image)
        server.query({"model": {"eq": MODEL}})
        assert (
            "no image of 'shapes-detector' is stored with ground truth" in quantize(code=2).stderr
        )
        dataset = ("--dataset", tmp_path / "scenes", "--server", server.host)
        quadriga("evaluate", "--model", MODEL, *dataset, "--resamples", 0, timeout_s=300)
        nothing = quantize("--calibrate", "meta.camera=eq:none", code=2).stderr
        assert "no inferences of 'shapes-detector' match the filter" in nothing

        refused = json.loads(
            quantize("--tolerance", 0, "--samples", 20, "--keep-refused", "--json", code=1).stdout
        )
        assert not refused["accepted"]
        assert refused["folder"] == "refused-2"
        assert (
            json.loads((models / MODEL / "refused-2" / "quantization.json").read_text()) == refused
        )

        accepted = json.loads(
            quantize("--tolerance", 0.2, "--samples", 20, "--json", code=0).stdout
        )
        assert accepted["version"] == "2"
        assert accepted["calibration"] == {"images": 20, "requested": 20}
        assert accepted["quality"]["images"] == 40  # the images that calibrated do not judge
        assert accepted["bytes"] < 0.4 * accepted["original_bytes"]
        assert abs(accepted["quality"]["difference"]) < 0.05
        low, high = accepted["quality"]["ci95"]
        assert low <= accepted["quality"]["difference"] <= high

        assert [*current.iterdir()] == []
        assert {path.name for path in (models / MODEL / "2").iterdir()} == {
            path.name for path in (models / MODEL / "refused-2").iterdir()
        }
        assert server.call("GET", f"/v2/models/{MODEL}")[1]["versions"] == ["1"]  # nobody asked yet
        assert server.call("POST", f"/v2/repository/models/{MODEL}/load", {})[0] == 200
        assert server.call("GET", f"/v2/models/{MODEL}")[1]["versions"] == ["2", "1"]
        labels = [
            [prediction["label"] for prediction in _predictions(server, image, version)]
            for version in ("", "/versions/2", "/versions/1")
        ]
        assert labels[0]
        assert labels[0] == labels[1] == labels[2]


def _predictions(server, image, version):
    (predictions,) = server.infer(f"{MODEL}{version}", image)["data"]
    return json.loads(predictions) if isinstance(predictions, str) else predictions
