"""Types of arrays: one entry a row (an event, a node, a call), whole numbers unless their name says otherwise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
"""Times, sizes, codes and rows; -1 is no code and no row."""
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
