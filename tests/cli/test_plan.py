"""`usp-prof plan` from a model file and from a recorded run."""

import csv
import json
from pathlib import Path

import pytest

from usp_prof.cli.app import main

TRACES = Path(__file__).parents[2] / "traces"
KNOWN_MODEL = ["plan", "--model", "Llama-3-8B", "--sequence", "8192", "--device", "A100", "--batch", "64"]


def of_file(model: str) -> list[str]:
    return ["plan", "--model", model, "--sequence", "1024", "--devices", "8", "--device", "H100", "--batch", "64"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {"layers": 8, "hidden": 1024, "heads": 8, "kv_heads": 8, "head_dim": 128, "ffn_hidden": 4096, "vocab": 1000}
        )
    )
    return str(path)


def test_plans_from_a_model_file(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = of_file(model)
    assert main([*words, "--format", "json", "--top", "3", "--for", "torchtitan"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["fitting"] > 3 == len(data["plans"])
    assert data["plans"][0]["pareto"]
    assert data["plans"][0]["command"] == ""
    assert "torchtitan cannot run" in data["plans"][0]["refused"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "legal configurations" in text
    assert "pretrain_gpt.py" in text


def test_plans_that_the_trainer_cannot_run_are_excluded(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model", "Llama-3-70B", "--sequence", "8192", "--devices", "64", "--device", "H100"]
    assert main([*words, "--batch", "512", "--for", "megatron"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "megatron cannot run" in text
    assert "plans do not combine ZeRO-3 (Megatron-FSDP) with a pipeline (" in text
    assert "command of the first plan: " in text
    assert main([*words, "--batch", "512", "--for", "torchtitan", "--format", "json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert len(plans) == 10
    assert all(plan["command"] and not plan["refused"] for plan in plans)


def test_a_trainer_that_can_run_no_plan_is_named_and_all_plans_are_listed(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*of_file(model), "--for", "nanotron", "--zero", "3"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "nanotron cannot run any plan that fits, so all are listed: it shards the optimizer only (ZeRO-1)" in text
    assert "no command: nanotron cannot run these plans" in text


def test_a_model_without_a_command_is_planned_with_layouts_of_the_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-V3 used to be planned with schedules that Megatron does not have, because there is no command for it."""
    words = ["plan", "--model", "DeepSeek-V3", "--devices", "256", "--device", "H200", "--batch", "1024", "--pp", "16"]
    assert main([*words, "--cp", "1", "--tp", "1"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "it has no schedule zb-h1 (" in text
    assert "no command: attention that is not plain, or differs between layers, needs its own script" in text
    assert main([*words, "--cp", "1", "--tp", "1", "--format", "json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert {plan["schedule"] for plan in plans} <= {"1f1b", "interleaved"}


def test_contradicting_options_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*KNOWN_MODEL, "--devices", "8"]
    assert main([*words, "--recompute", "none", "--recompute-layers", "4"]) == 2
    assert "error: recompute-layers and recompute-group need full recomputation" in capsys.readouterr().err
    assert main([*words, "--ep", "2"]) == 2
    assert "error: ep=2 needs a model with experts" in capsys.readouterr().err


def test_options_fill_empty_cells_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only four options used to apply to tables; all others were ignored without a message."""
    table = tmp_path / "rows.csv"
    table.write_text("gpu,dp,recompute\nH100,8,\n,8,full\n")
    words = ["--model", "Llama-3-8B", "--sequence", "8192", "--device", "A100", "--recompute", "selective"]
    words += ["--recompute-modules", "core_attn", "mlp", "--sequence-parallel", "off", "--for", "torchtitan"]
    assert main(["plan", "--table", str(table), *words]) == 2
    first, second = csv.DictReader(capsys.readouterr().out.splitlines())
    table.write_text(
        "model,sequence,device,dp,recompute,recompute_modules,sequence_parallel,trainer\n"
        "Llama-3-8B,8192,H100,8,selective,core_attn mlp,0,torchtitan\n"
    )
    assert main(["plan", "--table", str(table)]) == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert (row["step_ns"], row["memory_bytes"]) == (first["step_ns"], first["memory_bytes"])
    assert "recompute-modules needs selective recomputation" in second["error"]


@pytest.mark.parametrize("words", [["--format", "json"], [str(TRACES / "recorded-1f1b")]])
def test_options_that_do_not_apply_to_a_table_are_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("model,sequence,device\nLlama-3-8B,8192,H100\n")
    assert main(["plan", "--table", str(tmp_path / "rows.csv"), *words]) == 2
    assert "does not apply to --table" in capsys.readouterr().err


def test_fixed_settings_keep_their_values(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*KNOWN_MODEL, "--devices", "16", "--tp", "8", "--zero", "1"]
    assert main([*words, "--format", "json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert {(plan["tp"], plan["zero"]) for plan in plans} == {(8, 1)}
    all_pinned = ["--dp", "2", "--pp", "1", "--cp", "1", "--micro-batch", "1", "--recompute", "none"]
    all_pinned += ["--sequence-parallel", "on"]
    assert main([*words, *all_pinned]) == 0
    text = capsys.readouterr().out
    assert "1 legal configuration\n" in text
    assert "exposed tp" in text
    assert "optimizer" in text


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--efficiency", "40"], "a share between 0 and 1"),
        (["--memory-share", "-1"], "a share between 0 and 1"),
        (["--network", "-5"], "is positive"),
    ],
)
def test_impossible_values_are_refused(given: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*KNOWN_MODEL, "--devices", "8", *given]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plan", "memory"])
@pytest.mark.parametrize(("given", "numbers"), [(["--tp", "0"], "from 1 to "), (["--zero", "4"], "from 0 to 3")])
def test_settings_outside_their_range_are_refused(
    command: str, given: list[str], numbers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([command, "--model", "Llama-3-8B", *given])
    assert f"is not a whole number {numbers}" in capsys.readouterr().err


def test_known_devices_and_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--devices-known"]) == 0
    assert "A100 SXM 80GB" in capsys.readouterr().out
    assert main(["plan", "--models-known"]) == 0
    assert "DeepSeek-V3" in capsys.readouterr().out


def test_plans_from_a_recorded_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["plan", str(TRACES / "recorded-1f1b"), "--cache-dir", str(tmp_path)]
    assert main(words) == 0
    assert "the step of that run is predicted with an error of" in capsys.readouterr().out


def test_a_run_on_another_device_gives_no_speed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The output used to claim that speeds are as in the run."""
    words = ["plan", str(TRACES / "recorded-1f1b"), "--cache-dir", str(tmp_path), "--device", "H100", "--top", "1"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "large matrix products reach" in text
    assert "as in" not in text


def test_a_plan_that_does_not_fit_names_the_missing_memory(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model", model, "--sequence", "1024", "--devices", "1", "--device", "H100", "--batch", "8"]
    assert main([*words, "--memory-share", "0.001"]) == 1
    assert "nothing fits: every configuration needs at least" in capsys.readouterr().out


def test_a_single_plan_says_that_nothing_fits_without_offloading(capsys: pytest.CaptureFixture[str]) -> None:
    """A fixed plan used to show the offloaded optimizer without the reason for it."""
    words = ["plan", "--model", "Llama-3-70B", "--devices", "64", "--device", "H100", "--batch", "128", "--top", "1"]
    fixed = ["--dp", "4", "--tp", "4", "--pp", "4", "--zero", "1", "--recompute", "none", "--micro-batch", "1"]
    assert main([*words, *fixed]) == 0
    text = capsys.readouterr().out
    assert "optimizer offloaded\n" in text
    assert "  offload=none: the smallest of 6 configurations needs 80.0 GiB" in text


def test_a_known_model_defaults_to_its_pretraining_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "Llama-3-8B", "--device", "H100"]
    assert main(["plan", *words, "--devices", "8", "--batch", "64", "--top", "2"]) == 0
    assert "sequences of 8192 tokens per step" in capsys.readouterr().out
    main(["memory", *words])
    assert "sequence: 8192 tokens" in capsys.readouterr().out


def test_plans_with_needless_recomputation_are_not_counted_as_fitting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A CPU run used to list 3,312 legal configurations, but only 1,104 that fit, although memory is unlimited."""
    assert main(["plan", str(TRACES / "recorded-1f1b"), "--devices", "4", "--batch", "32"]) == 0
    text = capsys.readouterr().out
    assert "predicted to fit" not in text
    assert "fit in memory and recompute no more than needed" in text


@pytest.mark.parametrize("missing", ["--model", "--device", "--devices", "--batch"])
def test_missing_options_are_named(missing: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"--model": model, "--device": "H100", "--devices": "8", "--batch": "8", "--sequence": "64"}
    del given[missing]
    assert main(["plan", *(word for pair in given.items() for word in pair)]) == 2
    assert "hint: such as --model" in capsys.readouterr().err


def test_an_unknown_device_is_refused(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model", model, "--sequence", "64", "--devices", "8", "--device", "H1000X", "--batch", "8"]
    assert main([*words[:-3], "Potato", *words[-2:]]) == 2
    assert "no device is named 'Potato'" in capsys.readouterr().err
    del words[3:5]
    assert main(words) == 2
