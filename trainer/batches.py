"""Batches: the tokens that this rank trains on, synthetic or from a text file.

Tokens depend only on seed, step and sequence, so every layout trains on the same batch. Synthetic text is a noisy
linear recurrence: learnable in a few steps, but never repeated. A thread prepares the next update's batch, in pinned
memory for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch

from trainer.configuration.config import Config
from trainer.configuration.options import OptionError, refuse
from trainer.parallel.context_parallel import runs

NOISE = 0.1
"""Share of synthetic tokens that are random."""


class Batches:
    """The tokens and targets of this rank, update by update."""

    def __init__(self, config: Config, place: dict[str, int], device: torch.device) -> None:
        options, layout = config.options, config.layout
        self.seed, self.batch, self.device = options.seed, options.batch, device
        self.vocab, self.sequence = config.shape.vocab, config.shape.sequence
        self.text = read_text(options.data, self.sequence) if options.data else None
        self.powers = _recurrence(self.sequence + 2, self.vocab)
        share = config.local_batch
        self.own_sequences = range(place["dp"] * share, (place["dp"] + 1) * share)
        self.rounds = options.accumulate
        self.positions = np.r_[tuple(runs(self.sequence, layout.cp, place["cp"], options.cp_layout))]

    def ahead(self, steps: range) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
        """Yield the passes of each step; a thread prepares the next ones in the background."""
        # A new thread uses the first GPU, not the one that this process uses.
        ready = partial(torch.cuda.set_device, self.device) if self.device.type == "cuda" else None
        with ThreadPoolExecutor(1, thread_name_prefix="input", initializer=ready) as worker:
            coming = worker.submit(self._batch, steps.start)
            for step in steps:
                batch = coming.result()
                if step + 1 < steps.stop:
                    coming = worker.submit(self._batch, step + 1)
                yield self._passes(batch)

    def update(self, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return one ``(tokens, targets)`` pair for each pass of a step, made now."""
        return self._passes(self._batch(step))

    def _passes(self, batch: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        batch = batch.to(self.device, non_blocking=True)
        return [(part[0], part[1]) for part in batch.chunk(self.rounds, 1)]

    def _batch(self, step: int) -> torch.Tensor:
        rows = np.stack([self._sequence(step, index) for index in self.own_sequences])
        pairs = torch.from_numpy(np.stack([rows[:, :-1], rows[:, 1:]])[:, :, self.positions])
        return pairs.pin_memory() if self.device.type == "cuda" else pairs

    def _sequence(self, step: int, index: int) -> np.ndarray:
        generator = np.random.default_rng([self.seed, step, index])
        if self.text is not None:
            start = int(generator.integers(len(self.text) - self.sequence))
            return self.text[start : start + self.sequence + 1].astype(np.int64)
        noise = generator.random(self.sequence + 1) < NOISE
        random = generator.integers(self.vocab, size=self.sequence + 1)
        noise, random = np.append(True, noise), np.append(random[0], random)
        place = np.arange(len(noise))
        drawn = np.maximum.accumulate(np.where(noise, place, 0))
        factor, term = self.powers[:, place - drawn]
        return ((factor * random[drawn] + term) % self.vocab)[1:]


def _recurrence(length: int, vocab: int) -> np.ndarray:
    """Return factor and term, by number of places, that advance a token; one place is ``5 x token + 17``."""
    powers = np.zeros((2, length), dtype=np.int64)
    powers[:, 0] = 1, 0
    for place in range(1, length):
        powers[:, place] = (5 * powers[:, place - 1] + (0, 17)) % vocab
    return powers


def read_text(path: str, sequence: int) -> np.ndarray:
    """Map a file's bytes into memory; refuse files that cannot be read or are shorter than a sequence."""
    try:
        text = np.memmap(Path(path), dtype=np.uint8, mode="r") if Path(path).stat().st_size else np.empty(0, np.uint8)
    except OSError as error:
        raise OptionError(f"--data {path} cannot be read: {error.strerror}", hint="a text file") from error
    short = len(text) <= sequence + 1
    hint = f"--sequence {len(text) // 2}" if len(text) > 3 else "a text file"
    refuse(short, f"--data {path}: {len(text)} bytes are fewer than a sequence", hint)
    return text
