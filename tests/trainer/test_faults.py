"""Injected faults: their target and time, and the duration of pacing."""

from __future__ import annotations

import socket
import threading
import time
import timeit
from datetime import timedelta

import pytest
import torch

from trainer.build import build
from trainer.configuration.command_line import parse
from trainer.configuration.faults import parse_fault
from trainer.configuration.load import load_shape
from trainer.foundation.weight_gradients import WeightGradStore
from trainer.instrumentation.injection import Faults, Slowdown
from trainer.instrumentation.pacing import ACHIEVED, ExtraWork, Pace
from trainer.instrumentation.slow_link import SO_MAX_PACING_RATE
from trainer.parallel.mesh import Mesh
from trainer.rules import resolve


def faults(text: str, rank: int = 0) -> Faults:
    options = ["--pp", "2", "--dp", "2", "--tp", "2", "--schedule", "interleaved", "--fault", text]
    return Faults(resolve(parse(options), 8), rank)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("slow-rank:rank=3", [3]),
        ("slow-stage:stage=1", [4, 5, 6, 7]),
        ("slow-host:host=1,hosts=4", [2, 3]),
        ("unequal-lengths:dp=1", [2, 3, 6, 7]),
        ("unequal-lengths", list(range(8))),
        ("unbucketed", list(range(8))),
    ],
)
def test_a_fault_affects_the_named_ranks(text: str, ranks: list[int]) -> None:
    struck = faults(text)
    kind = text.split(":", maxsplit=1)[0]
    assert struck.truth()[0]["ranks"] == ranks
    assert [bool(faults(text, rank).of_kind(kind)) for rank in range(8)] == [rank in ranks for rank in range(8)]


def work(lengths: tuple[int, ...]) -> float:
    return sum(length**2 for length in lengths) / sum(lengths) ** 2


def test_documents_of_an_affected_replica_differ_by_micro_batch_and_step() -> None:
    struck = faults("unequal-lengths:dp=1,documents=5", rank=2)
    packed = struck.packing(0) + struck.packing(1)
    assert len(set(packed)) == 8
    assert {(len(lengths), sum(lengths), min(lengths) > 0) for lengths in packed} == {(5, 64, True)}
    assert struck.packing(0) == struck.packing(0)
    assert struck.packing(0) == faults("unequal-lengths:dp=1,documents=5", rank=7).packing(0), "one replica, one batch"
    assert struck.packing(0) != faults("unequal-lengths:documents=5", rank=0).packing(0), "another replica, another"


def test_documents_of_other_replicas_are_equal_and_have_the_mean_work() -> None:
    other_replica = faults("unequal-lengths:dp=1", rank=0)
    assert len(set(other_replica.packing(0) + other_replica.packing(1))) == 1
    struck = faults("unequal-lengths:dp=1", rank=2)
    drawn = [work(lengths) for step in range(200) for lengths in struck.packing(step)]
    assert sum(drawn) / len(drawn) == pytest.approx(work(other_replica.packing(0)[0]), rel=0.05)


@pytest.mark.parametrize("documents", range(2, 33))
def test_every_document_has_a_token(documents: int) -> None:
    lengths = faults(f"unequal-lengths:dp=1,documents={documents}").packing(0)[0]
    assert (len(lengths), sum(lengths), min(lengths) > 0) == (documents, 64, True)


def test_no_document_sees_another() -> None:
    config = resolve(parse(["--dtype", "fp64", "--fault", "unequal-lengths"]), 1)
    mesh = Mesh.build(config.layout, 0, set(), timedelta(seconds=10))
    stage = build(config, mesh, torch.device("cpu"), Faults(config, 0)).chunks[0]
    tokens = torch.arange(64).unsqueeze(0)
    other_start = torch.where(tokens < 20, tokens + 100, tokens)
    changed = (stage(tokens, (20, 44)) != stage(other_start, (20, 44))).any(-1).flatten()  # by token
    assert changed.tolist() == [True] * 20 + [False] * 44
    assert torch.equal(stage(tokens, (64,)), stage(tokens)), "one document is the whole sequence"


def test_a_fault_acts_in_its_steps_or_with_its_probability() -> None:
    fault = parse_fault("slow-rank:steps=2-3")
    assert [fault.acts(step, 0) for step in range(5)] == [False, False, True, True, False]
    fault = parse_fault("slow-rank:probability=0.5")
    acted = [fault.acts(step, 7) for step in range(400)]
    assert 150 < sum(acted) < 250
    assert acted == [fault.acts(step, 7) for step in range(400)]


