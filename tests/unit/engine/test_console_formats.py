"""Numbers of the console as people read them."""

import pytest

from quadriga.engine.console.formats import size


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (12_940, "12.9 kB"),
        (400_000, "400 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (1_284_000, "1.28 MB"),
        (999_500_000, "1 GB"),
        (12_000_000_000_000, "12 TB"),
    ],
)
def test_bytes_are_said_in_the_largest_unit_with_three_digits(count, words):
    assert size(count) == words
