import pytest

from quadriga.extras.tuning.quantization import Quality, judge


def quality(difference, ci95, *, metric="AP[iou=0.5]", images=100):
    value = None if difference is None else 0.9 + difference
    return Quality(
        metric=metric,
        original=0.9,
        candidate=value,
        difference=difference,
        ci95=ci95,
        images=images,
    )


VERDICTS = {
    "better": (quality(0.01, (0.0, 0.02)), True, "loses -0.0100"),
    "as good": (quality(-0.001, (-0.004, 0.002)), True, "at most 0.0040"),
    "too much lost": (quality(-0.02, (-0.03, -0.01)), False, "more than 0.01"),
    "too much lost and no interval": (quality(-0.02, None), False, "more than 0.01"),
    "too much may be lost": (quality(-0.001, (-0.02, 0.02)), False, "cannot be ruled out"),
    "at the tolerance": (quality(-0.01, (-0.01, 0.0)), True, "at most 0.0100"),
    "too few images": (quality(-0.001, None, images=12), False, "12 images are too few"),
    "too few images, none differs": (quality(0.0, None, images=12), False, "too few"),
    "no image differs": (quality(0.0, None), True, "the same"),
    "nothing to find": (quality(None, None), False, "undefined"),
    "an error that rises": (quality(0.02, (0.01, 0.03), metric="ECE"), False, "loses 0.0200"),
    "an error that falls": (quality(-0.02, (-0.03, -0.01), metric="ECE"), True, "at most 0.0000"),
}


@pytest.mark.parametrize(("measured", "accepted", "reason"), VERDICTS.values(), ids=VERDICTS)
def test_a_version_is_accepted_if_it_cannot_lose_more_than_the_tolerance(
    measured, accepted, reason
):
    verdict = judge(measured, 0.01)
    assert verdict.accepted is accepted
    assert reason in verdict.reason
