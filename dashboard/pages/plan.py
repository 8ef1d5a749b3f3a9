"""Which configuration should be trained? Every legal one predicted, the best first, and what fills its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import planning, state
from dashboard.components.blocks import theme
from dashboard.components.download import table
from dashboard.components.figure import figure
from usp_prof.charts import draw as draw_chart
from usp_prof.charts.inputs import PlanPoints
from usp_prof.model.metric import Unit
from usp_prof.planner.launch import TRAINERS, command
from usp_prof.report.format import quantity

if TYPE_CHECKING:
    from usp_prof.planner.prediction import Prediction
    from usp_prof.planner.search import Plans

TITLE = "Plan"
PATH = "plan"
MOST_PLANS = 200
"""How many plans the choice and the table offer; the chart shows all."""


def draw() -> None:
    """Draw the page."""
    learnt, plans = planning.ask()
    planning.said(learnt, plans)
    if not plans.best:
        need, room = (quantity(size, Unit.BYTES) for size in (plans.leanest_bytes, plans.question.cluster.room_bytes))
        st.warning(f"Nothing fits: the leanest configuration needs {need}, and {room} may be filled.")
        st.info("Choose more devices, or a device with more memory.")
        return
    st.subheader("Speed over memory", anchor="front")
    figure(draw_chart(_points(plans), theme(dark=state.is_dark())), key="plan-front")
    shown = plans.best[:MOST_PLANS]
    table(_frame(shown), "plans", shown=_readable(shown))
    _one(plans, shown)


def _points(plans: Plans) -> PlanPoints:
    front = {plan.configuration for plan in plans.pareto()}
    return PlanPoints(
        tuple(str(plan.configuration) for plan in plans.best),
        np.array([plan.tokens_per_second for plan in plans.best]),
        np.array([plan.footprint.total_bytes for plan in plans.best], float),
        np.array([plan.mfu for plan in plans.best]),
        np.array([plan.configuration in front for plan in plans.best]),
        plans.question.cluster.room_bytes,
    )


def _one(plans: Plans, shown: tuple[Prediction, ...]) -> None:
    """Show one plan: its figures, the memory of each pipeline rank, and how it is started."""
    st.subheader("One of them", anchor="one")
    names = [str(plan.configuration) for plan in shown]
    wanted = st.query_params.get("plan", "")
    place = st.selectbox("Plan", range(len(names)), names.index(wanted) if wanted in names else 0, names.__getitem__)
    state.keep("plan", names[place] if place else None)
    plan = shown[place]
    step, speed, mfu, bubble, memory = st.columns(5)
    step.metric("step", quantity(plan.step_ns, Unit.NS))
    speed.metric("tokens/s", f"{plan.tokens_per_second:,.0f}")
    mfu.metric(f"MFU ({plan.convention})", f"{plan.mfu:.1%}")
    bubble.metric("bubble", f"{plan.bubble_fraction:.1%}")
    memory.metric("memory", quantity(plan.footprint.total_bytes, Unit.BYTES))
    st.markdown("**Predicted memory of a rank**, by what fills it")
    planning.memory_chart(
        plans.question.model, plan.configuration, plans.question.cluster.room_bytes, key="plan-memory"
    )
    trainers = tuple(TRAINERS)
    trainer = st.segmented_control("Start it with", trainers, default=state.word("trainer", trainers)) or trainers[0]
    state.keep("trainer", None if trainer == trainers[0] else trainer)
    st.code(command(trainer, plans.question.model, plan.configuration), language="sh", wrap_lines=True)


def _frame(plans: tuple[Prediction, ...]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "configuration": str(plan.configuration),
                **plan.configuration.degrees(),
                "zero": plan.configuration.zero,
                "micro_batch": plan.configuration.micro_batch,
                "micro_batches": plan.configuration.micro_batches,
                "schedule": plan.configuration.schedule if plan.configuration.pp > 1 else "",
                "recompute": str(plan.configuration.recompute),
                "step_ns": round(plan.step_ns),
                "tokens_per_second": plan.tokens_per_second,
                "mfu": plan.mfu,
                "bubble_fraction": plan.bubble_fraction,
                "exposed_ns": round(sum(plan.exposed_ns.values())),
                "memory_bytes": plan.footprint.total_bytes,
            }
            for plan in plans
        ]
    )


def _readable(plans: tuple[Prediction, ...]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "configuration": str(plan.configuration),
                "step": quantity(plan.step_ns, Unit.NS),
                "tokens/s": f"{plan.tokens_per_second:,.0f}",
                "MFU": f"{plan.mfu:.1%}",
                "memory": quantity(plan.footprint.total_bytes, Unit.BYTES),
                "bubble": f"{plan.bubble_fraction:.1%}",
                "exposed": f"{sum(plan.exposed_ns.values()) / plan.step_ns:.1%}",
            }
            for plan in plans
        ]
    )
