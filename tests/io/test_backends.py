import subprocess
import sys
from pathlib import Path

import pytest

from waste.errors import InputError
from waste.io import backends
from waste.io.backends.hanging import HangingBackend
from waste.io.backends.threads import ThreadsBackend

ROOT = Path(__file__).parents[2]


def test_every_module_is_a_backend_of_its_name() -> None:
    assert {"threads", "mmap", "simulated"} <= set(backends.names())
    assert not {"base", "contract", "hanging"} & set(backends.names())
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


def test_a_disk_that_hangs_is_nobodys_choice() -> None:
    """Neither offered nor taken, unless a test has imported it."""
    program = "from waste.io import backends; backends.create('hanging', queue_depth=1)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "InputError: unknown io.backend 'hanging'; expected auto, aiofiles, mmap, simulated, threads" in done.stderr


def test_what_a_backend_takes_beside_its_buffers() -> None:
    threads, mmap = (backends.memory_bytes(name, queue_depth=8) for name in ("threads", "mmap"))
    assert backends.memory_bytes("auto", queue_depth=16) == 2 * threads
    assert mmap - threads >= 8 << 20, "a window a reader"
    with pytest.raises(InputError, match=r"unknown io\.backend"):
        backends.memory_bytes("bogus", queue_depth=8)


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
