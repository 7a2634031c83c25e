#!/usr/bin/env python3
"""Would an io_uring backend pay? The same random direct reads through the `threads` backend and through io_uring.

bench/uring.py FILE ... [--sizes 4KiB,256KiB,2.5MiB,12MiB] [--depths 1,8,32] [--seconds 1] [--rounds 3] [--json]

Linux only; the ring is driven by bare system calls. Put the files on a disk that is no limit, such as a loop device
over a file in /dev/shm. Both drive one event loop, which is woken through an eventfd or `call_soon_threadsafe`; no
bookkeeping of a queue is counted. Rounds are interleaved; medians are given.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import mmap
import os
import random
import statistics
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from waste.io.arena import Arena
from waste.io.backends.base import Completion, ReadOp
from waste.io.backends.threads import ThreadsBackend
from waste.io.files import FileSet
from waste.settings import parse_size

ALIGN = 4096


class Load:
    """Random aligned places, as many reads in flight as the depth, until the time is over. For one run.

    count: reads that have returned. done: so have all.
    """

    def __init__(self, paths: Sequence[Path], size: int, depth: int, seconds: float) -> None:
        self.paths, self.size, self.depth = paths, size, depth
        arena = Arena(depth, size)
        self.buffers = [arena.slot(slot) for slot in range(depth)]
        self.count = 0
        self.done = asyncio.Event()
        self._left = depth
        self._end = time.perf_counter() + seconds
        self._random = random.Random(1)
        self._sizes = [path.stat().st_size for path in paths]

    def place(self) -> tuple[int, int]:
        file = self._random.randrange(len(self.paths))
        return file, self._random.randrange((self._sizes[file] - self.size) // ALIGN) * ALIGN

    def returned(self, slots: Sequence[int]) -> Sequence[int]:
        """Count them; which of the slots are to be read into again."""
        self.count += len(slots)
        if time.perf_counter() < self._end:
            return slots
        self._left -= len(slots)
        if not self._left:
            self.done.set()
        return []


async def with_threads(load: Load) -> None:
    backend = ThreadsBackend(load.depth)

    def submit(slots: Sequence[int]) -> None:
        places = [(slot, *load.place()) for slot in slots]
        backend.submit(
            [ReadOp(slot, file, at, load.size, load.size, load.buffers[slot].data) for slot, file, at in places]
        )

    def deliver(completions: list[Completion]) -> None:
        submit(load.returned([completion.token for completion in completions]))

    await backend.start(FileSet(load.paths, direct="on"), deliver)
    submit(range(load.depth))
    await load.done.wait()
    await backend.close()


class Ring:
    """An io_uring of reads, told of completions through `event`. Layouts: linux/io_uring.h."""

    SETUP, ENTER, REGISTER = 425, 426, 427
    READ, REGISTER_EVENTFD = 22, 4

    def __init__(self, entries: int) -> None:
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        params = bytearray(120)
        self._fd = self._checked(self.SETUP, entries, (ctypes.c_char * 120).from_buffer(params))
        sq_entries, cq_entries = struct.unpack_from("2I", params)
        head, tail, mask, _, _, _, array = struct.unpack_from("7I", params, 40)
        self._sq = mmap.mmap(self._fd, array + 4 * sq_entries, offset=0)
        submissions = np.frombuffer(self._sq, np.uint32)
        self._sq_tail, self._sq_mask = submissions[tail // 4 :], int(submissions[mask // 4])
        self._sq_array = submissions[array // 4 :]
        self._entries = mmap.mmap(self._fd, 64 * sq_entries, offset=0x10000000)
        head, tail, mask, _, _, found = struct.unpack_from("6I", params, 80)
        self._cq = mmap.mmap(self._fd, found + 16 * cq_entries, offset=0x8000000)
        completions = np.frombuffer(self._cq, np.uint32)
        self._cq_head, self._cq_tail = completions[head // 4 :], completions[tail // 4 :]
        self._cq_mask, self._found = int(completions[mask // 4]), found
        self._prepared = 0
        self.event = os.eventfd(0, os.EFD_NONBLOCK)
        self._checked(self.REGISTER, self._fd, self.REGISTER_EVENTFD, ctypes.byref(ctypes.c_int(self.event)), 1)

    def _checked(self, *arguments: object) -> int:
        result = self._call(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(result)

    def prepare(self, token: int, file: int, address: int, size: int, offset: int) -> None:
        tail = int(self._sq_tail[0])
        slot = tail & self._sq_mask
        struct.pack_into("=BBHiQQIIQ", self._entries, 64 * slot, self.READ, 0, 0, file, offset, address, size, 0, token)
        self._sq_array[slot] = slot
        self._sq_tail[0] = tail + 1
        self._prepared += 1

    def submit(self) -> None:
        self._checked(self.ENTER, self._fd, self._prepared, 0, 0, None, 0)
        self._prepared = 0

    def completed(self) -> list[tuple[int, int]]:
        """(token, what read returned) of all that have."""
        head, tail = int(self._cq_head[0]), int(self._cq_tail[0])
        places = (self._found + 16 * (number & self._cq_mask) for number in range(head, tail))
        found: list[Any] = [struct.unpack_from("=Qi", self._cq, place) for place in places]
        self._cq_head[0] = tail
        return found

    def close(self) -> None:
        os.close(self.event)
        os.close(self._fd)


async def with_uring(load: Load) -> None:
    files = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in load.paths]
    ring = Ring(max(8, load.depth))

    def submit(slots: Sequence[int]) -> None:
        for slot in slots:
            file, offset = load.place()
            ring.prepare(slot, files[file], load.buffers[slot].ctypes.data, load.size, offset)
        if slots:
            ring.submit()

    def deliver() -> None:
        os.eventfd_read(ring.event)
        completed = ring.completed()
        assert all(result == load.size for _, result in completed)
        submit(load.returned([slot for slot, _ in completed]))

    loop = asyncio.get_running_loop()
    loop.add_reader(ring.event, deliver)
    submit(range(load.depth))
    await load.done.wait()
    loop.remove_reader(ring.event)
    ring.close()
    for descriptor in files:
        os.close(descriptor)


def measure(
    drive: Callable[[Load], Awaitable[None]], paths: Sequence[Path], size: int, depth: int, seconds: float
) -> dict[str, float]:
    async def run() -> tuple[int, float, float]:
        load = Load(paths, size, depth, seconds)
        began, cpu = time.perf_counter(), time.process_time()
        await drive(load)
        return load.count, time.perf_counter() - began, time.process_time() - cpu

    count, elapsed, cpu = asyncio.run(run())
    return {"gbytes_per_s": count * size / elapsed / 1e9, "cpu_us_per_read": cpu / count * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--sizes", default="4KiB,256KiB,2.5MiB,12MiB")
    parser.add_argument("--depths", default="1,8,32")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    ways = {"threads": with_threads, "io_uring": with_uring}
    rows: list[dict[str, Any]] = []
    for size in given.sizes.split(","):
        for depth in map(int, given.depths.split(",")):
            length = parse_size(size) // ALIGN * ALIGN
            found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
            for _ in range(given.rounds):
                for way, drive in ways.items():
                    found[way].append(measure(drive, given.files, length, depth, given.seconds))
            row: dict[str, Any] = {"size": size, "depth": depth}
            for way, runs in found.items():
                row[way] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            rows.append(row)
            if not given.json:
                told = "   ".join(
                    f"{way} {row[way]['gbytes_per_s']:6.2f} GB/s {row[way]['cpu_us_per_read']:7.1f} us of CPU a read"
                    for way in ways
                )
                print(f"{size:>8} x {depth:<3} {told}", flush=True)
    if given.json:
        json.dump(rows, sys.stdout)
        print()


if __name__ == "__main__":
    main()
