"""Resumed runs continue as if never stopped, under any other layout. Losses and norms in float64."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint import FileSystemReader
from trainer_fleet import launch

from trainer import checkpoint
from trainer.configuration.command_line import parse
from trainer.configuration.options import OptionError
from trainer.parallel.weights import Note, boxes_of_run, constant
from trainer.rules import resolve
from trainer.unused_options import check_window

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(900)]

BOUND = 1e-9
STOPPED_AFTER = 3
"""Of five updates; the learning rates of the first three do not depend on how many follow."""
GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
EXPERTS = "--experts 4"
BF16 = "--dtype bf16 --pp 2 --schedule interleaved"
"""Its master weights are stored, not those that the layers compute with."""
OFFLOADED = f"{BF16} --offload optimizer"
"""The same with masters and moments in host memory: the run goes on bit for bit, both ways."""

# Processes and layout of the run that stops, and of the one that continues.
PAIRS = (
    (2, "--pp 2 --schedule interleaved", 2, "--pp 2 --schedule zbv"),
    (2, f"--dp 2 --zero 1 {EXPERTS}", 2, f"--tp 2 --ep 2 {EXPERTS}"),
    (2, BF16, 2, OFFLOADED),
    (2, OFFLOADED, 2, BF16),
    (2, "--dp 2", 4, "--tp 2 --pp 2"),
    (4, "--dp 4 --zero 1", 4, "--dp 2 --cp 2 --zero 3"),
    (4, f"--cp 2 --dp 2 --ep 2 --ep-layout inner {EXPERTS}", 4, f"--dp 2 --cp 2 --ep 2 --zero 1 {EXPERTS}"),
)
MORE_PAIRS = (
    (2, "--pp 2 --schedule dualpipev", 2, "--cp 2 --zero 2"),
    (2, "--tp 2", 2, "--pp 2 --schedule 1f1b"),
    (2, f"--dp 2 --zero 3 {EXPERTS}", 4, f"--pp 2 --dp 2 --ep 2 --schedule zbv {EXPERTS}"),
    (2, "--dp 2 --zero 3", 4, "--dp 4 --dp-replicate 2 --zero 1"),
    (4, "--dp 4 --dp-replicate 2 --zero 3", 4, "--pp 2 --dp 2 --schedule interleaved --zero 2"),
    (4, f"--dp 2 --tp 2 --ep 4 --zero 3 {EXPERTS}", 4, f"--cp 4 --zero 1 {EXPERTS}"),
    (4, "--pp 2 --dp 2 --schedule interleaved-zb --zero 1", 2, "--cp 2 --zero 3"),
    (4, f"--pp 2 --tp 2 --zero 1 {EXPERTS}", 1, EXPERTS),
    (1, "", 4, "--cp 2 --tp 2 --zero 1"),
    (2, "--dp 2 --zero 3 --offload optimizer", 2, "--pp 2 --schedule zbv"),
    (2, f"--dp 2 {EXPERTS}", 2, f"--dp 2 --ep 2 --zero 2 --offload optimizer {EXPERTS}"),
)


def folder_of(folder: Path, processes: int, options: str) -> Path:
    return folder / f"{processes}{options.replace(' ', '')}"


@cache
def resumed(folder: Path, pairs: tuple[tuple[int, str, int, str], ...]) -> dict:
    """Write and resume all pairs, with one launch per number of resuming processes."""
    writes, resumes = defaultdict(list), defaultdict(list)
    for before, options, after, other_options in pairs:
        place = folder_of(folder, before, options)
        writes[before].append(f"{options} --steps {STOPPED_AFTER} --checkpoint {place}")
        resumes[after].append(f"{other_options} --resume --checkpoint {place}")
    curves = {}
    if any(options.startswith(BF16) for _, options, _, _ in pairs):
        writes[2].append(BF16)
    for processes in sorted(writes):
        # Pairs that continue with the same number of processes need no separate launch.
        cases = [*dict.fromkeys(writes[processes])]
        if all(processes >= other for other in writes):
            cases += resumes.pop(processes, [])
        curves |= launch(processes, cases, 400)
    for processes, cases in resumes.items():
        curves |= launch(processes, cases, 400)
    return curves


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def check(folder: Path, pairs: tuple, pair: tuple[int, str, int, str]) -> None:
    before, options, _, other_options = pair
    curve = resumed(folder, pairs)[f"{other_options} --resume --checkpoint {folder_of(folder, before, options)}"]
    assert "error" not in curve, curve["error"]
    if options.startswith(BF16):
        uninterrupted = resumed(folder, pairs)[BF16]
        assert (curve["loss"], curve["norm"]) == (
            uninterrupted["loss"][STOPPED_AFTER:],
            uninterrupted["norm"][STOPPED_AFTER:],
        )
        return
    golden = GOLDEN["experts" if EXPERTS in options else "dense"]
    assert curve["loss"] == pytest.approx(golden["loss"][STOPPED_AFTER:], rel=0, abs=BOUND)
    assert curve["norm"] == pytest.approx(golden["norm"][STOPPED_AFTER:], rel=0, abs=BOUND)


def title(pair: tuple[int, str, int, str]) -> str:
    return f"{pair[0]}: {pair[1]} -> {pair[2]}: {pair[3]}"


@pytest.mark.parametrize("pair", PAIRS, ids=title)
def test_any_layout_continues_any_other(folder: Path, pair: tuple) -> None:
    check(folder, PAIRS, pair)


@pytest.mark.full
@pytest.mark.parametrize("pair", MORE_PAIRS, ids=title)
def test_more_layouts_continue_any_other(folder: Path, pair: tuple) -> None:
    check(folder, MORE_PAIRS, pair)


def test_replicated_state_is_written_once(folder: Path) -> None:
    resumed(folder, PAIRS)
    config = resolve(parse(["--layers", "4"]), 1)
    for processes, options in ((2, "--dp 2"), (4, "--dp 4 --zero 1")):
        stored = folder_of(folder, processes, options) / "step-000003"
        written = sum(path.stat().st_size for path in stored.glob("*.distcp"))
        needed = 3 * 8 * config.shape.parameters  # a weight and two moments, float64
        assert needed <= written < 1.3 * needed  # each box has a header
        names = FileSystemReader(stored).read_metadata().state_dict_metadata
        assert {name for name in names if "layers.3.attention" in name} >= {
            f"{state}/layers.3.attention.{matrix}.weight"
            for state in ("weight", "exp_avg", "exp_avg_sq")
            for matrix in ("q", "k", "v", "out")
        }


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_a_flat_buffer_equals_the_boxes_it_is_cut_into(sizes: list[int], data: st.DataObject) -> None:
    part = tuple(sizes)
    full = torch.arange(torch.Size(part).numel()).view(part)
    start = data.draw(st.integers(0, full.numel()))
    stop = data.draw(st.integers(start, full.numel()))
    memory = full.flatten()[start:stop]
    boxes = list(boxes_of_run("w", Note(constant(0), part, (0,) * len(part)), part, range(start, stop), 0))
    assert sum(box.view(memory).numel() for box in boxes) == stop - start
    assert len(boxes) <= max(2 * len(part) - 1, 1)
    for box in boxes:
        place = tuple(slice(first, first + size) for first, size in zip(box.offsets, box.sizes, strict=True))
        assert torch.equal(box.view(memory), full[place])


def written(folder: Path, options: str) -> Path:
    """Remove everything from a checkpoint except the description of its model."""
    config = resolve(parse(options.split()), 1)
    stored = folder / "step-000003"
    stored.mkdir()
    (stored / checkpoint.IDENTITY).write_text(json.dumps(checkpoint._identity(config)))
    return stored


@pytest.mark.parametrize(
    ("before", "after", "message", "hint"),
    [
        ("--layers 8", "", "layers 8, not 4", "--layers 8"),
        ("--experts 8 --top-k 1", "--experts 4", "experts 8, not 4", "--experts 8 --top-k 1"),
        ("--model small", "", "hidden 256, not 64", "--model small --layers 8"),
    ],
)
def test_another_model_is_refused_with_the_differing_options(
    tmp_path: Path, before: str, after: str, message: str, hint: str
) -> None:
    written(tmp_path, before)
    with pytest.raises(OptionError, match=message) as refused:
        checkpoint.check(tmp_path, resolve(parse(after.split()), 1))
    assert refused.value.hint.startswith(hint)
    assert checkpoint.check(tmp_path, resolve(parse(refused.value.hint.split()), 1)) == STOPPED_AFTER


def test_a_resumed_run_that_ends_before_its_recording_is_refused() -> None:
    options = parse(["--steps", "6", "--profile"])
    check_window(options)
    check_window(options, begun=2)
    with pytest.raises(OptionError, match="--profile records steps 5 to 6, and --steps is 6") as refused:
        check_window(options, begun=STOPPED_AFTER)
    assert refused.value.hint == "--steps 7"
    check_window(options, begun=6)  # nothing is left to train


def test_settings_that_change_the_loss_curve_are_listed(tmp_path: Path) -> None:
    written(tmp_path, "--batch 8 --seed 3")
    assert checkpoint.changes(tmp_path, resolve(parse(["--batch", "16", "--seed", "3"]), 1)) == ["--batch 16 (was 8)"]


def test_a_checkpoint_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    config = resolve(parse([]), 1)
    with pytest.raises(OptionError, match="there is none to resume from"):
        checkpoint.check(tmp_path, config)
    stored = tmp_path / "step-000004"
    stored.mkdir()
    with pytest.raises(OptionError, match="cannot be read") as refused:
        checkpoint.check(tmp_path, config)
    assert refused.value.hint == f"move {stored} away to resume from the one before it"
    (stored / "identity.json").write_text('{"mesh": {"pp": 2}}')  # as it was before weights had global names
    with pytest.raises(OptionError, match="another version"):
        checkpoint.check(tmp_path, config)


def test_the_newest_checkpoint_has_the_most_updates(tmp_path: Path) -> None:
    for name in ("step-999999", "step-1000000", "step-old", ".step-2000000.partial"):
        (tmp_path / name).mkdir()
    assert checkpoint.newest(tmp_path).name == "step-1000000"
