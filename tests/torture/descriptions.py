"""Descriptions: the small files next to a trace, each with a few hostile values, through the command that reads it.

They are baselines, histories, policies, models, declarations, tables of configurations, cells of a sweep, memory
snapshots and operation tables. Commands exit with a documented code, with one line and no traceback.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import pickle
import random
import time
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from torture.mutations import anywhere, hostile, sample

from usp_prof.cli.app import Exit, main
from usp_prof.extras.planner.sweep.cells import Cell
from usp_prof.extras.planner.sweep.rows import Outcome, Status
from usp_prof.extras.synth.declaration import Declaration

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 30
"""Of the processor: what takes longer hangs."""
POLICY = """\
false_alarm = 0.01
findings = "critical"
health = "data_loss"
across = []
judge = "medians"
[min]
mfu = 0.38
[[rule]]
match = "step_time"
allowed = "1pp"
resolve = "3pp"
between = "0.5pp"
family = "step"
[noise.shared]
share = 1.0
worth = 8
enough = 4
"""
MODEL = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "ffn_hidden": 128, "vocab": 100}
HUGGING_FACE = {
    "model_type": "mixtral", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "num_local_experts": 4,
    "num_experts_per_tok": 2, "max_position_embeddings": 64, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
ROW = {"model": "Llama-3-8B", "sequence": 512, "device": "H100", "devices": 8, "dp": 4, "tp": 2, "pp": 1, "zero": 1,
       "micro_batch": 1, "micro_batches": 2, "schedule": "1F1B", "recompute": "none"}  # fmt: skip
SNAPSHOT = {
    "segments": [{
        "device": 0, "total_size": 1000, "allocated_size": 600, "segment_type": "large", "stream": 0, "address": 4096,
        "blocks": [{"size": 600, "state": "active_allocated", "address": 4096, "frames": [
            {"filename": "model.py", "line": 3, "name": "forward"}]}, {"size": 400, "state": "inactive"}],
    }],
    "device_traces": [[
        {"action": "segment_alloc", "size": 1000, "time_us": 0, "addr": 4096},
        {"action": "alloc", "size": 600, "time_us": 1, "addr": 4096},
        {"action": "free_completed", "size": 600, "time_us": 2, "addr": 4096},
    ]],
}  # fmt: skip
OPERATIONS = (
    # stage, kind, start, duration of one micro-batch over two stages
    (0, "forward-compute", 0.0, 1.0), (0, "forward-send", 1.0, 0.0), (1, "forward-recv", 0.0, 1.0),
    (1, "forward-compute", 1.0, 1.0), (1, "backward-compute", 2.0, 2.0), (1, "backward-send", 4.0, 0.0),
    (0, "backward-recv", 1.0, 3.0), (0, "backward-compute", 4.0, 2.0), (0, "optimizer", 6.0, 1.0),
    (1, "optimizer", 6.0, 1.0),
)  # fmt: skip


def _operations_table() -> pa.Table:
    rows = [
        {"dp_rank": 0, "stage": stage, "step": step, "optype": kind, "start_ts": start, "duration": duration,
         "seq_id": 0, "mc": 0 if kind.endswith("compute") else -1}
        for step in range(2) for stage, kind, start, duration in OPERATIONS
    ]  # fmt: skip
    return pa.Table.from_pylist(rows)


@cache
def _gate_files() -> tuple[bytes, bytes]:
    """Return a baseline and a history, as the commands write them."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        run = sample(0).write(folder / "run")
        words = ["baseline", "save", run, "-o", folder / "baseline.json"]
        assert _typed(words, folder)[0] == 0
        for number in range(6):
            words = ["check", run, "--baseline", folder / "baseline.json", "--history", folder / "runs.parquet"]
            assert _typed([*words, "--commit", f"c{number}"], folder)[0] == 0
        return (folder / "baseline.json").read_bytes(), (folder / "runs.parquet").read_bytes()


