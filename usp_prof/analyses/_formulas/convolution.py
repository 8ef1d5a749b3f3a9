"""What does a convolution cost? 2 x outputs x the window that each output sees."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from usp_prof.analyses._formulas.cost import Cost, Family, Formula, Shapes

if TYPE_CHECKING:
    from collections.abc import Callable


def _forward(padding: int, stride: int, dilation: int, transposed: int = -1) -> Callable[[Shapes], Cost | None]:
    """Make the formula of a forward convolution whose settings stand at these places."""

    def formula(shapes: Shapes) -> Cost | None:
        image, weight = shapes.tensor(0), shapes.tensor(1)
        if transposed >= 0 and shapes.flag(transposed):
            # Each input meets the whole window, whatever the output's size.
            outputs, written = prod(image), 0
        else:
            spatial = _spatial(image, weight, shapes.numbers(padding), shapes.numbers(stride), shapes.numbers(dilation))
            outputs = written = image[0] * weight[0] * prod(spatial)
        moved = shapes.element(0) * (prod(image) + prod(weight) + written)
        return Cost(Family.CONVOLUTION, 2.0 * outputs * prod(weight[1:]), float(moved), shapes.precision(0))

    return formula


def _spatial(
    image: list[int], weight: list[int], padding: list[int], stride: list[int], dilation: list[int]
) -> list[int]:
    """Give the output's sizes; a single setting counts for every dimension."""
    count = len(weight) - 2
    pads, steps, gaps = ((given * count)[:count] for given in (padding, stride, dilation))
    return [
        (size + 2 * pad - gap * (window - 1) - 1) // step + 1
        for size, window, pad, step, gap in zip(image[2:], weight[2:], pads, steps, gaps, strict=True)
    ]


def _backward(shapes: Shapes) -> Cost:
    """Count one convolution for each of the two gradients that were asked for."""
    output, image, weight = (shapes.tensor(place) for place in range(3))
    mask = shapes.values[10].lower()
    asked = sum(part.strip() == "true" for part in mask.strip("[]").split(",")[:2])
    flop = 2.0 * prod(output) * prod(weight[1:]) * asked
    moved = shapes.element(0) * (1 + asked) * (prod(output) + prod(image) + prod(weight)) / 2
    return Cost(Family.CONVOLUTION, flop, moved, shapes.precision(0))


FORMULAS: dict[str, Formula] = {
    "aten::cudnn_convolution": _forward(2, 3, 4),
    "aten::miopen_convolution": _forward(3, 4, 5),
    "aten::mkldnn_convolution": _forward(3, 4, 5),
    "aten::convolution": _forward(4, 3, 5, transposed=6),
    "aten::_convolution": _forward(4, 3, 5, transposed=6),
    "aten::convolution_overrideable": _forward(4, 3, 5, transposed=6),
    "aten::convolution_backward": _backward,
}
