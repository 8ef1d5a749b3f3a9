"""Array types: one entry per row (event, node, call); integers unless the name has another type."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
"""Times, sizes, codes and rows; -1 means no code or no row."""
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