def _typed(words: list[Any], folder: Path) -> tuple[int, str]:
    """Run a command; return its exit code and its standard error."""
    out, err = io.StringIO(), io.StringIO()
    typed = [*map(str, words), "--cache-dir", str(folder / "cache")]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            return main(typed), err.getvalue()
        except SystemExit as stopped:
            return int(stopped.code or 0), err.getvalue()


def _hostile_json(rng: random.Random, data: Any) -> bytes:
    top = {"": json.loads(json.dumps(data))}
    for _ in range(rng.choice((1, 1, 2, 3))):
        anywhere(rng, top)
    text = json.dumps(top.get("")).encode("utf-8", "surrogatepass")
    return text[: rng.randrange(len(text))] if rng.random() < 0.05 else text


def _hostile_lines(rng: random.Random, text: str) -> bytes:
    """Put a hostile value after an equals sign, or repeat or remove a line."""
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(lines))
        key = lines[at].partition("=")[0]
        lines[at] = rng.choice(
            (f"{key}= {json.dumps(hostile(rng))}", f"{key}= {str(hostile(rng))[:99]}", "", lines[-1])
        )
    return "\n".join(lines).encode("utf-8", "replace")


def _hostile_csv(rng: random.Random, row: dict[str, Any]) -> bytes:
    rows = [dict(row), dict(row)]
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(rows)[rng.choice(list(row))] = str(hostile(rng))
    file = io.StringIO()
    writer = csv.DictWriter(file, list(row) if rng.random() < 0.9 else list(row)[: rng.randrange(len(row))],
                            extrasaction="ignore")  # fmt: skip
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode("utf-8", "replace")


def _hostile_pickle(rng: random.Random, data: Any) -> bytes:
    top = {"": pickle.loads(pickle.dumps(data))}  # noqa: S301 - a copy of our own
    for _ in range(rng.choice((1, 1, 2, 3))):
        anywhere(rng, top)
    written = bytearray(pickle.dumps(top.get(""), protocol=rng.choice((2, 4, 5))))
    if rng.random() < 0.2:
        written[rng.randrange(len(written))] = rng.randrange(256)
    return bytes(written)


def _hostile_parquet(rng: random.Random, table: pa.Table) -> bytes:
    """Replace, rename or remove a column, or damage a byte."""
    name = rng.choice(table.column_names)
    at = table.column_names.index(name)
    how = rng.randrange(5)
    if how == 0:
        table = table.drop_columns([name])
    elif how == 1:
        value = rng.choice((None, True, -1, 2**63 - 1, float("nan"), float("inf"), "\x1b[31m", "", [1], {"a": 1}))
        table = table.set_column(at, name, pa.array([value] * len(table)))
    elif how == 2:
        table = table.slice(0, rng.randrange(len(table) + 1))
    elif how == 3:
        table = pa.concat_tables([table] * rng.choice((2, 30)))
    file = io.BytesIO()
    pq.write_table(table, file)
    written = bytearray(file.getvalue())
    if how == 4:
        written[rng.randrange(len(written))] ^= 1 << rng.randrange(8)
    return bytes(written)


def _baseline(rng: random.Random, run: Path, folder: Path) -> list[Any]:
    file = folder / "baseline.json"
    file.write_bytes(_hostile_json(rng, json.loads(_gate_files()[0])))
    return ["check", run, "--baseline", file, "--format", rng.choice(("terminal", "json", "markdown", "junit"))]


def _history(rng: random.Random, run: Path, folder: Path) -> list[Any]:
    file = folder / "runs.parquet"
    file.write_bytes(_hostile_parquet(rng, pq.read_table(pa.BufferReader(_gate_files()[1]))))
    if rng.random() < 0.5:
        return ["trend", file, "--format", rng.choice(("terminal", "json"))]
    return ["check", run, "--min", "step_time=0", "--history", file]


