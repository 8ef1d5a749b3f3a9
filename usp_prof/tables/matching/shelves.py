"""Shelves: columns that are written piece by piece, in memory or in one file per column."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np

from usp_prof.model.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


class Folder:
    """Temporary folder that is removed with this object or by `remove`."""

    def __init__(self, name: str) -> None:
        self.path = Path(mkdtemp(prefix=f"usp-prof-{name}-"))
        self.remove = finalize(self, rmtree, self.path, ignore_errors=True)

    def mapped(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Write an array to a file of this name, and return it memory-mapped, so that the system may drop its pages."""
        path = self.path / name
        _append(path, values)
        return np.memmap(path, values.dtype, "r+") if len(values) else values


def _append(path: Path, values: NDArray[Any]) -> None:
    """Append numbers to a file; unlike `tofile`, this raises an error if the disk is full."""
    try:
        with path.open("ab") as file:
            file.write(np.ascontiguousarray(values).data)
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror}",
            hint="set TMPDIR to a folder with space: about 200 bytes per collective and rank",
        ) from None


class InFile:
    """Column stored in a file, read in slices."""

    def __init__(self, path: Path, kind: np.dtype[Any]) -> None:
        self._path, self._kind = path, kind

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Read these rows."""
        count, offset = rows.stop - rows.start, rows.start * self._kind.itemsize
        return np.fromfile(self._path, self._kind, count=count, offset=offset)


@dataclass(slots=True, eq=False)
class Shelf:
    """Columns of a block that are written piece by piece."""

    folder: Path | None
    """Folder for the files; None keeps the columns in memory."""
    pieces: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    kinds: dict[str, np.dtype[Any]] = field(default_factory=dict)

    def put(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Append rows."""
        for name, values in columns.items():
            self.kinds[name] = values.dtype
            if self.folder is None:
                self.pieces.setdefault(name, []).append(values)
            else:
                _append(self.folder / name, values)

    def columns(self) -> dict[str, NDArray[Any] | InFile]:
        """Return the stored columns."""
        if self.folder is None:
            return {name: np.concatenate(pieces) for name, pieces in self.pieces.items()}
        return {name: InFile(self.folder / name, kind) for name, kind in self.kinds.items()}


def shelves_in(folder: Path | None, count: int) -> list[Shelf]:
    """Build `count` shelves, each with its own subfolder if `folder` is given."""
    return [Shelf(made_in(folder, place)) for place in range(count)]


def made_in(folder: Path | None, place: int) -> Path | None:
    """Create and return the subfolder of a shelf, or return None without a folder."""
    if folder is None:
        return None
    subfolder = folder / str(place)
    subfolder.mkdir()
    return subfolder
