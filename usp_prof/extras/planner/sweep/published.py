"""Published sweeps: convert a user's copy of a published table to the rows of a sweep.

`playbook` is the Ultra-Scale Playbook's own sweep: nanotron on 8 H100 per node, 256 sequences of 4,096 tokens per step,
no recomputation, one measurement each. Its MFU counts the input embedding, and twice for small models with a pipeline,
so rows are compared by tokens per second. All its failures are labeled out of memory, whatever their cause.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from usp_prof.extras.planner.sweep.rows import NAN, Row, Status
from usp_prof.extras.planner.table import predict_table, understood
from usp_prof.limits import MAX_DESCRIPTION_BYTES
from usp_prof.model.errors import InputError, unknown_name
from usp_prof.model.files import csv_rows, read_bytes
from usp_prof.model.printable import counted

SHAPES: dict[str, dict[str, object]] = {
    "1B": {"layers": 16, "hidden": 2048, "heads": 32, "ffn_hidden": 8192, "tied_embeddings": 1},
    "3B": {"layers": 28, "hidden": 3072, "heads": 32, "ffn_hidden": 8192, "tied_embeddings": 1},
    "8B": {"layers": 32, "hidden": 4096, "heads": 32, "ffn_hidden": 14336, "tied_embeddings": 0},
    "80B": {"layers": 80, "hidden": 8192, "heads": 64, "ffn_hidden": 28672, "tied_embeddings": 0},
}
"""The playbook's models, all with multi-head attention and a vocabulary of 131,072."""
SEQUENCES, TOKENS = 256, 4096
"""Sequences per step, and tokens per sequence, in every run of the playbook's sweep."""
_HINT = "give the CSV file of all results that the playbook publishes"
NEEDED = ("model", "nodes", "n_gpus", "dp", "pp", "tp", "zero", "mbs", "grad_acc", "mfu_pct", "tok_s", "status")


@dataclass(frozen=True, slots=True)
class Published:
    """A published sweep: its rows, and remarks for the reader."""

    name: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def table_columns(row: Mapping[str, object]) -> dict[str, object]:
    """Convert a row of the playbook's sweep to the columns of `plan --table`."""
    return {
        **SHAPES[str(row["model"])],
        "vocab": 131072, "sequence": TOKENS, "device": "H100", "trainer": "nanotron", "dp": row["dp"], "tp": row["tp"],
        "pp": row["pp"], "zero": row["zero"], "micro_batch": row["mbs"], "micro_batches": row["grad_acc"],
    }  # fmt: skip


def playbook(path: Path) -> Published:
    """Read the playbook's table; rows that do not belong to its sweep are omitted and counted."""
    records = list(_records(path))
    if not records or not set(NEEDED) <= records[0].keys():
        lacking = ", ".join(sorted(set(NEEDED) - set(records[0] if records else ())))
        raise InputError(f"{path} is not the table of the playbook's sweep: it lacks {lacking}", hint=_HINT)
    sweep_records = [row for row in records if row["model"] in SHAPES and _batch(row) == SEQUENCES]
    if not sweep_records:
        raise InputError(
            f"{path} has no row of the playbook's sweep (256 sequences a step; {', '.join(SHAPES)})", hint=_HINT
        )
    columns = [{name: str(value) for name, value in table_columns(row).items()} for row in sweep_records]
    predictions = predict_table(columns)
    rows = []
    for row, row_columns, predicted in zip(sweep_records, columns, predictions, strict=True):
        ok = row["status"] == "success"
        is_predicted = not isinstance(predicted, str)
        rows.append(
            Row(
                model=row["model"],
                devices=int(row["n_gpus"]),
                nodes=int(row["nodes"]),
                configuration=understood(row_columns).configuration if is_predicted else None,
                status=Status.OK if ok else Status.FAILED,
                reason="" if ok else "the table names no cause",
                step_ns=SEQUENCES * TOKENS / _number(row, "tok_s") * 1e9 if ok else NAN,
                tokens_per_second=_number(row, "tok_s") if ok else NAN,
                mfu=_number(row, "mfu_pct") / 100 if ok else NAN,
                memory_bytes=_number(row, "mem_gb") * 2**30 if ok else NAN,
                sequence=TOKENS,
                predicted_step_ns=NAN if isinstance(predicted, str) else predicted.step_ns,
                predicted_memory_bytes=NAN if isinstance(predicted, str) else float(predicted.footprint.total_bytes),
            )
        )
    return Published("the Ultra-Scale Playbook's sweep", tuple(rows), tuple(_notes(len(records) - len(sweep_records))))


def _notes(dropped: int) -> Iterator[str]:
    if dropped:
        rows = counted(dropped, "row")
        yield f"Left out: {rows} whose batch is not 256 sequences, or whose model is not the sweep's."
    yield (
        "Each configuration was measured once; repeated ones differ by 5% to 25%. Stalled sends slow 40% of the "
        "successful runs, nearly all with a pipeline. Their cause is unknown."
    )
    yield "Rows are ordered by tokens per second. Its MFU counts the embedding of small models twice with a pipeline."
    yield (
        "nanotron's constants are fitted to these rows, so the planner's error here is too small. "
        "benchmarks/planner.py measures it on rows that were left out of the fit."
    )


def _records(path: Path) -> Iterator[dict[str, str]]:
    try:
        raw = read_bytes(path, "published table", "name the CSV table, plain or packed by gzip")
        if raw[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(raw)) as packed:
                raw = packed.read(MAX_DESCRIPTION_BYTES)
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise InputError(f"{path} cannot be read: {error}", hint=_HINT) from error
    yield from csv_rows(io.StringIO(text), "published table")[1]


def _batch(row: Mapping[str, str]) -> int:
    try:
        return int(row["dp"]) * int(row["mbs"]) * int(row["grad_acc"])
    except (ValueError, TypeError):
        return 0


def _number(row: Mapping[str, str], name: str) -> float:
    try:
        return float(row.get(name) or NAN)
    except ValueError:
        return NAN


READERS: dict[str, Callable[[Path], Published]] = {"playbook": playbook}


def read(name: str, path: Path) -> Published:
    """Read a published sweep by the name of its format."""
    if name not in READERS:
        raise unknown_name("published sweep", name, READERS)
    return READERS[name](path)
