"""A model from a hub into a folder: only what it needs, resumable, and nothing under its name before its hash fits.

What is not whole yet lies in the folder's FETCHING, each file named by what it has to become; what is there already is
read and compared, not believed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from waste.convert.durable import locked, sync_folder, writing
from waste.convert.jobs import Jobs, StoppedError
from waste.convert.pace import Pace, Progress
from waste.convert.wanted import choose, weight_files
from waste.errors import DamagedError, InputError, UnsupportedError, WasteError
from waste.io.files import file_error
from waste.io.jsonfile import shown
from waste.io.names import legible

if TYPE_CHECKING:
    from waste.convert.hub import Hub, HubFile, Listing

FETCHING = "FETCHING"
LOCK_NAME = "lock"
DOWNLOADS = 8
"""Files at a time, as huggingface_hub has it: one connection seldom fills a line, nor one core hashes as it comes."""
SLACK_BYTES = 16 << 20
CHUNK_BYTES = 4 << 20
FULL_TRIES = 2
MAX_FAILURES = 8
"""Requests in a row that bring a file no further; with the pauses between them, a minute and a half."""
NOTEWORTHY_BYTES = 1 << 20
MAX_PAUSE_S = 30.0
_POLL_S = 0.1
_PART = re.compile(r".+\.[0-9a-f]{16}\.part")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What is in the folder now. received_bytes: of these, what this run brought."""

    kind: str
    commit: str
    files: int
    total_bytes: int
    received_bytes: int
    seconds: float


def open_hub(repo: str, revision: str | None) -> Hub:
    """The repository as huggingface_hub finds it.

    Raises UnsupportedError without that library, InputError for an HF_ENDPOINT that is no address.
    """
    _refuse_endpoint(os.environ.get("HF_ENDPOINT"))
    try:
        from waste.convert.hub import Hub
    except ImportError as error:
        if not (error.name or "").startswith("huggingface_hub"):
            raise
        raise UnsupportedError("fetching needs huggingface_hub; run `pip install 'waste[fetch]'`") from error
    return Hub(repo, revision)


def _refuse_endpoint(endpoint: str | None) -> None:
    """The library would come to grief over it while it is imported."""
    if not endpoint:
        return
    try:
        parts = urlsplit(endpoint)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or not endpoint.isprintable() or " " in endpoint:
        raise InputError(f"HF_ENDPOINT is {shown(endpoint)}, expected an address such as https://huggingface.co")


class PartFile:
    """What has come of a file so far, hashed as it grows. Unbuffered: what was appended outlives the process."""

    def __init__(self, path: Path, file: HubFile, check: Callable[[], None]) -> None:
        """Takes up what is there; `check` is called meanwhile, and may raise."""
        self.path = path
        self._file = file
        self.size = 0
        self._hash = file.new_hash()
        with writing(path):
            self._stream = path.open("a+b", buffering=0)
        try:
            self._take_up(check)
        except BaseException:
            self._stream.close()
            raise

    def is_whole(self) -> bool:
        return self.size == self._file.size

    def _take_up(self, check: Callable[[], None]) -> None:
        with writing(self.path):
            self._stream.seek(0)
            while chunk := self._stream.read(CHUNK_BYTES):
                check()
                self._hash.update(chunk)
                self.size += len(chunk)
        if self.size > self._file.size:
            self.restart()

    def append(self, data: bytes) -> None:
        with writing(self.path):
            rest = memoryview(data)
            while rest:
                count = self._stream.write(rest) or 0
                self._hash.update(rest[:count])
                self.size += count
                rest = rest[count:]

    def restart(self) -> None:
        """Drop everything."""
        with writing(self.path):
            self._stream.truncate(0)
        self.size = 0
        self._hash = self._file.new_hash()

    def found(self) -> str:
        """The digest of what is there."""
        return str(self._hash.hexdigest())

    def sync(self) -> None:
        """Return when all of it is on the device."""
        with writing(self.path):
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()


