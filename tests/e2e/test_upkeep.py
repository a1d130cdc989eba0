"""A server that counts what it served, and removes what is kept no longer."""

from tests.server_process import SAMPLE_MODELS, ServerProcess, quadriga

MODEL = SAMPLE_MODELS / "shapes-classifier"


def test_what_was_served_is_counted_and_images_go_beyond_a_size(data, shape, photo):
    with ServerProcess(data, MODEL, "--max-input-bytes", "1") as server:
        ids = [server.store("shapes-classifier", image) for image in (shape[0], photo)]
        server.query({}, consistency="journal")
        request = {"where": {"model": "shapes-classifier"}, "group": ["model"]}
        status, answer = server.call("POST", "/api/inferences/aggregate", request)
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
        assert quadriga("store", "rebuild", "--data", data).stdout == "rebuilt\n"
        assert server.call("POST", "/api/inferences/aggregate", request)[1]["groups"] == [group]
