"""`model.safetensors.index.json`: which shard holds which tensor, and whether the shards agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PureWindowsPath

from waste.errors import DamagedError, ModelError
from waste.io.files import file_error
from waste.io.jsonfile import read_json, shown
from waste.io.safetensors import StoredTensor

INDEX_NAME = "model.safetensors.index.json"
# K3's index has 50 MB.
MAX_INDEX_BYTES = 1 << 28


class ShardIndex:
    """A promise about the shards of one folder. It is large: drop it once every shard was checked.

    Raises ModelError if the index cannot be opened or a shard is missing, DamagedError if it is not an index.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / INDEX_NAME
        listed = _weight_map(self.path)
        self.shards = _shard_names(self.path, listed)
        _refuse_missing(folder, self.shards)
        numbers = {name: number for number, name in enumerate(self.shards)}
        self._shard_of = {tensor: numbers[shard] for tensor, shard in listed.items()}
        self._tensors_in = [0] * len(self.shards)
        for number in self._shard_of.values():
            self._tensors_in[number] += 1

    def check(self, number: int, stored: Sequence[StoredTensor]) -> None:
        """Compare a shard's header with the index: both must list exactly the same tensors for it.

        A tensor the index does not know at all is refused too. It does no harm by itself, but it shows that
        index and shard come from different releases, and then nothing says which weights belong together.

        Raises DamagedError.
        """
        shard = self.shards[number]
        for tensor in stored:
            listed = self._shard_of.get(tensor.name)
            if listed is None:
                raise DamagedError(
                    f"{self.path.parent / shard} holds {shown(tensor.name)}, which {INDEX_NAME} does not list; "
                    "are shards and index of the same release?"
                )
            if listed != number:
                raise DamagedError(
                    f"{self.path.parent / shard} holds {shown(tensor.name)}, "
                    f"which {INDEX_NAME} places in {self.shards[listed]}"
                )
        if len(stored) != self._tensors_in[number]:
            present = {tensor.name for tensor in stored}
            missing = [n for n, where in self._shard_of.items() if where == number and n not in present]
            raise DamagedError(
                f"{self.path.parent / shard} lacks {shown(missing[0])}, which {INDEX_NAME} places there "
                f"({len(missing)} of {self._tensors_in[number]} tensors missing)"
            )


def read_shard_names(path: Path) -> tuple[str, ...]:
    """The shards that an index names, sorted, whether they are there or not; each is a plain file name.

    Raises as `ShardIndex`.
    """
    return _shard_names(path, _weight_map(path))


def _shard_names(path: Path, listed: Mapping[str, str]) -> tuple[str, ...]:
    names = sorted(set(listed.values()))
    for name in names:
        _refuse_path(path, name)
    return tuple(names)


def _weight_map(path: Path) -> dict[str, str]:
    """Tensor name to shard name, as the index has it."""
    # Checking half a million keys for repetition costs 36 MB, and a repeated one that matters shows anyway: some
    # shard then holds a tensor that the index places elsewhere.
    index = read_json(path, max_bytes=MAX_INDEX_BYTES, unique_keys=False)
    listed = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(listed, dict):
        raise DamagedError(f"{path} has no weight_map object; expected one from tensor names to shard names")
    if not listed:
        raise DamagedError(f"{path} lists no tensors")
    for tensor, shard in listed.items():
        if not isinstance(shard, str):
            raise DamagedError(f"{path} places {shown(tensor)} in {shown(shard)}; expected a shard's name")
    return listed


def _refuse_path(index: Path, name: str) -> None:
    """A shard is a file of the index's own folder; anything else could name any file of the machine."""
    # The stricter of the two kinds of path: no slash, no backslash, no drive.
    if PureWindowsPath(name).name != name or not name.isprintable() or not name.endswith(".safetensors"):
        raise DamagedError(f"{index} names the shard {shown(name)}; expected a plain *.safetensors file name")


def _refuse_missing(folder: Path, shards: Sequence[str]) -> None:
    missing = []
    for name in shards:
        try:
            if not (folder / name).exists():
                missing.append(name)
        except OSError as error:
            raise file_error(folder / name, error) from error
    if missing:
        raise ModelError(
            f"{folder / missing[0]} is missing ({len(missing)} of {len(shards)} shards are); finish the download"
        )
