"""Expert exchange overlapped with another micro-batch: the exposed part, the memory, and who can run it."""

from dataclasses import replace

import pytest
from planned import EXPERTS, PLAIN, PLAIN_TRAINER, cases

from usp_prof.extras.planner import memory
from usp_prof.extras.planner.launch import command, refusal
from usp_prof.extras.planner.model_rules import broken_rule
from usp_prof.extras.planner.step import Step, step
from usp_prof.model.configuration import Configuration, Recompute

SEPARATE = Configuration(dp=8, ep=8, zero=1, micro_batches=16)
OVERLAPPED = replace(SEPARATE, expert_overlap=True)
INTERLEAVED = replace(OVERLAPPED, pp=2, schedule="interleaved", chunks=2)


def steps(*configurations: Configuration) -> Step:
    """Predict by the formulas alone, with long compute."""
    return step(cases(*configurations, model=EXPERTS, profile=replace(PLAIN_TRAINER, work_scale=100.0)))


def test_long_compute_hides_the_exchange_of_all_micro_batches_but_one() -> None:
    separate, overlapped = steps(SEPARATE, OVERLAPPED).exposed["ep"]
    assert overlapped / separate == pytest.approx(1 / 16 + 15 / 16 * 0.05)


def test_a_single_micro_batch_hides_nothing() -> None:
    configurations = [replace(configuration, micro_batches=1) for configuration in (SEPARATE, OVERLAPPED)]
    separate, overlapped = steps(*configurations).exposed["ep"]
    assert overlapped == pytest.approx(separate)


def test_short_compute_hides_at_most_its_own_time() -> None:
    times = step(cases(SEPARATE, OVERLAPPED, model=EXPERTS))
    separate, overlapped = times.exposed["ep"]
    assert separate - times.compute[0] <= overlapped < separate


def test_one_more_micro_batch_of_a_stage_is_in_memory() -> None:
    separate = replace(INTERLEAVED, expert_overlap=False)
    first, *_ = memory.stage_parts(cases(separate, INTERLEAVED, model=EXPERTS))
    before, after = first["activation_bytes"]
    # Interleaved 1F1B: 2 + 2 x 1 + 1 = 5 stages of the first rank are in flight, then 6.
    assert after / before == pytest.approx(6 / 5)


def test_it_needs_expert_parallelism() -> None:
    assert "needs ep above 1" in broken_rule(PLAIN, Configuration(dp=8, expert_overlap=True))


def test_megatron_gets_the_option_and_enough_connections() -> None:
    text = command("megatron", EXPERTS, OVERLAPPED)
    assert "--overlap-moe-expert-parallel-comm" in text
    assert text.startswith("CUDA_DEVICE_MAX_CONNECTIONS=32 ")
    assert "--overlap-moe-expert-parallel-comm" not in command("megatron", EXPERTS, SEPARATE)


@pytest.mark.parametrize(
    ("trainer", "configuration", "reason"),
    [
        ("megatron", replace(OVERLAPPED, recompute=Recompute.FULL), "full recomputation"),
        ("megatron", replace(INTERLEAVED, schedule="1f1b", chunks=1), "interleaved pipelines only"),
        ("usp-prof", replace(OVERLAPPED, dtype="fp32"), "does not overlap the expert exchange"),
    ],
)
def test_trainers_that_cannot_overlap_refuse(trainer: str, configuration: Configuration, reason: str) -> None:
    model = replace(
        EXPERTS, hidden=64, heads=4, kv_heads=4, head_dim=16, vocab=256, expert_ffn_hidden=128, ffn_hidden=0
    )
    assert reason in refusal(trainer, EXPERTS if trainer == "megatron" else model, configuration)
