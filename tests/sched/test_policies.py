from __future__ import annotations

import pytest

from waste.errors import InputError
from waste.sched import policies, prefetch


def test_unknown_names_get_the_nearest_one() -> None:
    with pytest.raises(InputError, match=r"unknown cache\.policy 'lruu'.*did you mean 'lru'"):
        policies.create("lruu")
    with pytest.raises(InputError, match=r"unknown prefetch\.policy 'base'.*none"):
        prefetch.create("base", width=None)


def test_policies_are_found_by_their_module() -> None:
    assert "lru" in policies.names()
    assert "none" in prefetch.names()
    assert policies.create("lru") is not policies.create("lru")


def test_lru_evicts_what_was_asked_for_longest_ago() -> None:
    lru = policies.create("lru")
    for key in "abc":
        lru.touch(key)
    for key in "cba":
        lru.insert(key)  # bytes came the other way round: of no account
    lru.insert("ahead")
    lru.touch("a")
    assert lru.victim(lambda key: True) == "b"
    assert lru.victim(lambda key: key != "b") == "c"
    lru.remove("b")
    lru.remove("c")
    assert lru.victim(lambda key: True) == "ahead"
    assert lru.victim(lambda key: False) is None


def test_none_wants_no_guesses_and_takes_none() -> None:
    policy = prefetch.create("none", width=None)
    assert not policy.wants_guesses
    assert list(policy.choose([["a"], ["b"]])) == []


def test_router_takes_the_likeliest_of_every_token() -> None:
    by_rank = [["a", "b"], ["b", "c"], ["d", "e"], ["f", "g"]]
    policy = prefetch.create("router", width=2)
    assert policy.wants_guesses
    assert list(policy.choose(by_rank)) == ["a", "b", "b", "c"]
    assert len(prefetch.create("router", width=None).choose(by_rank)) == 8
    assert len(prefetch.create("router", width=9).choose(by_rank)) == 8
