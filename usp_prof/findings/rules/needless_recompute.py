"""Activations are recomputed although memory would hold them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from usp_prof.analyses import memory
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.model.edit import Edit
from usp_prof.replay import backward
from usp_prof.whatif.layout import layout_of, memory_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.layout import Layout

SPARE = 0.1
OFTEN = 1.1
"""Above this many repeats of each forward, the finding says how many there are."""


class NeedlessRecompute:
    """Activations are recomputed although memory would hold them.

    What it finds
        Runs whose manifest says that activations are recomputed (fully or selectively), where keeping them would
        shorten the step by 3 % or more, and what they would need, by shape, fits into the memory left with a tenth to
        spare. Where memory was not recorded or its size is not known, it is an opportunity and says so.

    Why it costs time
        Full recomputation runs every forward twice: a third more compute than needed. Under nested checkpoints, or
        where a split backward runs its graph in parts, a forward runs again several times; the trace tells how often.

    What to do
        Turn it off, or down to attention alone. torchtitan: `activation_checkpoint.mode = "none"` or `"selective"`;
        Megatron-LM: leave `--recompute-granularity` out, or `selective`; nanotron: `parallelism.recompute_layer:
        false`; DeepSpeed: no `deepspeed.checkpointing.checkpoint` around the layers (`activation_checkpointing` only
        configures it), on models of transformers `gradient_checkpointing_disable()`; our trainer: `--recompute none`.

    How the gain is predicted
        The run is replayed without the forward ops that run inside backward (`recompute=none`). Where the ops cannot
        tell (compiled code), backward is shortened by what forward took: modelled.

    When it is wrong
        When memory is needed for what the recording does not show (evaluation, longer sequences, a checkpoint being
        saved).
    """

    CODE = "needless-recompute"
    TITLE = "Activations are recomputed although memory would hold them"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Set what the activations need against the memory that is left."""
        layout = layout_of(tables)
        if layout.recompute not in ("full", "selective"):
            return
        need = needed_bytes(layout)
        usage = memory.compute(tables)
        fullest = usage.fullest
        size = usage.capacity.get(fullest.rank, 0) if fullest is not None else 0
        left = usage.headroom(fullest) * size if fullest is not None and size else -1.0
        known = left >= 0 and need > 0
        if known and need > left - SPARE * size:
            return
        again = backward.measured(tables)
        often = f", each forward {again.most:.1f} times" if again is not None and again.most > OFTEN else ""
        yield Draft(
            f"activations are recomputed ({layout.recompute}{often})",
            {} if fullest is None else {"rank": fullest.rank},
            {
                "needed_bytes": need,
                "left_bytes": left if known else "not known: record memory on a device of known size",
                **({} if again is None else {"forward_runs_again": round(again.most, 2)}),
            },
            Edit("recompute", "none"),
            "keep the activations",
            least_gain=0.03,
            # Ops of the forward that run in the backward, too.
            rows="SELECT name, phase, count(*) AS times, sum(self_ns) AS self_ns FROM ops WHERE phase = 'backward' "
            f"AND NOT contains(name, 'Backward') GROUP BY name, phase ORDER BY self_ns DESC LIMIT {proof.MOST}",
            opportunity=not known,
            is_choice=True,
            settings={
                "torchtitan": "activation_checkpoint.mode",
                "Megatron-LM": "--recompute-granularity",
                "nanotron": "parallelism.recompute_layer",
                "our trainer": "--recompute none",
            },
        )


def needed_bytes(layout: Layout) -> int:
    """Estimate what keeping all activations takes more than what is kept now, on the fullest rank."""
    now, kept = memory_of(layout), memory_of(replace(layout, recompute="none"))
    return -1 if now is None or kept is None else kept.total_bytes - now.total_bytes
