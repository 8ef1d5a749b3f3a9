"""Impossible options: refused before anything starts, with the nearest legal choice."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from trainer import checkpoint
from trainer.configuration.command_line import parse, parser
from trainer.configuration.faults import KINDS
from trainer.configuration.layout import ORDER, Layout
from trainer.configuration.options import OptionError, Options, flag_of
from trainer.parallel.mesh import SERVED
from trainer.rules import check_gloo, check_memory, resolve

if TYPE_CHECKING:
    from pathlib import Path

REFUSED = (
    (8, "--dp 3", "8 processes", "torchrun --nproc-per-node 3, or --dp 8"),
    (8, "--pp 3", "divide the 8", "torchrun --nproc-per-node 9, or smaller axes"),
    (8, "--tp 8", "heads", "--tp 4"),
    (2, "--dp 2 --dp-replicate 3", "dp-replicate", "--dp-replicate 2"),
    (4, "--dp 4 --ep 3 --experts 6", "borrows", "--ep 2"),
    (4, "--dp 4 --ep 4 --experts 6", "multiple of ep", "--experts 8"),
    (2, "--cp 2 --sequence 66", "multiple", "--sequence 64"),
    (8, "--cp 4 --tp 2 --cp-method ulysses", "ulysses", "--cp 2, or --cp-method ring"),
    (4, "--pp 4 --layers 2", "a layer each", "--layers 4"),
    (4, "--pp 4 --micro-batches 2", "micro-batches", "--micro-batches 4"),
    (2, "--pp 2 --schedule dualpipev --micro-batches 2", "dualpipev", "--micro-batches 4"),
    (4, "--pp 4 --schedule interleaved --micro-batches 9 --layers 8", "rounds", "--micro-batches 8"),
    (2, "--dp 2 --batch 3", "multiple", "--batch 4"),
    (2, "--dp 2 --batch 12 --micro-batch 4", "is not dp", "--batch 16"),
    (1, "--dtype fp8 --device cpu", "fp8", "--dtype bf16"),
    (1, "--resume", "--checkpoint", "leave --resume out"),
    (1, "--model huge", "is not a known model", "one of tiny, small, 100m, 1b, 8b, or a config.json"),
    (2, "--fault slow-rank:rank=2", "must be 0 to 1", "rank=1"),
    (2, "--fault slow-rnk", "no fault", "one of slow-rank"),
    (2, "--fault slow-rank:speed=2", "no setting", "it takes rank"),
    (2, "--fault slow-rank:factor=much", "factor must be a number above 1 and at most", "factor=2.0"),
    (2, "--fault slow-link:axis=tp", "one rank", "axis=dp"),
    (1, "--fault expert-imbalance", "routed experts", "--experts 8"),
    (2, "--cp 2 --fault unequal-lengths", "cuts sequences", "--cp 1"),
    (4, "--pp 2 --schedule zbv --compile", "--compile cannot", "--schedule 1f1b"),
    (2, "--dp 2 --zero 3 --fault unbucketed", "buckets", "--zero 1"),
    (1, "--pace fast", "is neither a device nor", "h100, a100, b200"),
    (1, "--tp -2", "zero or more", "--tp 1"),
    (1, "--stepz 4", "unrecognized arguments: --stepz", "--steps"),
    (1, "--tp two", "argument --tp: invalid int value", "--tp 1"),
    (1, "--lr -1", "must be above zero", "--lr 0.003"),
    (1, "--fault slow-rank:steps=some", "steps must be a range such as 2-4", "steps=2-4"),
    (2, "--fault slow-rank:rank=-1", "rank must be", "rank=0"),
    (1, "--fault pause:every=0", "every must be", "every=2"),
    (2, "--fault slow-host:hosts=0", "hosts must be", "hosts=2"),
    (2, "--fault unequal-lengths:documents=0", "documents must be", "documents=4"),
    (2, "--fault unequal-lengths:documents=40", "40 documents of unequal lengths in 64 tokens", "documents=32"),
    (1, "--sequence 3 --fault unequal-lengths", "in 3 tokens", "--sequence 64"),
    (2, "--fault unequal-lengths --compile", "cuts each micro-batch differently", "leave --compile out"),
    (2, "--fault unequal-lengths --pace 20,20,20", "differ in attention, the fourth time", "--pace 20,20,20,20"),
    (2, "--fault unequal-lengths --pace 20,20,20,0", "the fourth time", "--pace 20,20,20,20"),
    (2, "--dp 2 --fault unbucketed --fault unbucketed", "given twice", "leave one out"),
    (4, "--fault pause:every=7,steps=1-3", "none of the 5 steps", "leave out what says when"),
    (1, "--fault late-input:probability=0.0001", "none of the 5 steps", "leave out what says when"),
    (1, "--experts 4 --top-k 4 --fault expert-imbalance", "takes all 4 experts", "--experts 8"),
    (2, "--dp 2 --bucket-mb 5 --fault unbucketed", "--fault unbucketed leaves none", "leave --bucket-mb out"),
    (2, "--tp 2 --ep 2 --ep-layout inner", "the same ranks either way", "leave --ep-layout out"),
    (
        1,
        "--steps 3 --checkpoint /tmp/states --checkpoint-every 3",
        "not before the end",
        "leave --checkpoint-every",
    ),
    (1, "--pace 0,0,0", "all waits are zero", "--pace 20,20,20"),
    (1, "--pace -1,2,3", "expected one argument", "--pace h100"),
    (1, "--fault", "expected one argument", "--fault slow-rank:rank=0,factor=2"),
    (1, "--warmup 100 --steps 2", "longer than the run", "--warmup 2"),
    (1, "--experts 4 --capacity 0.001", "leaves each expert 0.064 tokens", "--capacity 1.25"),
    (1, "--experts 4 --capacity 3", "no expert gets more than 2 equal shares", "leave --capacity out"),
    (1, "--lr 0", "must be above zero", "--lr 0.003"),
    (2, "--dp 2 --bucket-mb 1e-9", "less than one weight", "--bucket-mb 25"),
    (1, "--data /no/such/file", "No such file", "a text file"),
    (1, "--timeout 99999999999999", "above 1000000", "--timeout 1000000"),
    (1, "--seed 99999999999999999999", "above", "--seed 1099511627776"),
    (1, "--fault late-input:ms=-5", "ms must be", "ms=100.0"),
    (1, "--fault slow-rank:steps=3-1", "steps must be", "steps=2-4"),
    (1, "--experts 4 --fault expert-imbalance:expert=9", "must be 0 to 3", "expert=3"),
    (1, "--checkpoint-every 2", "--checkpoint-every 2 needs --checkpoint", "leave --checkpoint-every out"),
    (2, "--schedule zbv", "needs --pp", "leave --schedule out"),
    (1, "--top-k 4", "needs --experts", "leave --top-k out"),
    (2, "--bucket-mb 4 --zero 3", "ZeRO-0 or -1", "leave --bucket-mb out"),
    (1, "--bucket-mb 4", "dp or cp", "leave --bucket-mb out"),
    (1, "--zero 3", "dp and cp, which are 1", "leave --zero out"),
    (4, "--tp 2 --pp 2 --zero 1", "dp and cp, which are 1", "leave --zero out"),
    (4, "--tp 4 --ep 4 --experts 4 --zero 1", "dp and cp, which are 1", "leave --zero out"),
    (2, "--dp 2 --dp-replicate 2 --zero 1", "leaves each replica no ranks", "leave --dp-replicate out"),
    (4, "--dp 4 --dp-replicate 2", "--zero is 0", "leave --dp-replicate out"),
    (4, "--dp 4 --dp-replicate 2 --experts 4", "--zero is 0", "leave --dp-replicate out"),
    (2, "--no-prefetch", "ZeRO-2 and -3", "leave --no-prefetch out"),
    (2, "--tp-async", "needs --tp", "leave --tp-async out"),
    (2, "--tp 2 --tp-async --no-sequence-parallel", "sequence parallelism", "leave --no-sequence-parallel out"),
    (2, "--tp 2 --tp-async --compile", "--compile cannot", "leave --tp-async out"),
    (2, "--cp-method ulysses", "needs --cp", "leave --cp-method out"),
    (2, "--cp-layout contiguous", "needs --cp", "leave --cp-layout out"),
    (2, "--ep-layout inner --experts 4", "needs --ep", "leave --ep-layout out"),
    (2, "--pp 2 --stages-per-rank 4", "interleaved", "leave --stages-per-rank out"),
    (1, "--output traces/here --metrics json", "writes neither", "leave --output out"),
    (1, "--profile-steps 3", "--profile", "leave --profile-steps out"),
    (1, "--profile --profile-skip 9", "records steps 10 to 11", "--steps 12"),
    (1, "--pace-model 1b", "needs --pace", "leave --pace-model out"),
    (1, "--pace 2,2,2 --pace-model 1b", "named device", "leave --pace-model out"),
    (1, "--pace nan,2,2", "zero to an hour", "--pace 20,20,20"),
    (1, "--pace 2,2,2,5", "no ring attention", "--pace 2,2,2,0"),
    (1, "--pace 2,2,2,0,5", "no routed experts", "--pace 2,2,2,0,0"),
    (1, "--pace h100 --pace-model 9b", "--pace-model 9b is not a known model", "one of tiny"),
    (1, "--zero 4", "invalid choice: 4", "--zero 3"),
    (2, "--pp 2 --schedule zbw", "invalid choice: 'zbw'", "--schedule zbv"),
    (1, "--metrics xml", "invalid choice: 'xml'", "--metrics "),
    (1, "--steps some", "invalid int value: 'some'", "--steps 5"),
    (1, "--checkpoint", "expected one argument", "--checkpoint FOLDER"),
    (1, "--config", "expected one argument", "--config FILE"),
    (1, "--compile=yes", "ignored explicit argument", "--compile"),
    (1, "--lr nan", "--lr nan is not a number", "--lr 0.003"),
    (1, "--clip inf", "is not a number", "--clip 1.0"),
    (1, "--timeout 0", "must be above zero", "--timeout 1"),
    (1, "--steps 0", "must be above zero", "--steps 1"),
    (1, "--fault pause:probability=3", "probability must be", "probability=1.0"),
    (1, "--fault pause:probability=nan", "probability must be", "probability=1.0"),
    (1, "--fault pause:probability=0", "probability must be", "probability=1.0"),
    (1, "--fault pause:ms=0", "ms must be", "ms=200.0"),
    (1, "--fault slow-rank:factor=1", "factor must be", "factor=2.0"),
    (1, "--fault pause:steps=7-9", "begins with step 7 of 5", "steps=4"),
    (2, "--fault slow-link:axis=dp", "nothing is slow", "delay_ms=1"),
    (1, "--fault slow-link:delay_ms=2", "one rank here", "leave --fault out"),
    (2, "--fault slow-link:delay_ms=200", "200 ms at most", "delay_ms=100"),
    (2, "--fault slow-link:mbps=1e300", "mbps must be", "mbps=100"),
    (2, "--fault slow-link:mbps=1e-6", "mbps must be", "mbps=100"),
    (2, "--fault slow-link:delay_ms=1e-300", "delay_ms must be", "delay_ms=50"),
    (1, "--fault pause:ms=1e300", "ms must be", "ms=200.0"),
    (1, "--fault slow-rank:factor=1e300", "factor must be", "factor=2.0"),
    (2, "--fault slow-rank:rank=0,rank=1", "rank is given twice", "--fault slow-rank:rank=0"),
    (1, "--pace 1e300,1,1", "zero to an hour", "--pace 20,20,20"),
    (1, "--data /dev/null", "0 bytes are fewer", "a text file"),
    (1, "--fault unoverlapped", "no gradients are summed", "leave --fault out"),
    (2, "--fault slow-host:hosts=8,host=1", "affects no rank", "hosts=2"),
    (1, "--batch 7 --micro-batch 3", "is not dp", "--batch 6"),
    (1, "--checkpoint /proc/none", "cannot be written", "--checkpoint /tmp/run"),
    (1, "--profile --output /dev/null/run", "cannot be written", "--output /tmp/run"),
)


@pytest.mark.parametrize(("world", "options", "message", "hint"), REFUSED)
def test_illegal_options_are_refused_with_the_nearest_legal_choice(
    world: int, options: str, message: str, hint: str
) -> None:
    with pytest.raises(OptionError, match=message) as refusal:
        resolve(parse(options.split()), world)
    assert refusal.value.hint.startswith(hint)


GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 64, "n_positions": 36}
"""Learned positions, and layers in whose place no experts can stand."""


@pytest.mark.parametrize(
    ("world", "options", "message", "hint"),
    [
        (2, "--tp 2 --ep 2", "gated and have no biases", "--ep 1"),
        (1, "--experts 4", "gated and have no biases", "leave --experts out"),
        (1, "--fault expert-imbalance", "needs routed experts", "leave --fault out"),
        (5, "--cp 5", "--sequence 36 must be a multiple of tp x cp", "--sequence 30"),
        (1, "--sequence 40", "positions are learned for 36 tokens", "--sequence 36"),
        (4, "--cp 4 --sequence 40", "positions are learned for 36 tokens", "--sequence 32"),
        (19, "--cp 19", "fewer than tp x cp", "--cp 1"),
    ],
)
def test_a_hint_names_only_possible_values_for_the_model(
    tmp_path: Path, world: int, options: str, message: str, hint: str
) -> None:
    file = tmp_path / "gpt2.json"
    file.write_text(json.dumps(GPT2))
    with pytest.raises(OptionError, match=message) as refusal:
        resolve(parse(["--model", str(file), *options.split()]), world)
    assert refusal.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("world", "axes"),
    [
        (1, {"pp": 1, "dp": 1, "cp": 1, "tp": 1}),
        (3, {"pp": 1, "dp": 3, "cp": 1, "tp": 1}),
        (8, {"pp": 2, "dp": 2, "cp": 1, "tp": 2}),
        (16, {"pp": 2, "dp": 2, "cp": 2, "tp": 2, "ep": 2}),
    ],
)
def test_the_default_mesh_follows_from_the_options(world: int, axes: dict[str, int]) -> None:
    config = resolve(parse([]), world)
    assert config.layout.axes() == axes
    assert bool(config.shape.experts) == ("ep" in axes)


def test_expert_parallelism_adds_experts_only_to_dense_models(tmp_path: Path) -> None:
    file = tmp_path / "mixtral.json"
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 8, "intermediate_size": 48}
    file.write_text(json.dumps({"model_type": "mixtral", "vocab_size": 64, "num_local_experts": 16, **sizes}))
    assert resolve(parse(["--model", str(file), "--dp", "2", "--ep", "2"]), 2).shape.experts == 16
    assert resolve(parse(["--dp", "2", "--ep", "2"]), 2).shape.experts == 4
    assert resolve(parse(["--dp", "8", "--ep", "8"]), 8).shape.experts == 8


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ("--layers 99999999999999999999", "a smaller --model, or fewer --layers"),
        ("--accumulate 99999999999999999999", "a smaller --batch"),
        ("--micro-batch 9999999999", "a smaller --micro-batch"),
    ],
)
def test_a_run_beyond_the_memory_is_refused(options: str, hint: str) -> None:
    with pytest.raises(OptionError, match="each rank needs at least") as refused:
        check_memory(resolve(parse(["--device", "cpu", *options.split()]), 1))
    assert refused.value.hint == hint


def test_a_run_that_fits_into_the_memory_of_its_ranks_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve(parse(["--device", "cpu", "--model", "100m", "--micro-batch", "1"]), 1)
    check_memory(config)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")  # a thousandth of this machine is below 2 GB
    with pytest.raises(OptionError, match="each rank needs at least"):
        check_memory(config)


def test_gloo_sends_no_gpu_tensors() -> None:
    for options in (["--pp", "2"], ["--cp", "2"], ["--tp", "2", "--tp-async"]):
        with pytest.raises(OptionError, match="gloo") as refused:
            check_gloo(resolve(parse(options), 2))
        assert refused.value.hint == "--backend nccl"
    check_gloo(resolve(parse(["--cp", "2", "--cp-method", "allgather"]), 2))


def test_nccl_needs_gpus() -> None:
    with pytest.raises(OptionError, match="needs GPUs"):
        resolve(parse(["--device", "cpu", "--backend", "nccl"]), 2)
    assert resolve(parse(["--device", "cpu", "--backend", "gloo"]), 2).device == "cpu"


def test_an_available_gpu_is_used_if_it_has_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve(parse([]), 1).device == resolve(parse(["--device", "cuda"]), 1).device == "cuda"
    assert resolve(parse(["--device", "cpu"]), 1).device == resolve(parse(["--pace", "h100"]), 1).device == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve(parse([]), 1).device == "cpu"


def test_accumulation_reaches_the_target_batch() -> None:
    config = resolve(parse(["--dp", "2", "--batch", "64", "--micro-batch", "4"]), 2)
    assert (config.options.accumulate, config.micro_batch, config.local_batch) == (8, 4, 32)
    config = resolve(parse(["--pp", "2", "--micro-batches", "4", "--batch", "64", "--micro-batch", "4"]), 2)
    assert (config.options.accumulate, config.micro_batch, config.options.micro_batches) == (4, 4, 4)


def test_the_command_line_overrides_an_options_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('tp = 2\nmicro-batches = 4\nschedule = "gpipe"\n')
    options = parse(["--config", str(file), "--tp", "1"])
    assert (options.tp, options.micro_batches, options.schedule) == (1, 4, "gpipe")
    file.write_text('compile = true\nprefetch = false\nfault = ["pause", "slow-rank:rank=1"]\n')
    options = parse(["--config", str(file)])
    assert (options.compile, options.prefetch, options.fault) == (True, False, ["pause", "slow-rank:rank=1"])
    file.write_text('schedule = "some"\n')
    with pytest.raises(OptionError, match="argument --schedule: invalid choice: 'some'"):
        parse(["--config", str(file)])
    file.write_text('log = "json"\n')
    assert parse(["--config", str(file)]).metrics == "json"
    file.write_text("tpp = 2\n")
    with pytest.raises(OptionError, match="no option 'tpp'"):
        parse(["--config", str(file)])


def obeyed(words: list[str], hint: str, world: int) -> tuple[list[str], int]:
    """Do what a hint says: `--x 3`, `leave --x out`, or `torchrun --nproc-per-node N`; the first of several."""
    advice = hint.split(", or ", maxsplit=1)[0].split()
    if advice[0] == "leave":
        return [word for word in words if word.split("=")[0] != advice[1]], world
    if advice[0] == "torchrun":
        return words, int(advice[2].rstrip(","))
    remaining = [word for word in words if word.split("=")[0] != advice[0]]
    return [*remaining, f"{advice[0]}={advice[1].rstrip(',')}"], world


counts = st.sampled_from([0, 1, 2, 3, 4, 6])
CHOSEN = st.fixed_dictionaries(
    {},
    optional={
        **{f"--{name}": counts for name in ("dp", "tp", "cp", "pp", "ep", "top-k", "layers", "micro-batches")},
        **{f"--{name}": counts for name in ("accumulate", "micro-batch", "stages-per-rank", "timeout", "steps")},
        "--zero": st.sampled_from([0, 1, 2, 3]),
        "--batch": st.integers(0, 40),
        "--experts": st.sampled_from([0, 3, 4, 8]),
        "--sequence": st.sampled_from([8, 24, 66]),
        "--dp-replicate": st.sampled_from([1, 2, 3]),
        "--schedule": st.sampled_from(["gpipe", "1f1b", "interleaved", "zbv", "dualpipev"]),
        "--cp-method": st.sampled_from(["ring", "ulysses"]),
        "--cp-layout": st.sampled_from(["zigzag", "contiguous"]),
        "--ep-layout": st.sampled_from(["inner", "outer"]),
        "--lr": st.sampled_from(["nan", "-1", "0.1"]),
        "--bucket-mb": st.sampled_from(["0.5", "inf"]),
        "--pace": st.sampled_from(["2,2,2", "2,2,2,4", "2,2,2,4,4"]),
    },
)


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(chosen=CHOSEN, world=st.sampled_from([1, 2, 3, 4, 6, 8]))
def test_following_the_hints_leads_to_a_run(chosen: dict[str, object], world: int) -> None:
    words = [f"{flag}={value}" for flag, value in chosen.items()]
    for _ in range(20):
        try:
            resolve(parse(words), world)
        except OptionError as refusal:
            words, world = obeyed(words, refusal.hint, world)
        else:
            return
    resolve(parse(words), world)  # still refused: says why


sizes = st.sampled_from([1, 2, 3])


@given(pp=sizes, replicate=sizes, shard=sizes, cp=sizes, tp=sizes, outer=st.booleans(), data=st.data())
def test_every_rank_has_its_coordinates_and_groups(
    pp: int, replicate: int, shard: int, cp: int, tp: int, outer: bool, data: st.DataObject
) -> None:
    pool = shard * cp * tp
    ep = data.draw(st.sampled_from([size for size in range(1, pool + 1) if pool % size == 0]))
    layout = Layout(pp, replicate, shard, cp, tp, ep, ep_outer=outer)
    places = [layout.coordinates(rank) for rank in range(layout.world)]
    assert len({tuple(place[axis] for axis in ORDER) for place in places}) == layout.world
    expert = [(place["pp"], place["dp_replicate"], place["ep"], place["efsdp"]) for place in places]
    assert len(set(expert)) == layout.world
    for varying in SERVED.values():
        groups = layout.groups(*varying)
        assert sorted(rank for group in groups for rank in group) == list(range(layout.world))
        assert len({len(group) for group in groups}) == 1
        for group in groups:
            for axis in {"pp", "dp_replicate"} - set(varying):
                assert len({places[rank][axis] for rank in group}) == 1


def test_help_lists_every_fault() -> None:
    text = parser().format_help()
    assert all(kind in text for kind in KINDS)


def test_the_hint_of_an_option_without_a_value_is_accepted() -> None:
    for item in fields(Options):
        if item.metadata["metavar"] in {"FILE", "FOLDER"} or isinstance(item.default, bool):
            continue
        with pytest.raises(OptionError) as refused:
            parse([flag_of(item)])
        parse(refused.value.hint.split())
        if item.name in {"pace", "fault"}:
            resolve(parse(refused.value.hint.split()), 1)


def test_a_fresh_run_refuses_a_folder_with_checkpoints(tmp_path: Path) -> None:
    checkpoint.check_unused(tmp_path / "new")
    (tmp_path / "step-000100").mkdir()
    with pytest.raises(OptionError, match="up to step-000100") as refused:
        checkpoint.check_unused(tmp_path)
    assert refused.value.hint.startswith("add --resume")