class Fetcher:
    """Fetches from `hub` into `folder`. `stop` may be called on any thread; `run` then raises StoppedError."""

    def __init__(self, hub: Hub, folder: Path, *, jobs: int = DOWNLOADS, pause_s: float = 0.5) -> None:
        """jobs: files at a time; pause_s: after a first failure, doubled after each further one."""
        self.folder = folder
        self.progress: Progress = lambda what, done, total: None
        self._hub = hub
        self._parts = folder / FETCHING
        self._jobs = Jobs(jobs)
        self._pause_s = pause_s
        self._failure: BaseException | None = None
        self._lock = Lock()
        self._received = 0

    def stop(self) -> None:
        self._jobs.stop()

    def run(self) -> Fetched:
        """Fetch what is missing.

        Raises InputError, ModelError or UnsupportedError for what cannot be fetched, DamagedError for a file that comes
        damaged twice, WasteError if the hub or the disk fails; the same call then goes on where this one stopped.
        """
        began = monotonic()
        with self._jobs:
            listing = self._hub.list_files()
            choice = choose(self._hub.repo, listing.files)
            self._refuse_strange()
            with writing(self._parts):
                self._parts.mkdir(parents=True, exist_ok=True)
            with locked(self._parts / LOCK_NAME, doing="fetching"):
                self._refuse_strange()
                self._drop_stale_parts(listing)
                self._bring(listing, choice.small)
                weights = weight_files(self._hub.repo, listing.files, choice, self.folder)
                self._bring(listing, weights)
                self._remove_marks()
        names = (*choice.small, *weights)
        total = sum(listing.files[name].size for name in names)
        return Fetched(choice.kind, listing.commit, len(names), total, self._received, monotonic() - began)

    def _bring(self, listing: Listing, names: Sequence[str]) -> None:
        """See to it that these files are there, and right."""
        files = [listing.files[name] for name in names]
        missing = self._missing(files)
        had = {file.name: _size(self._part_path(file)) or 0 for file in missing}
        self._check_room(sum(file.size - had[file.name] for file in missing))
        pace = Pace(self.progress, sum(file.size for file in missing))
        pace.what = "fetching"
        pace.skip(sum(had.values()))
        self._each(missing, lambda file: self._fetch(listing.commit, file, pace))

    def _each(self, files: Sequence[HubFile], action: Callable[[HubFile], None]) -> None:
        """Do it for all, several at a time. The first error ends the others, and is raised."""
        if not files:
            return

        def run(file: HubFile, buffer: object) -> None:
            try:
                action(file)
            except StoppedError:
                raise
            except BaseException as error:
                self._failure = self._failure or error
                self._jobs.stop()
                raise

        try:
            self._jobs.map(run, files)
        except BaseException as error:
            raise self._failure or error from None

    def _missing(self, files: Sequence[HubFile]) -> list[HubFile]:
        """Those that are not there as the hub lists them: sizes are compared first, then hashes."""
        there = [file for file in files if _size(self.folder / file.name) == file.size]
        pace = Pace(self.progress, sum(file.size for file in there))
        pace.what = "checking what is there"
        right: set[str] = set()

        def check(file: HubFile) -> None:
            if self._digest(self.folder / file.name, file, pace) == file.digest:
                right.add(file.name)

        self._each(there, check)
        return [file for file in files if file.name not in right]

    def _digest(self, path: Path, file: HubFile, pace: Pace) -> str:
        found = file.new_hash()
        try:
            with path.open("rb") as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    self._jobs.check()
                    found.update(chunk)
                    pace.advance(len(chunk))
        except OSError as error:
            raise file_error(path, error) from error
        return str(found.hexdigest())

    def _fetch(self, commit: str, file: HubFile, pace: Pace) -> None:
        """Put one file in its place. Raises DamagedError if it comes wrong from its first byte on twice."""
        part = PartFile(self._part_path(file), file, self._jobs.check)
        try:
            # What an earlier run left may be wrong by itself, which says nothing about the hub.
            tries = FULL_TRIES + (part.size > 0)
            for _ in range(tries):
                wrong = self._complete(part, commit, file, pace)
                if wrong is None:
                    break
                pace.skip(-part.size)
                part.restart()
            else:
                raise DamagedError(
                    f"{file.name}: {wrong}, fetched {FULL_TRIES} times; try again later, or tell the owners of "
                    f"{self._hub.repo}"
                )
            part.sync()
        finally:
            part.close()
        # The names need not outlive a power failure until all are there: files are compared again by the next run.
        with writing(self.folder / file.name):
            part.path.replace(self.folder / file.name)

    def _complete(self, part: PartFile, commit: str, file: HubFile, pace: Pace) -> str | None:
        """Ask until the part has its size; what is wrong with it then, or None. Raises WasteError if nothing helps."""
        from waste.convert.hub import DroppedError, WrongAnswerError

        failures, furthest = 0, part.size
        while not part.is_whole():
            try:
                self._receive(part, commit, file, pace)
                dropped = DroppedError(f"{self._hub.endpoint} ends {file.name} early; give the same command again")
            except WrongAnswerError as error:
                return str(error)
            except DroppedError as error:
                dropped = error
            if part.is_whole():
                break
            # Not any progress: a hub that sends one byte a request, or always begins anew, would keep us for ever.
            if part.size >= furthest + NOTEWORTHY_BYTES:
                failures, furthest = 0, part.size
                continue
            failures += 1
            if failures > MAX_FAILURES:
                raise WasteError(f"{dropped} ({failures} failures in a row)") from dropped
            self._pause(min(MAX_PAUSE_S, self._pause_s * 2 ** (failures - 1)))
        if part.found() != file.digest:
            return f"has the {file.hash_name} {part.found()}, and the hub lists {file.digest}"
        return None

    def _receive(self, part: PartFile, commit: str, file: HubFile, pace: Pace) -> None:
        """One request's bytes onto the part."""
        from waste.convert.hub import WrongAnswerError

        with self._hub.reading(commit, file, part.size) as (begin, chunks):
            if begin != part.size:
                # The hub does not do ranges, and sends everything again.
                pace.skip(-part.size)
                part.restart()
            for chunk in chunks:
                self._jobs.check()
                if part.size + len(chunk) > file.size:
                    raise WrongAnswerError(f"is longer than the {file.size:,} bytes that the hub lists")
                part.append(chunk)
                with self._lock:
                    self._received += len(chunk)
                pace.advance(len(chunk))

    def _pause(self, seconds: float) -> None:
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            self._jobs.check()
            sleep(min(_POLL_S, left))

    def _check_room(self, need: int) -> None:
        """Raise InputError if this many bytes more do not fit on the disk."""
        with writing(self.folder):
            free = shutil.disk_usage(self.folder).free
        if need and free < need + SLACK_BYTES:
            raise InputError(
                f"{self.folder} needs {need + SLACK_BYTES:,} bytes more and the disk has {free:,} free; make room"
            )

    def _part_path(self, file: HubFile) -> Path:
        return self._parts / f"{file.name}.{file.digest[:16]}.part"

    def _refuse_strange(self) -> None:
        """Raise InputError if FETCHING is not what a fetch made: whatever is in there goes in the end."""
        if not os.path.lexists(self._parts):
            return
        if self._parts.is_symlink() or not self._parts.is_dir():
            raise InputError(f"{self._parts} is no folder of its own; choose another folder, or remove it")
        with writing(self._parts):
            names = sorted(path.name for path in self._parts.iterdir())
        for name in names:
            path = self._parts / name
            if not (name == LOCK_NAME or _PART.fullmatch(name)) or path.is_symlink() or not path.is_file():
                raise InputError(f"{self._parts} holds {legible(name)}, which no fetch left there; move it elsewhere")

    def _drop_stale_parts(self, listing: Listing) -> None:
        """Remove what can become no file of this commit."""
        wanted = {self._part_path(file).name for file in listing.files.values()}
        with writing(self._parts):
            for path in self._parts.iterdir():
                if path.name != LOCK_NAME and path.name not in wanted:
                    path.unlink()

    def _remove_marks(self) -> None:
        self._refuse_strange()
        sync_folder(self.folder)
        with writing(self._parts):
            for path in self._parts.iterdir():
                path.unlink()
            self._parts.rmdir()


def _size(path: Path) -> int | None:
    """None where there is no file."""
    with writing(path):
        return path.stat().st_size if path.is_file() else None
