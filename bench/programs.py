"""What the programs here share: settings and counts as arguments, and errors as the commands tell them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from waste.cli.failures import report


def pair(text: str) -> tuple[str, str]:
    """For argparse: "key=value"."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected KEY=VALUE, such as context=1024")
    return key, value


def count(text: str) -> int:
    """For argparse: a number from 1 on."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 on")
    return int(text)


def run(main: Callable[[], None]) -> None:
    """`main`; an error of it is one line and the exit code that a command would have."""
    try:
        main()
    except Exception as error:
        sys.exit(report(error))
    except KeyboardInterrupt:
        sys.exit(130)
