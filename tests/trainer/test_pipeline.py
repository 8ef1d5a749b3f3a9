"""Pipeline orders: consistent and equal to torch's; a split backward gives the full gradients."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch.distributed.pipelining import schedules

from trainer.configuration.options import SCHEDULES
from trainer.foundation import fp8
from trainer.foundation.weight_gradients import LINEAR, Product, WeightGradStore, multiply
from trainer.model.experts import grouped_product, looped_product
from trainer.parallel import pipeline_parallel
from trainer.parallel.pipeline_parallel import Transfer, with_transfers
from usp_prof.model.errors import UsageError
from usp_prof.schedule import Schedule, Shape
from usp_prof.schedule_orders import Action, Kind, order, simulate, stage_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = [(2, 4), (2, 8), (3, 6), (4, 8), (4, 12), (8, 16)]
EVERY = pytest.mark.parametrize("name", SCHEDULES)
SIZES = pytest.mark.parametrize(("ranks", "micro_batches"), SHAPES)


def pipeline(name: str, ranks: int, micro_batches: int) -> tuple[Schedule, Shape]:
    return Schedule(name), Shape(ranks, micro_batches, 1 if name in {"gpipe", "1f1b"} else 2)


def steps(name: str, ranks: int, micro_batches: int) -> tuple[tuple[Action | Transfer, ...], ...]:
    schedule, shape = pipeline(name, ranks, micro_batches)
    return with_transfers(order(schedule, shape), stage_ranks(schedule, shape))


def test_the_pictures_of_schedules_show_when_their_actions_run() -> None:
    lines = re.findall(r"rank \d +([F.].*)", pipeline_parallel.__doc__)
    for name, rows in (("gpipe", lines[:3]), ("1f1b", lines[3:])):
        timeline = simulate(order(*pipeline(name, 3, 4)), lambda _: 1)
        picture = [["."] * timeline.window for _ in range(3)]
        for start, rank, action in zip(timeline.start, timeline.rank, timeline.actions, strict=True):
            picture[rank][start] = f"{action.kind}{action.micro_batch}"
        assert picture == [row.split() for row in rows]


def test_transfers_of_1f1b_are_in_order() -> None:
    written = [
        " ".join(f"{step.name}{step.micro_batch}" if isinstance(step, Transfer) else str(step) for step in rank)
        for rank in steps("1f1b", 2, 2)
    ]
    assert written == [
        "0F0 send_f0 0F1 send_f1 recv_b0 0B0 recv_b1 0B1",
        "recv_f0 recv_f1 1F0 1B0 send_b0 1F1 1B1 send_b1",
    ]


@EVERY
@SIZES
def test_both_ends_post_transfers_in_the_same_order(name: str, ranks: int, micro_batches: int) -> None:
    posted = defaultdict(list)
    for rank, actions in enumerate(steps(name, ranks, micro_batches)):
        for step in actions:
            if isinstance(step, Transfer):
                sends, way = step.name.startswith("send"), step.name[-1]
                source = step.stage if sends else step.stage + (-1 if way == "f" else 1)
                posted[rank, step.peer].append((way, source, step.micro_batch, rank if sends else step.peer))
    for (rank, peer), messages in posted.items():
        assert messages == posted[peer, rank]


@EVERY
@SIZES
def test_every_action_has_its_inputs(name: str, ranks: int, micro_batches: int) -> None:
    schedule, shape = pipeline(name, ranks, micro_batches)
    home = stage_ranks(schedule, shape)
    for rank, actions in enumerate(steps(name, ranks, micro_batches)):
        arrived: set[tuple[str, int, int]] = set()
        for step in actions:
            if isinstance(step, Transfer):
                if step.name.startswith("recv"):
                    arrived.add((step.name[-1], step.stage, step.micro_batch))
                else:
                    assert ("made", step.name[-1], step.stage, step.micro_batch) in arrived
                continue
            way, before = ("f", step.stage - 1) if step.kind is Kind.FORWARD else ("b", step.stage + 1)
            if step.kind is not Kind.WEIGHT_GRADIENT:
                if 0 <= before < len(home):
                    local = ("made", way, before, step.micro_batch) in arrived
                    assert local == (home[before] == rank)
                    assert local or (way, step.stage, step.micro_batch) in arrived
                arrived.add(("made", way, step.stage, step.micro_batch))


def test_an_order_that_deadlocks_is_refused() -> None:
    stuck = ((Action(0, Kind.BACKWARD, 0), Action(0, Kind.FORWARD, 0)), (Action(1, Kind.FORWARD, 0),))
    with pytest.raises(UsageError, match="can never end"):
        with_transfers(stuck, (0, 1))


@pytest.mark.parametrize("name", ["interleaved", "interleaved-zb", "zbv", "dualpipev"])
@SIZES
def test_messages_equal_those_of_torch(name: str, ranks: int, micro_batches: int) -> None:
    """The reference is torch's own lowering of the actions: the sends of each rank, in order."""
    lower = getattr(schedules, "_add_send_recv", None)
    if lower is None:
        pytest.skip("this torch lowers its schedules in another way")
    schedule, shape = pipeline(name, ranks, micro_batches)
    home = stage_ranks(schedule, shape)
    actions = {
        rank: [schedules._Action.from_str(str(action)) for action in actions]
        for rank, actions in enumerate(order(schedule, shape))
    }
    lowered = lower(actions, stage_to_rank=lambda stage: home[stage], num_stages=len(home))
    for rank, own_steps in enumerate(steps(name, ranks, micro_batches)):
        theirs = [str(action) for action in lowered[rank]]
        kinds = {"send_f": "SEND_F", "recv_f": "RECV_F", "send_b": "SEND_B", "recv_b": "RECV_B"}
        ours = [
            f"{step.stage}{kinds[step.name]}{step.micro_batch}" if isinstance(step, Transfer) else str(step)
            for step in own_steps
        ]
        assert sorted(ours) == sorted(theirs)
        for sends in (True, False):
            assert _links(ours, home, sends=sends) == _links(theirs, home, sends=sends)


