"""Runs `hash_kernels` in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Report:
    """What `hash_kernels` printed."""

    hashes: dict[str, str]
    cache_hits: int
    folder: str
    cpu: str


def start_python(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return out


def start_hashing(*kernels: str, **environment: str) -> subprocess.Popen[str]:
    return start_python("-m", "tests.kernels.hash_kernels", *kernels, **environment)


def report_of(process: subprocess.Popen[str]) -> Report:
    values: dict[str, Any] = json.loads(output_of(process))
    return Report(**values)
