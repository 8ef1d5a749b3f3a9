"""Tables of configurations: rows are parsed by column, and impossible ones refused in their own row."""

import csv
import io
from pathlib import Path

import pytest

from usp_prof.cli.app import main
from usp_prof.extras.planner.answers.plan_text import GIVEN
from usp_prof.extras.planner.predict import Prediction
from usp_prof.extras.planner.stages import ranks_of
from usp_prof.extras.planner.table import COLUMNS, predict_table, read_rows, understood
from usp_prof.model.configuration import SCHEDULES
from usp_prof.model.errors import UspProfError
from usp_prof.schedule import Schedule

ROW = {
    "model": "Llama-3-8B", "sequence": "8192", "device": "H100", "devices": "16", "tp": "8", "micro_batch": "1",
    "batch": "32",
}  # fmt: skip


def test_missing_columns_follow_from_the_others() -> None:
    case = understood(ROW)
    assert (case.configuration.dp, case.configuration.micro_batches, case.configuration.zero) == (2, 16, 1)
    assert case.model.layers == 32
    assert case.trainer == "megatron"


def test_other_column_names_are_accepted() -> None:
    other = {
        "model": "llama3.1 8b", "seq": "8192", "gpu": "h100_80gb", "n_gpus": "16", "tp": "8.0", "mbs": "1",
        "gbs_samples": "32", "precision": "bfloat16",
    }  # fmt: skip
    assert understood(other).configuration == understood(ROW).configuration


def test_a_row_with_a_shape_needs_no_model_name() -> None:
    shape = {"layers": "16", "hidden": "2048", "heads": "32", "ffn": "8192", "vocab": "131072", "tied": "1"}
    case = understood({**ROW, "model": "", **shape})
    assert (case.model.kv_heads, case.model.head_dim, case.model.tied_embeddings) == (32, 64, True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tp": "3"}, "does not divide 16 devices"),
        ({"tp": "-8"}, "tp is a finite number from 0"),
        ({"tp": "0"}, "tp = 0: every degree and count is at least 1"),
        ({"tp": "1.5"}, "tp is a whole number"),
        ({"tp": "true"}, "tp is a number"),
        ({"sequence": "8k"}, "sequence is a number"),
        ({"mbs": "2"}, "mbs = 2 contradicts another column: micro_batch = 1"),
        ({"micro_batch": "0"}, "at least 1"),
        ({"dp": "4"}, "is not the 16 devices"),
        ({"batch": "33"}, "does not divide the batch of 33"),
        ({"device": "Potato"}, "no device is named 'Potato'"),
        ({"device": ""}, "names no device"),
        ({"model": "Llama-9"}, "no model is named"),
        ({"hidden": "5120"}, "hidden is not that of Llama-3-8B"),
        ({"sequence": ""}, "no sequence length"),
        ({"recompute": "sometimes"}, "none, selective or full"),
        ({"schedule": "zigzag"}, "no schedule is named"),
        ({"ep": "2"}, "needs a model with experts"),
        ({"trainer": "deepspeed"}, "no trainer is named"),
        ({"batch": "nan"}, "finite number"),
        ({"model": "long" * 2000}, "no model is named"),
        ({"device": "long" * 2000}, "no device"),
        ({"gradient_bytes": "1e300"}, "gradient_bytes is a finite number"),
        ({"network": "1e-300"}, "network is at least"),
        ({"node": "0"}, "node = 0: every degree and count is at least 1"),
        ({"sequence_parallel": "7"}, "is 1 or 0"),
        ({"devices": "2147483648", "batch": "2147483648"}, "devices is a finite number from 0 to 1048576"),
        ({"pp": "2", "tp": "4", "schedule": "zb-h1", "chunks": "2"}, "zb-h1 has one stage on each rank, not 2"),
        ({"pp": "2", "tp": "4", "schedule": "1f1b", "chunks": "4"}, "1f1b has one stage on each rank, not 4"),
        ({"pp": "2", "tp": "4", "schedule": "zbv", "chunks": "4"}, "zbv has two stages on each rank, not 4"),
        ({"pp": "2", "tp": "4", "schedule": "zbv", "layers": "1"}, "2 x 2 stages are more than the 1 layers"),
    ],
)
def test_impossible_rows_are_refused(change: dict[str, str], sentence: str) -> None:
    with pytest.raises(UspProfError, match=sentence):
        understood({**ROW, **change})


@pytest.mark.parametrize(
    ("words", "layers", "group"),
    [
        ({"recompute_layers": "3"}, 3, 1),
        ({"recompute_method": "block", "recompute_num_layers": "2"}, 2, 1),
        ({"recompute_method": "uniform", "recompute_num_layers": "2"}, 0, 2),
    ],
)
def test_recomputed_layers_may_be_named_as_in_megatron(words: dict[str, str], layers: int, group: int) -> None:
    configuration = understood({**ROW, "recompute": "full", **words}).configuration
    assert (configuration.recompute_layers, configuration.recompute_group) == (layers, group)


def test_embedding_and_head_may_have_their_own_stages() -> None:
    """Llama-3-405B on GB200 as in its vendor's recipe: 126 layers on 16 x 8 stages. The outer ranks have one less."""
    row = {
        "model": "Llama-3-405B", "sequence": "8192", "device": "GB200", "tp": "4", "pp": "16", "vpp": "8",
        "devices": "256", "mbs": "1", "gbs": "1536", "precision": "fp8",
    }  # fmt: skip
    (prediction,) = predict_table([row])
    assert isinstance(prediction, Prediction)
    assert ranks_of(126, 16, 8, SCHEDULES.index(Schedule.INTERLEAVED), 384, uneven=False, head=0.0)[0] == (
        7, *[8] * 14, 7,
    )  # fmt: skip


