"""Discovery: which files under a path are traces, their ranks and runs, and the other files next to them.

A rank comes from the file's `distributedInfo`, or from what the recorder wrote, or from the file name; it is never
guessed. Files with the same rank are split into runs (`split_runs`), or rejected with a list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from glob import glob, has_magic
from pathlib import Path
from typing import NoReturn

from usp_prof.contract import MANIFEST_NAME
from usp_prof.inputs.formats import all_endings, by_name, peek
from usp_prof.inputs.object_stores import HTTP
from usp_prof.inputs.peek import FileKind, TraceFile, rank_from_words, ranks_from_numbers
from usp_prof.inputs.remote import Location, RemotePath, location, parts_below
from usp_prof.inputs.runs import FoundRun, is_made_name, split_runs
from usp_prof.model.errors import InputError, unknown_name
from usp_prof.model.files import folders_below
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.printable import first_few

_PACKED = frozenset({".zip", ".bz2", ".xz", ".lz4", ".7z", ".tar", ".tgz"})
_HINT = "pass a trace of torch.profiler, the folder of a run or a quoted glob; `usp-prof info FOLDER` lists runs"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is skipped, and the reason."""

    path: Location
    reason: str


@dataclass(frozen=True, slots=True)
class Discovery:
    """The contents of a path: runs (newest first), skipped files, and problems."""

    path: Location
    runs: tuple[FoundRun, ...]
    skipped: tuple[Skipped, ...]
    health: tuple[HealthRow, ...]

    def run(self, name: str | None) -> FoundRun:
        """Return a run by its name, or the newest one without a name."""
        if name is None:
            return self.runs[0]
        run_by_name = {run.name: run for run in self.runs}
        if not isinstance(name, str) or name not in run_by_name:
            raise unknown_name("run", name, run_by_name)
        return run_by_name[name]


def discover(path: str | Location, *, without: Collection[Location] = ()) -> Discovery:
    """Search a file, a folder, a glob, or a folder followed by the name of a run in it (`traces/step 9`).

    Files in `without` count as absent: they are still being written.
    """
    if not str(path):  # Path("") is the current folder, which is never intended
        raise InputError("the path is empty", hint=_HINT)
    root = location(path)
    if not root.exists() and is_made_name(root.name):
        return _of_run(root, without)
    files, skipped = _look([file for file in list_files(root) if file not in without])
    if not files:
        reasons = "".join(f"; {item.path.name}: {item.reason}" for item in skipped[:4])
        raise InputError(f"no trace in {root}{reasons}", hint=_HINT)
    if len(files) == 1 and files[0].rank < 0:
        # Viewers may write process names anywhere: a single file without a rank is searched to its end.
        ranks = files[0].ranks or by_name(files[0].format).ranks(files[0].path)
        files = [replace(files[0], ranks=ranks)]
    files, host_processes = _without_host_processes(files)
    skipped += host_processes
    health = _notes(skipped)
    ranked_files, rank_health = _ranked(files)
    runs = split_runs(ranked_files, root)
    return Discovery(root, runs, tuple(skipped), (*health, *rank_health))


def _of_run(path: Location, without: Collection[Location]) -> Discovery:
    """Find a run by name in the folder that contains it; that run comes first in the result."""
    folder = next(parent for parent in path.parents if parent.is_dir())
    name = "/".join(parts_below(path, folder))
    discovery = discover(folder, without=without)
    chosen = discovery.run(name)
    return replace(discovery, path=path, runs=(chosen, *(run for run in discovery.runs if run is not chosen)))


def list_files(root: Location) -> list[Location]:
    """List the files under a file, a folder or a glob, without hidden ones."""
    if isinstance(root, RemotePath):
        return _list_remote_files(root)
    if root.is_dir():
        tops = [root]
    elif root.is_file():
        return [root]
    elif root.exists():
        raise InputError(
            f"{root} is neither a file nor a folder (a pipe or a device): it can be read once only", hint=_HINT
        )
    elif has_magic(str(root)):
        tops = [Path(name) for name in sorted(glob(str(root), recursive=True))]  # noqa: PTH207 - supports absolute patterns
        if not tops:
            raise InputError(f"nothing matches {root}", hint=_HINT)
    else:
        raise InputError(f"{root} does not exist", hint=_HINT)
    files: dict[Location, None] = {}
    for top in tops:
        inside = _below(top) if top.is_dir() else [top]
        files.update(dict.fromkeys(file for file in inside if file.is_file() and not _hidden(file, top)))
    return list(files)


def _list_remote_files(root: RemotePath) -> list[Location]:
    if has_magic(root.url):
        files = list(root.matches())
    elif root.is_file():
        return [root.with_stat()]
    elif root.scheme in HTTP:
        files = []
    else:
        files = [file for file in root.files() if not _hidden(file, root)]
    if not files:
        # Requesting the file itself shows why there is none: no such bucket, access denied, or no such file.
        root.with_stat()
        raise InputError(f"there is nothing under {root}", hint=_HINT)
    return list(files)


def _below(top: Path) -> list[Path]:
    """List the files below a folder, following links."""
    return sorted(Path(folder, name) for folder, _, names in folders_below(top, _raise) for name in names)


