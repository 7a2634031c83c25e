"""Files that `eval` writes: under a temporary name until they are whole, in pieces, never held in memory."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from waste.errors import InputError, WasteError

FloatArray = NDArray[np.float32]


class OutputFile:
    """A file that appears under its name when it is whole, and otherwise not at all.

    Raises InputError where it could never be written; its methods WasteError where the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if path.exists() and not path.is_file():
            raise InputError(f"cannot write {path}: it exists and is no regular file")
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            self._stream = self._partial.open("wb")
        except (OSError, ValueError) as error:
            raise self._error(InputError, error) from None

    def write(self, data: bytes | memoryview, *, at: int | None = None) -> None:
        """Write at byte `at`, or behind what was written last."""
        try:
            if at is not None:
                self._stream.seek(at)
            self._stream.write(data)
        except OSError as error:
            raise self._error(WasteError, error) from None

    def finish(self) -> None:
        """It is whole: give it its name."""
        try:
            self._stream.close()
            self._partial.replace(self._path)
        except OSError as error:
            raise self._error(WasteError, error) from None

    def discard(self) -> None:
        """Remove what there is; nothing to do for a finished one."""
        with suppress(OSError):  # what could not be written is not missed
            self._stream.close()
        self._partial.unlink(missing_ok=True)

    def _error(self, kind: type[WasteError], error: Exception) -> WasteError:
        return kind(f"cannot write {self._path}: {getattr(error, 'strerror', None) or error}")


class ArrayFile(OutputFile):
    """A float32 `.npy` file of known shape, filled in any order."""

    def begin(self, shape: tuple[int, ...]) -> None:
        """Write the header; all values are still to come."""
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        self.write(header.getvalue())
        self._begin = len(header.getvalue())

    def put(self, row: int, values: FloatArray) -> None:
        """`values` [n, width] at `row`, counted over all axes but the last."""
        data = np.ascontiguousarray(values, "<f4")
        self.write(data.data.cast("B"), at=self._begin + row * data.shape[-1] * 4)


class LineFile(OutputFile):
    """A file of JSON objects, one a line."""

    def put(self, value: Mapping[str, object]) -> None:
        self.write(json.dumps(value).encode() + b"\n")
