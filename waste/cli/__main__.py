"""`python -m waste.cli` is the command `waste`."""

from __future__ import annotations

from waste.cli import main

main()
