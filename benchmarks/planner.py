"""How good is the planner on runs that it was not fitted to? Order, regret and memory against a measured sweep.

    python benchmarks/planner.py SWEEP.csv.gz

The sweep is a table with the columns of the Ultra-Scale Playbook's (model, nodes, dp, pp, tp, zero, mbs, grad_acc,
tok_s, mem_gb, status); it is not part of this repository. Nothing is calibrated: the hardware table's H100 and the
planner's own assumptions. Regret is the measured throughput of the plan that the planner would choose among those
measured, over the best measured one. Exits with 1 where the median regret is below the bar.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd

from usp_prof.contract import ModelEntry
from usp_prof.model.configuration import Configuration, broken_rule
from usp_prof.planner.cluster import of_device
from usp_prof.planner.predict import predict

BAR = 0.9
GRADIENT_BYTES = 6
"""The sweep's trainer keeps a half-precision gradient and a float32 sum of them."""
SHAPES = {"1B": (16, 2048, 32, 8192, True), "3B": (28, 3072, 32, 8192, True), "8B": (32, 4096, 32, 14336, False)}


def model_of(name: str) -> ModelEntry:
    """Describe one of the sweep's models (multi-head attention, sequences of 4,096 tokens)."""
    layers, hidden, heads, ffn, tied = SHAPES[name]
    return ModelEntry(
        layers=layers, hidden=hidden, heads=heads, kv_heads=heads, head_dim=hidden // heads, ffn_hidden=ffn,
        vocab=131072, sequence=4096, tied_embeddings=tied,
    )  # fmt: skip


def main() -> int:
    """Print order, regret and memory error."""
    if len(sys.argv) != 2:
        sys.stdout.write(__doc__ or "")
        return 2
    rows = pd.read_csv(sys.argv[1])
    rows = rows[(rows.status == "success") & (rows.dp * rows.mbs * rows.grad_acc == 256) & rows.model.isin(SHAPES)]
    found = pd.DataFrame([_predicted(row) for row in rows.to_dict("records")], index=rows.index)
    rows = rows.join(found).dropna(subset=["speed"])
    ratio = rows.speed / rows.tok_s
    sys.stdout.write(f"{len(rows)} measured runs; predicted over measured speed: {_quartiles(ratio)}\n")
    memory = rows[rows.mem_gb > 0]
    sys.stdout.write(f"predicted over measured memory: {_quartiles(memory.memory / memory.mem_gb)}\n")
    order = memory[["memory", "mem_gb"]].corr("spearman").iloc[0, 1]
    sys.stdout.write(f"rank correlation of memory {order:.2f}\n\nmodel nodes  runs  regret  rank correlation\n")
    regrets = []
    for key, group in rows.groupby(rows.model + " " + rows.nodes.astype(str)):
        regret = float(group.tok_s.to_numpy()[group.speed.to_numpy().argmax()] / group.tok_s.max())
        regrets.append(regret)
        order = group[["speed", "tok_s"]].corr("spearman").iloc[0, 1]
        sys.stdout.write(f"{key!s:11}  {len(group):4}  {regret:6.1%}  {order:.2f}\n")
    median, worst = float(np.median(regrets)), min(regrets)
    sys.stdout.write(f"\nchosen over best: median {median:.1%} (bar {BAR:.0%}), worst {worst:.1%}\n")
    return 0 if median >= BAR else 1


def _predicted(row: dict[str, Any]) -> dict[str, float]:
    model = model_of(row["model"])
    each = Configuration(
        dp=row["dp"],
        tp=row["tp"],
        pp=row["pp"],
        zero=row["zero"],
        micro_batch=row["mbs"],
        micro_batches=row["grad_acc"],
    )
    if broken_rule(model, each):
        return {"speed": float("nan"), "memory": float("nan")}
    found = predict(model, each, of_device("H100"), gradient_bytes=GRADIENT_BYTES)
    return {"speed": found.tokens_per_second, "memory": found.footprint.total_bytes / 2**30}


def _quartiles(values: pd.Series) -> str:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"median {middle:.2f} (quartiles {low:.2f} to {high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
