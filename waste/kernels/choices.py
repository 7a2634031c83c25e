"""The numbers by which kernels are told what to compute."""

from __future__ import annotations

SILU, SITU, SITU_UNCAPPED = 0, 1, 2
"""Activations, for `activate`."""

SIGMOID, SOFTMAX = 0, 1
"""What makes scores of a router's logits, for `route`."""
