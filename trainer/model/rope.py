"""Rotary positions: the angle of each position, and the scalings that stretch a model to longer sequences.

Pair i of a head of width d turns by `position * theta ** (-2i / d)`. Three published scalings slow this down:

    linear   every pair by `factor`
    llama3   pairs with long wavelengths by `factor`, pairs with short ones not at all, with a smooth step between them
    yarn     the same with a linear ramp between two numbers of turns; `attention_factor` scales cosines and sines
"""

from __future__ import annotations

import math

import torch

from trainer.configuration.shape import ModelShape


def frequencies(shape: ModelShape, dtype: torch.dtype) -> torch.Tensor:
    """Return the angle of each pair from one position to the next, ``[head width / 2]``."""
    width, theta, scaling = shape.head_dim, shape.rope_theta, shape.rope_scaling
    pair = torch.arange(0, width, 2, dtype=dtype) / width
    plain = 1.0 / theta**pair
    if scaling is None:
        return plain
    slowed = plain / scaling.factor
    if scaling.kind == "linear":
        return slowed
    if scaling.kind == "llama3":
        turns = scaling.original * plain / (2 * math.pi)
        plain_share = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
        return slowed * (1 - plain_share) + plain * plain_share
    # yarn: the pair (a real number) with this number of turns within the original length.
    ends = [
        width * math.log(scaling.original / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (scaling.high, scaling.low)
    ]
    if scaling.truncate:
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    first, last = max(ends[0], 0), min(ends[1], width - 1)
    ramp = (torch.arange(width // 2, dtype=dtype) - first) / max(last - first, 0.001)
    plain_share = 1 - ramp.clamp(0, 1)
    return slowed * (1 - plain_share) + plain * plain_share


def rotary_table(shape: ModelShape, where: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Compute the cosines and sines of the given positions, ``[2, sequence, head width / 2]``."""
    precise = torch.promote_types(dtype, torch.float32)
    angles = where.to(precise).unsqueeze(1) * frequencies(shape, precise)
    table = torch.stack([angles.cos(), angles.sin()])
    return table if shape.rope_scaling is None else table * shape.rope_scaling.attention_factor


def rotate(x: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
    """Turn ``[batch, heads, sequence, width]`` by the angles of its positions."""
    cosine, sine = rotary
    left, right = x.to(rotary.dtype).chunk(2, -1)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], -1).to(x.dtype)
