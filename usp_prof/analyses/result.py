"""What does every analysis give back? A frozen dataclass that can be asked for metric values and for a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from usp_prof.model.health import HealthRow
    from usp_prof.model.metric import Value

    Listing = Mapping[str, Sequence[Any] | NDArray[Any]]
    """Plain columns of one length: what a report shows without loading pandas, and what a DataFrame is made of."""


class Result(Protocol):
    """An analysis' answer. `notes` holds what could not be known, as health rows."""

    @property
    def notes(self) -> Sequence[HealthRow]:
        """What could not be known, and why."""
        ...

    def values(self) -> Sequence[Value]:
        """Give the metric values, sorted by dimension."""
        ...

    def to_pandas(self) -> pd.DataFrame:
        """Give the answer as one table."""
        ...
