"""Faults that drift, jobs and access show, by the alerts that have to fire."""

import ssl

import cv2
import numpy as np

from quadriga.engine.config.settings import Settings
from quadriga.store.database.database import writer_engine
from quadriga.store.keys.access_keys import create_key, revoke_key
from tests.certificates import Authority, replace_by_link
from tests.prometheus_drill.stage import Stage
from tests.prometheus_drill.watch import Watch, repeating
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess

DETECTOR = "shapes-detector"
IMAGES_OF_A_WINDOW = 120
"""Images resemble their neighbours by chance; a comparison needs 30 that are independent of each other."""
MILLISECONDS_OF_A_DAY = 86_400_000
ADMIN_KEY = "quadriga-drill.0123456789abcdef0123456789abcdef"


def changed_images(stage: Stage, watch: Watch) -> None:
    """Send the scenes of a baseline at night, and compare; later as they were, and compare again."""
    flags = ("--signals-per-s", "10000")
    server = stage.server("changed", *flags, models=SAMPLE_MODELS / DETECTOR)
    with stage.running(server):
        send_scenes(server, light=1.0, seed=1)
        status, submitted = server.call("PUT", f"/api/models/{DETECTOR}/baseline", {})
        assert status == 200, submitted
        assert server.ended(submitted["job"])["state"] == "succeeded"
        watch.begin(server)
        compare_window(server, light=0.3, seed=2)
        watch.fires("QuadrigaDrift")
        compare_window(server, light=1.0, seed=3)
        watch.mended()


def send_scenes(server: ServerProcess, light: float, seed: int) -> None:
    """Send scenes, each a little darker or brighter than the last."""
    draw = np.random.default_rng(seed)
    scenes = sorted((IMAGES / "detection").glob("*.jpg"))
    for number in range(IMAGES_OF_A_WINDOW):
        pixels = cv2.imread(str(scenes[int(draw.integers(len(scenes)))]))
        lit = np.clip(pixels * light * draw.uniform(0.9, 1.1), 0, 255).astype(np.uint8)
        data = cv2.imencode(".jpg", lit)[1].tobytes()
        server.infer(DETECTOR, data, metadata={"camera": ["north", "south"][number % 2]})


def compare_window(server: ServerProcess, light: float, seed: int) -> None:
    """Send scenes and compare them with the baseline."""
    since = _newest_time(server)
    send_scenes(server, light, seed)
    window = {"model": DETECTOR, "from": since, "to": _newest_time(server)}
    status, job = server.call("POST", "/api/drift", {**window, "signals": ["image.brightness"]})
    assert status == 202, job
    assert server.ended(job["id"])["state"] == "succeeded"


def _newest_time(server: ServerProcess) -> str:
    """Return a moment after all that was sent until now."""
    body = {"limit": 1, "consistency": "journal"}
    (newest,) = server.call("POST", "/api/inferences/query", body)[1]["inferences"]
    second, millisecond = newest["created_at"].rstrip("Z").rsplit(".", 1)
    return f"{second}.{millisecond}999Z"


def failed_job(stage: Stage, watch: Watch) -> None:
    """Submit a job that fails, the first of its kind on this server: a comparison with a time in which nothing was stored."""
    with stage.running(stage.server("failed-job")) as server:
        watch.begin(server)
        window = {"from": "-2h", "to": "-1h"}
        status, job = server.call(
            "POST", "/api/drift", {"model": "shapes-classifier", "baseline": window, **window}
        )
        assert status == 202, job
        assert server.ended(job["id"])["state"] == "failed"
        watch.fires("QuadrigaJobsFail", timeout_s=90)
        watch.mended()


def ending_certificate(stage: Stage, watch: Watch) -> None:
    """Give a server a certificate of one day, and renew it."""
    authority = Authority(stage.folder / "authority")
    link = stage.folder / "certificate.pem"
    link.symlink_to(authority.sign("of_90_days", days=90))
    server = stage.server("certificate", "--tls-certificate", str(link))
    server.tls = ssl.create_default_context(cafile=authority.certificate)
    with stage.running(server):
        watch.begin(server)
        replace_by_link(link, authority.sign("of_a_day", days=1))
        watch.fires("QuadrigaCertificateEnds")
        replace_by_link(link, authority.sign("renewed", days=90))
        watch.mended()


def ending_key(stage: Stage, watch: Watch) -> None:
    """Make a key of one day, and revoke it."""
    server = stage.server("ending-key", "--open-metrics", "--admin-key", ADMIN_KEY)
    with stage.running(server):
        watch.begin(server)
        with writer_engine(Settings(data=str(server.data)).database_url) as engine:
            key, _ = create_key(
                engine, name="line 4", roles=["infer"], expires_in_ms=MILLISECONDS_OF_A_DAY
            )
            watch.fires("QuadrigaKeyEnds")
            revoke_key(engine, key.id)
        watch.mended()


def tried_keys(stage: Stage, watch: Watch) -> None:
    """Send requests with keys that do not exist."""
    server = stage.server("tried-keys", "--open-metrics", "--admin-key", ADMIN_KEY)
    headers = {"Authorization": f"Bearer {ADMIN_KEY[:-4]}beef"}
    with stage.running(server):
        watch.begin(server)
        with repeating(lambda: server.request("GET", "/api/jobs", None, headers), 0.1):
            watch.fires("QuadrigaKeysTried")
        watch.mended()