def _policy(rng: random.Random, run: Path, folder: Path) -> list[Any]:
    (folder / "policy.toml").write_bytes(_hostile_lines(rng, POLICY))
    (folder / "baseline.json").write_bytes(_gate_files()[0])
    return ["check", run, "--baseline", folder / "baseline.json", "--policy", folder / "policy.toml"]


def _model(rng: random.Random, run: Path, folder: Path) -> list[Any]:
    file = folder / "model.json"
    file.write_bytes(_hostile_json(rng, rng.choice((MODEL, HUGGING_FACE))))
    sequence = ["--sequence", "64"] if rng.random() < 0.8 else []
    planned = ["plan", "--model", file, "--devices", 2, "--device", "H100", "--batch", 4, "--zero", 1]
    commands = (planned, ["memory", "--model", file, "--tp", 2], ["analyze", run, "--model", file, "--device", "H100"])
    return [*rng.choice(commands), *sequence]


def _declaration(rng: random.Random, run: Path, folder: Path) -> list[Any]:
    del run
    small = {"mesh": {"dp": 2}, "work": {"steps": 2, "micro_batches": 2}, "shape": {"layers": 1, "hidden": 64}}
    declared = {**json.loads(json.dumps(asdict(Declaration.from_dict(small)), default=str))}
    (folder / "declared.json").write_bytes(_hostile_json(rng, declared))
    return ["synth", folder / "made", "--declaration", folder / "declared.json"]


def _table(rng: random.Random, run: Path, folder: Path) -> list[Any]:
    del run
    (folder / "rows.csv").write_bytes(_hostile_csv(rng, ROW))
    return ["plan", "--table", folder / "rows.csv"]


def _snapshot(rng: random.Random, run: Path, folder: Path) -> list[Any]:
    (folder / "s.pickle").write_bytes(_hostile_pickle(rng, SNAPSHOT))
    form = rng.choice(("terminal", "json", "html"))
    return ["analyze", run, "--memory-snapshot", f"0={folder / 's.pickle'}", "--only", "memory", "--format", form]


def _cell(rng: random.Random, run: Path, folder: Path) -> list[Any]:
    del run
    cell = Cell(1, (("tp", "1"),))
    place = folder / "sweep" / "cells" / cell.name
    place.mkdir(parents=True)
    outcome = Outcome(cell.name, 1, {"tp": "1"}, Status.OK, step_seconds=0.5, tokens_per_second=9.0, mfu=0.1, steps=8)
    (place / "cell.json").write_bytes(_hostile_json(rng, asdict(outcome)))
    declaration = {"fixed": {}, "cells": [{"processes": 1, "options": {"tp": "1"}}]}
    (folder / "sweep" / "sweep.json").write_bytes(json.dumps(declaration).encode())
    return ["sweep", folder / "sweep", "--format", rng.choice(("terminal", "html", "csv"))]


def _operations(rng: random.Random, run: Path, folder: Path) -> list[Any]:
    del run
    (folder / "operations.parquet").write_bytes(_hostile_parquet(rng, _operations_table()))
    return ["whatif", folder / "operations.parquet", "--ideal", "--format", rng.choice(("terminal", "json"))]


KINDS: tuple[Callable[[random.Random, Path, Path], list[Any]], ...] = (
    _baseline, _history, _policy, _model, _declaration, _table, _snapshot, _cell, _operations,
)  # fmt: skip


def description(seed: int, folder: Path) -> None:
    """Run a command on a hostile description."""
    rng = random.Random(seed)  # noqa: S311 - a seed to repeat, no secret
    run = sample(0).write(folder / "run")
    words = rng.choice(KINDS)(rng, run, folder)
    begun = time.process_time()
    status, err = _typed(words, folder)
    allowed = {0, int(Exit.UNUSABLE)} | ({1} if words[0] in {"check", "plan", "memory"} else set())
    assert status in allowed, f"{words} exits with {status}: {err[-900:]}"
    assert "Traceback" not in err, words
    assert time.process_time() - begun < SECONDS, f"{words} takes too long"