def test_slowdowns_follow_the_steps() -> None:
    struck = faults("slow-stage:stage=1,factor=3,steps=1", rank=4)
    slowdown = struck.slowdown(1)
    assert struck.slowdown(3) is None
    factors = []
    for step in range(3):
        struck.begin(step)
        factors.append(slowdown.factor)
    assert factors == [1.0, 3.0, 1.0]


def test_bandwidth_is_limited_by_the_kernel_only_on_links_of_the_axis() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        struck = faults("slow-link:axis=tp,mbps=8")
        with socket.create_connection(server.getsockname()) as healthy:
            assert struck.opened(("dp",)) is None
            before = healthy.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE)
            with socket.create_connection(server.getsockname()) as slow:
                assert struck.opened(("tp",)) is None  # no work per message
                assert slow.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE) == 1_000_000
                assert healthy.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE) == before


@pytest.mark.parametrize("size", [8, 5_000, 400_000])
def test_a_slow_link_delays_a_message_on_its_way_not_its_sender(size: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        struck = faults("slow-link:axis=tp,delay_ms=150")
        with socket.create_connection(server.getsockname()) as sender, server.accept()[0] as receiver:
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as gloo does
            hold = struck.opened(("tp",))
            start = time.perf_counter()
            assert min(timeit.repeat(hold, number=1, repeat=4)) < 0.1, "a busy machine may hold up one, not each"
            reading = threading.Thread(target=receiver.recv, args=(size, socket.MSG_WAITALL))
            reading.start()
            sender.sendall(bytes(size))
            reading.join(10)
            assert time.perf_counter() - start >= 0.15


def test_a_slow_link_can_affect_a_single_rank() -> None:
    everywhere, on_one_rank = "slow-link:axis=dp,delay_ms=5", "slow-link:axis=dp,delay_ms=5,rank=1"
    assert faults(everywhere, rank=2).opened(("dp",))
    assert faults(on_one_rank, rank=1).opened(("dp",))
    assert faults(on_one_rank, rank=2).opened(("dp",)) is None


def test_a_slowdown_does_more_work_in_forward_and_backward() -> None:
    class Counting(ExtraWork):
        more_flop = 0

        def compute_more(self, flop: float) -> None:
            Counting.more_flop += flop
            super().compute_more(flop)

    slowdown = Slowdown(3.0)
    timer = Counting(slowdown, 10.0, torch.device("cpu"), torch.float32)
    x = torch.ones(4, requires_grad=True)
    timer.leave(timer.enter(x) * 2).sum().backward()
    assert Counting.more_flop == 30.0  # once forward, twice backward
    assert torch.equal(x.grad, torch.full((4,), 2.0))


def test_paced_layers_take_their_time_and_keep_their_values() -> None:
    pace = Pace.parse("20,30,40", load_shape("tiny"), tokens=1)
    x = torch.ones(3, requires_grad=True)
    start = time.perf_counter()
    y = pace.leave(pace.enter(x) * 1) + 0
    forward = time.perf_counter() - start
    y.sum().backward()
    backward = time.perf_counter() - start - forward
    assert forward >= 0.018
    assert backward >= 0.065
    assert torch.equal(x.grad, torch.ones(3))
    pace.slowdown = Slowdown(2.0)
    start = time.perf_counter()
    pace.leave(pace.enter(x))
    assert time.perf_counter() - start >= 0.038


def test_a_paced_split_backward_waits_for_the_weights_in_their_own_action() -> None:
    waits: list[tuple[str, float]] = []

    class Noting(Pace):
        def wait(self, phase: str, seconds: float) -> None:
            waits.append((phase, seconds))
            super().wait(phase, seconds)

    pace = Noting.parse("0,30,50", load_shape("tiny"), tokens=1)
    pace.grad_store = WeightGradStore()
    out = pace.leave(pace.enter(torch.ones(3, requires_grad=True)) * 1)
    with pace.grad_store.collect() as jobs:
        out.sum().backward()
    assert waits == [("fwd", 0.0), ("dgrad", 0.03)]
    start = time.perf_counter()
    for job in jobs:
        job()
    assert waits[2:] == [("wgrad", 0.05)]
    assert time.perf_counter() - start >= 0.048


def test_a_named_device_is_paced_by_its_peak() -> None:
    shape = load_shape("8b")
    pace = Pace.parse("h100", shape, tokens=4096)
    matrices = 4096 * (32 + 32 + 8 + 8) * 128 + 3 * 4096 * 14336
    assert pace.weight_gradient == pytest.approx(2 * matrices * 4096 / ACHIEVED["h100"])
    attention = 2 * 4096 * 4096 * 4096 / ACHIEVED["h100"]  # causal: half of 4 x heads x width x sequence a token
    assert pace.forward == pytest.approx(pace.weight_gradient + attention)
    assert pace.input_gradient == pytest.approx(pace.weight_gradient + 2 * attention)
