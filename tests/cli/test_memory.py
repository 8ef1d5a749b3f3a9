"""`usp-prof memory`: the memory of each pipeline rank by part, next to the measured memory."""

import json
from pathlib import Path

import pytest

from usp_prof.cli.app import main

TRACES = Path(__file__).parents[2] / "traces"
WORDS = ["memory", "--model", "Llama-3-70B", "--sequence", "8192", "--tp", "8", "--pp", "4", "--micro-batches", "16"]


def ranks(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, float]]:
    """Run the command and return its ranks."""
    main([*words, "--format", "json"])
    rows: list[dict[str, float]] = json.loads(capsys.readouterr().out)["ranks"]
    return rows


def test_every_rank_is_listed_and_the_first_stores_most(capsys: pytest.CaptureFixture[str]) -> None:
    rows = ranks(WORDS, capsys)
    activation_bytes = [rank["activation_bytes"] for rank in rows]
    assert activation_bytes == sorted(activation_bytes, reverse=True)
    assert [bool(rank["logit_bytes"]) for rank in rows] == [False, False, False, True]


def test_without_sequence_parallelism_norms_are_not_divided(capsys: pytest.CaptureFixture[str]) -> None:
    divided = ranks(WORDS, capsys)[0]["activation_bytes"]
    unsharded = ranks([*WORDS, "--sequence-parallel", "off"], capsys)[0]["activation_bytes"]
    scores = ranks([*WORDS, "--attention", "unfused"], capsys)[0]["activation_bytes"]
    assert unsharded > 1.4 * divided
    assert scores > 5 * divided


def test_the_22b_model_of_korthikanti_has_its_published_activations(capsys: pytest.CaptureFixture[str]) -> None:
    """Without sequence parallelism and with stored scores, 59 GiB were published for tp 8, micro-batch 4."""
    words = [
        "memory",
        "--model",
        "GPT-3-22B",
        "--sequence",
        "2048",
        "--tp",
        "8",
        "--micro-batch",
        "4",
        "--sequence-parallel",
        "off",
    ]
    activation_bytes = ranks([*words, "--attention", "unfused"], capsys)[0]["activation_bytes"]
    assert activation_bytes / 2**30 == pytest.approx(59, rel=0.15)


def test_gradient_bytes_can_be_increased(capsys: pytest.CaptureFixture[str]) -> None:
    narrow, wide = (ranks([*WORDS, "--gradient-bytes", size], capsys)[1]["gradient_bytes"] for size in ("2", "6"))
    assert wide == pytest.approx(3 * narrow)


def test_optimizer_bytes_can_be_reduced(capsys: pytest.CaptureFixture[str]) -> None:
    usual, narrow = (
        ranks([*WORDS, *words], capsys)[1]["optimizer_bytes"] for words in ((), ("--optimizer-bytes", "8"))
    )
    assert narrow == pytest.approx(usual * 8 / 12)


def test_a_configuration_that_does_not_fit_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--device", "L4"]) == 1
    shown = capsys.readouterr().out
    assert "the fullest" in shown
    assert {"weights", "activations", "buffers and context"} <= {line[2:23].strip() for line in shown.splitlines()}


def test_a_recorded_run_shows_its_measured_peak(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["memory", str(TRACES / "recorded-5d"), "--cache-dir", str(tmp_path)]) == 0
    assert "pipeline rank 1" in capsys.readouterr().out


@pytest.mark.parametrize("given", [["--gradient-bytes", "-4"], ["--optimizer-bytes", "nan"]])
def test_impossible_sizes_are_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "--model", "Llama-3-8B", *given]) == 2
    assert f"error: {given[0]} is " in capsys.readouterr().err


def test_impossible_degrees_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS[:-4], "--tp", "7"]) == 2
    assert "does not divide the 64 attention heads" in capsys.readouterr().err
    assert main(["memory"]) == 2
