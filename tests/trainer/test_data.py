"""Data: every rank gets the tokens of the seed, regardless of the process that produces them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from trainer.batches import NOISE, Batches
from trainer.configuration.command_line import parse
from trainer.configuration.options import OptionError
from trainer.rules import resolve

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")


def batches(options: str, world: int = 1, rank: int = 0) -> Batches:
    config = resolve(parse(options.split()), world)
    return Batches(config, config.layout.coordinates(rank), CPU)


def test_synthetic_tokens_follow_the_rule_except_for_noise() -> None:
    made = batches("--seed 7 --sequence 128")
    ((tokens, targets), *_) = made.update(3)
    generator = np.random.default_rng([7, 3, 0])
    noise, random = generator.random(129) < NOISE, generator.integers(256, size=129)
    token, expected = int(random[0]), []
    for place in range(129):
        token = int(random[place]) if noise[place] else (5 * token + 17) % 256
        expected.append(token)
    assert tokens[0].tolist() == expected[:-1]
    assert targets[0].tolist() == expected[1:]


def test_prepared_batches_equal_those_made_on_demand() -> None:
    made = batches("--accumulate 2 --batch 8")
    ahead = made.ahead(range(2, 5))
    for step in range(2, 5):
        for early, now in zip(next(ahead), made.update(step), strict=True):
            assert all(torch.equal(early_tensor, tensor) for early_tensor, tensor in zip(early, now, strict=True))
    assert next(ahead, None) is None


def test_ranks_divide_a_batch() -> None:
    batch = batches("--batch 8").update(0)[0][0]
    parts = [batches("--dp 2 --cp 2 --batch 8", 4, rank).update(0)[0][0] for rank in range(4)]
    rows = [torch.cat(parts[first : first + 2], 1).sort(1).values for first in (0, 2)]
    assert torch.equal(torch.cat(rows), batch.sort(1).values)


def test_a_text_is_read_as_byte_sequences(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(bytes(range(250)))
    ((tokens, targets), *_) = batches(f"--data {text} --sequence 16").update(0)
    assert torch.equal(targets, tokens + 1)
    text.write_bytes(b"short")
    with pytest.raises(OptionError, match="fewer than a sequence"):
        batches(f"--data {text} --sequence 16")