def _raise(error: OSError) -> NoReturn:
    raise error


def _hidden(file: Location, top: Location) -> bool:
    inside = parts_below(file, top)
    return any(part.startswith(".") or part == "__pycache__" for part in inside)


def _look(files: list[Location]) -> tuple[list[TraceFile], list[Skipped]]:
    readable, skipped = [], []
    alone, endings = len(files) == 1, all_endings()
    for file in files:
        if file.name == MANIFEST_NAME:
            continue
        if not (alone or file.name.lower().endswith(endings)):
            skipped.append(Skipped(file, _kind_by_name(file)))
            continue
        try:
            seen = peek(file)
        except InputError as error:
            skipped.append(Skipped(file, error.message))
            continue
        if seen.kind is FileKind.TRACE:
            readable.append(seen)
        else:
            skipped.append(Skipped(file, seen.kind))
    return readable, skipped


def _without_host_processes(files: list[TraceFile]) -> tuple[list[TraceFile], list[Skipped]]:
    """Remove processes that are not ranks (a server's frontend, a tokenizer), even if their names contain a number.

    Such a file states no rank. It has neither device work nor calls that launch it, while other files do.
    """
    silent = [file for file in files if file.rank < 0]
    if not silent or len(files) < 2:
        return files, []
    without = [file for file in silent if not _has_device_work(file)]
    stating_rank = (file for file in files if file.rank >= 0)
    # Files that state their rank are read only if no file without a rank has device work.
    if not without or not (len(without) < len(silent) or any(map(_has_device_work, stating_rank))):
        return files, []
    rank_files = [file for file in files if file not in without]
    return rank_files, [Skipped(file.path, FileKind.HOST_PROCESS) for file in without]


def _has_device_work(file: TraceFile) -> bool:
    return by_name(file.format).has_device_work(file.path)


def _kind_by_name(file: Location) -> FileKind:
    """Return the kind of a non-JSON file that is often found next to traces, from its name."""
    if file.name.startswith(("nccl_trace_rank_", "comm_lib_trace_rank_")) or file.suffix in {".pkl", ".pickle"}:
        return FileKind.FLIGHT_RECORDER
    if file.suffix.lower() in _PACKED:
        return FileKind.PACKED
    return FileKind.DYNAMO_LOG if file.name.startswith("dedicated_log_") else FileKind.FOREIGN


def _ranked(files: list[TraceFile]) -> tuple[list[TraceFile], list[HealthRow]]:
    """Assign a rank to each file; a file without one is read only if it is the only file."""
    merged = [_with_rank(file, rank, "processes") for file in files if len(file.ranks) > 1 for rank in file.ranks]
    files = [file for file in files if len(file.ranks) < 2]
    if merged and not files:
        return merged, []
    ranks: dict[Location, tuple[int, str]] = {}
    for file in files:
        if file.rank >= 0:
            ranks[file.path] = file.rank, file.rank_source
        elif (rank_in_name := rank_from_words(file.path)) is not None:
            ranks[file.path] = rank_in_name, "name"
        elif file.ranks:
            ranks[file.path] = file.ranks[0], "processes"
    if not ranks:
        counted = ranks_from_numbers([file.path for file in files]) or {}
        ranks = {path: (rank, "name") for path, rank in counted.items()}
    unknown = [file.path for file in files if file.path not in ranks]
    health = []
    if unknown and len(files) == 1:
        ranks[unknown[0]] = 0, "unknown"
        detail = "neither the file nor its name states a rank; shown as rank 0, which may be wrong"
        health = [HealthRow("rank_unknown", Severity.ERROR, rank=0, detail=detail, file=str(unknown[0]))]
    elif unknown and not ranks:
        raise InputError(
            f"{len(unknown)} traces have no rank: {first_few(unknown, 8)}",
            hint="name them rank0.json, rank1.json, ... or open one of them alone",
        )
    elif unknown:
        detail = f"left out, because neither the file nor its name states a rank: {first_few(unknown, 8)}"
        health = [
            HealthRow("rank_unknown", Severity.DATA_LOSS, count=len(unknown), detail=detail, file=str(unknown[0]))
        ]
    ranked = [_with_rank(file, *ranks[file.path]) for file in files if file.path in ranks]
    return [*merged, *ranked], health


def _with_rank(file: TraceFile, rank: int, source: str) -> TraceFile:
    return replace(file, rank=rank, rank_source=source)


def _notes(skipped: list[Skipped]) -> list[HealthRow]:
    kinds = Counter(item.reason for item in skipped if item.reason != FileKind.FOREIGN)
    first = {item.reason: item.path for item in reversed(skipped)}
    return [
        HealthRow(
            "skipped_file",
            Severity.INFO if kind in set(FileKind) - {FileKind.EMPTY} else Severity.DATA_LOSS,
            count=count,
            detail=f"skipped ({kind}): {first[kind].name}" + (f" and {count - 1} more" if count > 1 else ""),
            file=str(first[kind]),
        )
        for kind, count in sorted(kinds.items())
    ]
