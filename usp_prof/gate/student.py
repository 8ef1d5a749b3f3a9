"""How many standard errors make an interval when the noise itself is only estimated? Student's t quantile.

Hill's algorithm 396 (Communications of the ACM 13, 1970) through the normal quantile of the standard library, so that
the gate needs no SciPy; six digits for the degrees of freedom that occur.
"""

from __future__ import annotations

import math
from statistics import NormalDist

_NORMAL = NormalDist()


def t_quantile(tail: float, freedom: float) -> float:
    """Give the value that Student's t with `freedom` degrees of freedom exceeds with probability `tail` (< 0.5)."""
    if not 0 < tail < 0.5:
        raise ValueError(f"tail must lie between 0 and 0.5, not {tail}")
    both = 2 * tail
    if freedom >= 1e6:
        return -_NORMAL.inv_cdf(tail)
    n = max(freedom, 1.0)
    if n == 1:
        return 1 / math.tan(both * math.pi / 2)
    if n <= 2:
        return math.sqrt(2 / (both * (2 - both)) - 2) if n == 2 else t_quantile(tail, 1)
    a = 1 / (n - 0.5)
    b = 48 / (a * a)
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    y = (d * both) ** (2 / n)
    if y > 0.05 + a:
        x = _NORMAL.inv_cdf(tail)
        y = x * x
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = ((1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1) * (n + 1) / (
            n + 2
        ) + 1 / y
    return math.sqrt(n * y)
