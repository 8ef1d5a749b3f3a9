"""How does a result become a DataFrame without making everyone load pandas?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from numpy.typing import ArrayLike


def frame(columns: Mapping[str, ArrayLike | Sequence[object]]) -> pd.DataFrame:
    """Make a DataFrame; pandas is loaded here, at first use."""
    import pandas as pd  # noqa: PLC0415 - slow to import, and only who asks for a DataFrame needs it

    return pd.DataFrame(dict(columns))


def stacked(frames: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Set frames below each other; without any, a frame with the columns and no rows."""
    import pandas as pd  # noqa: PLC0415 - as above

    return pd.concat(list(frames), ignore_index=True) if frames else pd.DataFrame({name: [] for name in columns})