def _links(written: list[str], home: tuple[int, ...], *, sends: bool) -> dict[int, list[str]]:
    """Return each peer's sends or receives in order; messages are named like in torch: `1SEND_F0`."""
    links = defaultdict(list)
    for kind, onward in {"SEND_F": 1, "SEND_B": -1}.items() if sends else {"RECV_F": -1, "RECV_B": 1}.items():
        for place, text in enumerate(written):
            if kind in text:
                links[home[int(text.split(kind)[0]) + onward]].append((place, text))
    return {peer: [text for _, text in sorted(messages)] for peer, messages in links.items()}


LENGTHS = [3, 0, 5]
ENDS = torch.tensor(LENGTHS).cumsum(0).to(torch.int32)


@pytest.mark.parametrize(
    ("product", "reference", "weight"),
    [
        (LINEAR, F.linear, (6, 4)),
        (fp8.PRODUCT, F.linear, (6, 4)),  # sizes that its kernels do not take
        (looped_product(LENGTHS), lambda x, weight: F.grouped_mm(x, weight, offs=ENDS), (3, 4, 8)),
        (grouped_product(ENDS), lambda x, weight: F.grouped_mm(x, weight, offs=ENDS), (3, 4, 8)),
    ],
)
def test_a_split_backward_gives_the_same_gradients(
    product: Product, reference: Callable[..., torch.Tensor], weight: tuple[int, ...]
) -> None:
    grad_store = WeightGradStore()
    x, w = torch.randn(8, 4, requires_grad=True), torch.randn(weight, requires_grad=True)
    expected = reference(x, w)
    gradient = torch.randn_like(expected)
    d_x, d_w = torch.autograd.grad(expected, (x, w), gradient)
    gradients = multiply(x, w, product, grad_store)
    assert torch.allclose(gradients, expected, atol=1e-6)
    with grad_store.collect() as jobs:
        gradients.backward(gradient)
    assert torch.allclose(x.grad, d_x, atol=1e-6)
    assert w.grad is None
    assert len(jobs) == 1
    for times in (1, 2):  # a second micro-batch adds to the first
        jobs[0]()
        assert torch.allclose(w.grad, times * d_w, atol=1e-5)


def test_a_full_backward_of_the_layer_stores_no_weight_gradient_work() -> None:
    grad_store, x, w = (
        WeightGradStore(),
        torch.randn(2, 3, 4, requires_grad=True),
        torch.randn(6, 4, requires_grad=True),
    )
    d_x, d_w = torch.autograd.grad(F.linear(x, w).sum(), (x, w))
    multiply(x, w, LINEAR, grad_store).sum().backward()
    assert torch.allclose(x.grad, d_x)
    assert torch.allclose(w.grad, d_w)
    assert grad_store.jobs is None
