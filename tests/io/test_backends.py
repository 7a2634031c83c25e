import pytest

from waste.errors import InputError
from waste.io import backends
from waste.io.backends.hanging import HangingBackend
from waste.io.backends.threads import ThreadsBackend


def test_every_module_is_a_backend_of_its_name() -> None:
    assert {"threads", "hanging"} <= set(backends.names())
    assert not {"base", "contract"} & set(backends.names())
    for name in backends.names():
        backends.create(name, queue_depth=1)


def test_names_mean_what_they_say() -> None:
    assert type(backends.create("threads", queue_depth=1)) is ThreadsBackend
    assert type(backends.create("auto", queue_depth=1)) is ThreadsBackend
    assert type(backends.create("hanging", queue_depth=1)) is HangingBackend


@pytest.mark.parametrize("name", ["thread", "base", "contract", "", "os.path"])
def test_an_unknown_name_lists_the_known(name: str) -> None:
    with pytest.raises(InputError, match=r"io\.backend.*threads"):
        backends.create(name, queue_depth=1)


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(InputError, match="did you mean 'threads'"):
        backends.create("thread", queue_depth=1)


def test_a_new_backend_needs_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_factories", dict(backends._factories))
    backends.register("mine", ThreadsBackend)
    assert "mine" in backends.names()
    assert type(backends.create("mine", queue_depth=2)) is ThreadsBackend


@pytest.mark.parametrize("queue_depth", [0, -1])
def test_a_queue_depth_is_positive(queue_depth: int) -> None:
    with pytest.raises(InputError, match=r"io\.queue_depth"):
        backends.create("threads", queue_depth=queue_depth)
