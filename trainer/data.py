"""What does the model learn from, and which part of it does this rank see?

Tokens are a function of seed, step and sequence alone, so every layout trains on the same batch. Synthetic text is
a noisy linear recurrence: learnable in a few steps, never the same twice.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from trainer.errors import OptionError
from trainer.parallel.context import positions
from trainer.rules import Settled

NOISE = 0.1
"""Share of synthetic tokens that follow no rule."""


class Batches:
    """The tokens and targets of this rank, update by update."""

    def __init__(self, settled: Settled, place: dict[str, int], device: torch.device) -> None:
        options, layout = settled.options, settled.layout
        self.seed, self.batch, self.device = options.seed, options.batch, device
        self.vocab, self.sequence = settled.shape.vocab, settled.shape.sequence
        self.text = _read(options.data, self.sequence) if options.data else None
        share = settled.local_batch
        first = (place["dp_replicate"] * layout.dp_shard + place["dp_shard"]) * share
        self.mine = range(first, first + share)
        self.rounds = settled.rounds
        self.held = positions(self.sequence, layout.cp, place["cp"], options.cp_layout)

    def update(self, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Give one ``(tokens, targets)`` pair for each pass of a step."""
        rows = np.stack([self._sequence(step, index) for index in self.mine])
        tokens = torch.from_numpy(rows)
        pairs = torch.stack([tokens[:, :-1], tokens[:, 1:]])[:, :, self.held]
        if self.device.type == "cuda":
            pairs = pairs.pin_memory().to(self.device, non_blocking=True)
        return [(part[0], part[1]) for part in pairs.chunk(self.rounds, 1)]

    def _sequence(self, step: int, index: int) -> np.ndarray:
        generator = np.random.default_rng([self.seed, step, index])
        if self.text is not None:
            start = int(generator.integers(len(self.text) - self.sequence))
            return self.text[start : start + self.sequence + 1].astype(np.int64)
        tokens = np.empty(self.sequence + 1, dtype=np.int64)
        noise = generator.random(self.sequence + 1) < NOISE
        random = generator.integers(self.vocab, size=self.sequence + 1)
        token = int(random[0])
        for position in range(self.sequence + 1):
            token = int(random[position]) if noise[position] else (5 * token + 17) % self.vocab
            tokens[position] = token
        return tokens


def _read(path: str, sequence: int) -> np.ndarray:
    try:
        text = np.fromfile(Path(path), dtype=np.uint8)
    except OSError as error:
        raise OptionError(f"--data {path}: {error.strerror}", hint="a text file") from error
    if len(text) <= sequence + 1:
        raise OptionError(
            f"--data {path}: {len(text)} bytes are fewer than a sequence", hint=f"--sequence {len(text) // 2}"
        )
    return text
