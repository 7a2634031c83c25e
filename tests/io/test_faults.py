import errno

import pytest

from waste.errors import InputError
from waste.io.backends.faults import Faults, parse_faults


def test_every_part() -> None:
    text = (
        "latency=2ms, bandwidth=2GB/s,depth=8,reorder,seed=7,fail=3%,fail-at=12:enodev,fail-at=3,short-at=5,short-at=6"
    )
    assert parse_faults(text) == Faults(
        latency_s=0.002,
        bandwidth=2e9,
        depth=8,
        reorder=True,
        seed=7,
        fail=0.03,
        fail_at={12: errno.ENODEV, 3: errno.EIO},
        short_at=frozenset({5, 6}),
    )
    assert parse_faults("") == parse_faults(" , ") == Faults()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("latency=150us", 150e-6), ("latency=0.5s", 0.5), ("bandwidth=1.5MiB/s", 1.5 * 2**20), ("bandwidth=7 b/s", 7)],
)
def test_units(text: str, wanted: float) -> None:
    assert wanted in {parse_faults(text).latency_s, parse_faults(text).bandwidth}


@pytest.mark.parametrize(
    "part",
    [
        *("latency", "latency=", "latency=2", "latency=-2ms", "latency=2ms/s", "latency=2GB", "latency=2m s"),
        *("bandwidth=2GB", "bandwidth=0GB/s", "bandwidth=2ms", "depth=0", "depth=-1", "depth=1.5", "depth=٣"),
        *("reorder=1", "reorder=", "seed", "seed=x", "fail=3", "fail=101%", "fail=x%"),
        *("fail-at=0", "fail-at=3:", "fail-at=3:nope", "fail-at=3:errorcode", "fail-at=:eio", "short-at=0"),
        *("latecy=2ms", "seed=1=2"),
    ],
)
def test_a_malformed_part_is_named(part: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_faults(f"depth=3,{part}" if not part.startswith("depth") else part)
    assert "io.faults" in str(caught.value)
    assert repr(part) in str(caught.value)


def test_a_part_given_twice_is_named() -> None:
    with pytest.raises(InputError, match=r"seed=2.*second time"):
        parse_faults("seed=1,seed=2")
