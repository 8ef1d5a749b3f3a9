"""What kind of work is each piece of device work, and whose library's? By its category, then by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.lookup import lookup
from usp_prof.tables.classification import Work, classify
from usp_prof.tables.frame import compact

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from usp_prof.tables.frame import EventFrame

KINDS = [kind.value for kind in Work]


def kinds(frame: EventFrame, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], pa.DictionaryArray]:
    """Say for device work which kind it is (place in `KINDS`) and whose library's."""
    category, names = frame.codes("category")
    named = frame.by_name(rows, lambda name: KINDS.index(classify(name)[0]), np.int64)
    fixed = {"gpu_memcpy": KINDS.index(Work.MEMCPY), "gpu_memset": KINDS.index(Work.MEMSET)}
    by_category = lookup([fixed.get(name, -1) for name in names], category[rows], missing=-1)
    kind = np.where(by_category >= 0, by_category, named)
    whose = frame.by_name(rows, lambda name: classify(name)[1], object)
    libraries = sorted({*whose.tolist(), ""})
    place = {name: number for number, name in enumerate(libraries)}
    library = np.fromiter(map(place.__getitem__, whose.tolist()), np.int64, len(whose))
    library = np.where(by_category >= 0, libraries.index(""), library)
    return kind, compact(library, libraries)
