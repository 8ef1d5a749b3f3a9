"""Rule on activation recomputation that memory does not require."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from usp_prof.analyses import memory
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.model.edit import Edit
from usp_prof.model.rule_code import RuleCode
from usp_prof.replay import backward
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.layout import Layout, layout_of, memory_of

SPARE = 0.1
OFTEN = 1.1
"""Above this number of repeats of each forward pass, the finding states the number."""


class NeedlessRecompute:
    """Activations are recomputed although they would fit in memory.

    What it finds
        Runs that recompute activations according to their manifest, if keeping them would shorten the step by at least
        3% and they fit in the free memory with 10% to spare. If memory was not recorded or its size is unknown, this is
        an opportunity and says so.

    Why it costs time
        Full recomputation runs every forward pass twice, a third more compute than needed. With nested checkpoints, or
        a split backward that runs its graph in parts, a forward pass runs several times; the trace shows how often.

    What to do
        Turn recomputation off, or restrict it to attention.
        - torchtitan: `activation_checkpoint.mode = "none"` or `"selective"`.
        - Megatron-LM: remove `--recompute-granularity`, or set `selective`.
        - nanotron: `parallelism.recompute_layer: false`.
        - DeepSpeed: no `deepspeed.checkpointing.checkpoint` around layers (`activation_checkpointing` only configures
          it); for transformers models `gradient_checkpointing_disable()`.
        - our trainer: `--recompute none`.

    How the gain is predicted
        The run is replayed without the forward ops that run inside backward (`recompute=none`). If the ops do not show
        them (compiled code), backward is shortened by the time of forward: modeled.

    When it is wrong
        If memory is needed for something that the recording does not show, such as evaluation, longer sequences or
        checkpoint saving.
    """

    CODE = RuleCode.NEEDLESS_RECOMPUTE
    TITLE = "Activations are recomputed although they would fit in memory"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Draft a finding if all activations fit in the free memory, or if that is unknown."""
        layout = layout_of(tables)
        if layout.recompute not in ("full", "selective"):
            return
        need = needed_bytes(layout)
        usage = memory.compute(tables)
        fullest = usage.fullest
        size = usage.capacity.get(fullest.rank, 0) if fullest is not None else 0
        left = usage.headroom(fullest) * size if fullest is not None and size else -1.0
        is_known = left >= 0 and need > 0
        if is_known and need > left - SPARE * size:
            return
        again = backward.measured(tables)
        often = f", each forward pass {again.most:.1f} times" if again is not None and again.most > OFTEN else ""
        yield Draft(
            f"Activations are recomputed ({layout.recompute}{often}) although they would fit"
            if is_known
            else f"Activations are recomputed ({layout.recompute}{often})",
            {} if fullest is None else {"rank": fullest.rank},
            {
                "needed_bytes": need,
                "left_bytes": left if is_known else "unknown: record memory on a device of known size",
                **({} if again is None else {"forward_runs_again": round(again.most, 2)}),
            },
            Edit("recompute", "none"),
            "Keep the activations: turn recomputation off",
            least_gain=0.03,
            # Forward ops that run again in backward.
            rows="SELECT name, phase, count(*) AS times, sum(self_ns) AS self_ns FROM ops WHERE phase = 'backward' "
            f"AND NOT contains(name, 'Backward') GROUP BY name, phase ORDER BY self_ns DESC LIMIT {proof.MOST}",
            opportunity=not is_known,
            is_choice=True,
            settings={
                "torchtitan": "activation_checkpoint.mode",
                "Megatron-LM": "--recompute-granularity",
                "nanotron": "parallelism.recompute_layer",
                "our trainer": "--recompute none",
            },
        )


def needed_bytes(layout: Layout) -> int:
    """Estimate the additional bytes for keeping all activations, on the fullest rank."""
    now, without_recompute = memory_of(layout), memory_of(replace(layout, recompute="none"))
    return -1 if now is None or without_recompute is None else without_recompute.total_bytes - now.total_bytes