def test_an_offloaded_optimizer_leaves_the_device_for_its_host() -> None:
    on_device, offloaded = predict_table([ROW, {**ROW, "offload": "optimizer"}])
    assert isinstance(on_device, Prediction)
    assert isinstance(offloaded, Prediction)
    assert offloaded.footprint.optimizer_bytes == on_device.host_bytes == 0 < offloaded.host_bytes


def test_a_row_can_set_optimizer_bytes() -> None:
    usual, narrow = predict_table([ROW, {**ROW, "optimizer_bytes": "8"}])
    assert isinstance(usual, Prediction)
    assert isinstance(narrow, Prediction)
    assert narrow.footprint.optimizer_bytes == pytest.approx(usual.footprint.optimizer_bytes * 8 / 12)


def test_a_chunked_loss_keeps_the_logits_of_one_chunk() -> None:
    unchunked, chunked = predict_table([ROW, {**ROW, "loss_chunks": "8"}])
    assert isinstance(unchunked, Prediction)
    assert isinstance(chunked, Prediction)
    last = unchunked.footprint.logit_bytes
    assert chunked.footprint.logit_bytes == pytest.approx(last / 8)
    assert last > 0


def test_the_loss_of_torchtitan_is_in_chunks_by_default() -> None:
    """Its configurations do so since 0.3, and logits used to be eight times too large."""
    titan = {**ROW, "trainer": "torchtitan"}
    usual, at_once, as_megatron = predict_table([titan, {**titan, "loss_chunks": "1"}, ROW])
    assert isinstance(usual, Prediction)
    assert isinstance(at_once, Prediction)
    assert isinstance(as_megatron, Prediction)
    assert usual.footprint.logit_bytes == pytest.approx(at_once.footprint.logit_bytes / 8)
    assert as_megatron.configuration.loss_chunks == 0


def test_options_do_not_contradict_other_names_of_columns() -> None:
    row = {"gpu": "H100", "model": "Llama-3-8B", "seq": "8192", "dp": "8"}
    (prediction,) = predict_table([row], defaults={"device": "A100", "sequence": "4096"})
    (alone,) = predict_table([row])
    assert isinstance(prediction, Prediction)
    assert prediction == alone


def test_a_refused_row_does_not_stop_the_others() -> None:
    answers = predict_table([ROW, {**ROW, "tp": "5"}, {**ROW, "trainer": "nanotron"}, {**ROW, "model": "long" * 2000}])
    assert isinstance(answers[0], Prediction)
    assert isinstance(answers[1], str)
    assert isinstance(answers[2], Prediction)
    assert isinstance(answers[3], str)
    assert answers[0].footprint.activation_bytes < answers[2].footprint.activation_bytes


def test_the_command_adds_columns_and_reports_refused_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.csv"
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, [*ROW, "note"])
        writer.writeheader()
        writer.writerows([{**ROW, "note": "kept"}, {**ROW, "tp": "5"}])
    assert main(["plan", "--table", str(file)]) == 2
    written = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(written.out)))
    assert rows[0]["note"] == "kept"
    assert 0 < float(rows[0]["step_low_ns"]) < float(rows[0]["step_ns"]) < float(rows[0]["step_high_ns"])
    assert rows[1]["step_ns"] == ""
    assert "does not divide" in rows[1]["error"]
    assert "refused 1 of 2 rows" in written.err
    assert "columns that are not read: note" in written.err
    assert set(GIVEN) <= set(rows[0])


def test_a_file_without_known_columns_is_refused() -> None:
    with pytest.raises(UspProfError, match="none of the columns"):
        read_rows(io.StringIO("a,b\n1,2\n"))


def test_every_column_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/planner.md").read_text()
    for column in (*COLUMNS, *GIVEN):
        assert f"`{column}`" in page, column


def test_assumed_efficiency_applies_to_rows_that_name_none() -> None:
    slow, own = predict_table([ROW, {**ROW, "efficiency": "0.6"}], defaults={"efficiency": "0.3"})
    fast = predict_table([{**ROW, "efficiency": "0.6"}])[0]
    assert not isinstance(slow, str)
    assert not isinstance(own, str)
    assert not isinstance(fast, str)
    assert slow.step_ns > 1.3 * own.step_ns
    assert own.step_ns == fast.step_ns


def test_the_rank_with_most_weights_hides_messages_behind_its_own_layers() -> None:
    """The layers of the busiest rank, the one with the head, hid them. 8-bit products then took 19% longer."""
    row = {
        "model": "Llama-4-Maverick", "sequence": "8192", "device": "B300", "trainer": "megatron", "dp": "64", "tp": "8",
        "pp": "16", "ep": "4", "zero": "2", "micro_batch": "2", "micro_batches": "32", "schedule": "dualpipev",
    }  # fmt: skip
    wide, narrow = predict_table([row | {"dtype": dtype} for dtype in ("bf16", "fp8")])
    assert isinstance(wide, Prediction)
    assert isinstance(narrow, Prediction)
    assert narrow.step_ns < 1.02 * wide.step_ns
