"""What every trainer's rules are made of, and the start of a command over several nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from usp_prof.model.configuration import Configuration

Rules = Iterator[tuple[bool, str]]
"""For each rule whether the configuration breaks it, and the sentence that says so."""
NODE = 8


def torchrun(c: Configuration) -> str:
    """Give the words that start one process a device."""
    return f"torchrun --nproc-per-node {min(c.devices, NODE)} --nnodes {-(-c.devices // NODE)}"
