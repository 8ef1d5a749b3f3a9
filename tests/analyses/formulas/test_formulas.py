from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.analyses import formulas
from usp_prof.analyses.formulas import Family, bandwidth
from usp_prof.model.hardware import Precision

HALF = "c10::BFloat16"


def cost(name: str, dims: list[Any], kind: str = HALF, values: list[str] | None = None) -> formulas.Cost | None:
    types = [kind if dim else "Scalar" for dim in dims]
    return formulas.cost(name, formulas.parse(json.dumps(dims), json.dumps(types), json.dumps(values or [])))


@pytest.mark.parametrize(
    ("name", "dims", "flop", "elements"),
    [
        ("aten::mm", [[2, 3], [3, 4]], 48, 6 + 12 + 8),
        ("aten::addmm", [[4], [2, 3], [3, 4], [], []], 48, 6 + 12 + 8),
        ("aten::bmm", [[5, 2, 3], [5, 3, 4]], 240, 5 * (6 + 12 + 8)),
        ("aten::baddbmm", [[5, 2, 4], [5, 2, 3], [5, 3, 4]], 240, 5 * (6 + 12 + 8)),
        ("aten::linear", [[7, 2, 3], [4, 3], [4]], 7 * 48, 42 + 12 + 56),
        ("aten::matmul", [[5, 2, 3], [3, 4]], 240, 30 + 12 + 40),
        ("aten::matmul", [[5, 2, 3], [5, 3, 4]], 240, 5 * (6 + 12 + 8)),
        ("aten::mv", [[2, 3], [3]], 12, 6 + 3 + 2),
        ("aten::dot", [[6], [6]], 12, 6 + 6 + 1),
        # Three groups share twelve rows; then three groups share the inner size; then a batch; then the columns.
        ("aten::_grouped_mm", [[12, 8], [3, 8, 5], [3]], 2 * 12 * 8 * 5, 96 + 120 + 60),
        ("aten::_grouped_mm", [[4, 12], [12, 5], [3]], 2 * 4 * 12 * 5, 48 + 60 + 3 * 20),
        ("aten::_grouped_mm", [[3, 4, 8], [3, 8, 5]], 2 * 3 * 4 * 8 * 5, 96 + 120 + 60),
        ("aten::_grouped_mm", [[3, 4, 8], [8, 15], [3]], 2 * 4 * 8 * 15, 96 + 120 + 60),
    ],
)
def test_matrix_products_have_their_flops_and_bytes(name: str, dims: list[Any], flop: float, elements: int) -> None:
    op_cost = cost(name, dims)
    assert op_cost is not None
    assert (op_cost.family, op_cost.flop, op_cost.precision) == (Family.PRODUCT, flop, Precision.BF16)
    assert op_cost.bytes == 2 * elements


def test_an_eight_bit_product_writes_sixteen_bits() -> None:
    op_cost = cost("aten::_scaled_mm", [[2, 16], [16, 4], [], [], []], "c10::Float8_e4m3fn")
    assert op_cost is not None
    assert (op_cost.flop, op_cost.bytes, op_cost.precision) == (256, 32 + 64 + 2 * 8, Precision.FP8)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.integers(1, 8))
def test_a_batched_product_costs_the_sum_of_its_products(rows: int, inner: int, columns: int, batch: int) -> None:
    single = cost("aten::mm", [[rows, inner], [inner, columns]])
    batched = cost("aten::bmm", [[batch, rows, inner], [batch, inner, columns]])
    assert single is not None
    assert batched is not None
    assert (batched.flop, batched.bytes) == (batch * single.flop, batch * single.bytes)


QUERY, KEYS = [2, 8, 64, 16], [2, 4, 64, 16]  # grouped-query attention: two query heads share each key head
ROWS_FIRST, KEYS_FIRST = [2, 64, 8, 16], [2, 64, 4, 16]


@pytest.mark.parametrize(
    ("name", "dims", "values"),
    [
        ("aten::_scaled_dot_product_flash_attention", [QUERY, KEYS, KEYS], ["", "", "", "0.", "{}", "False", ""]),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", [QUERY, KEYS, KEYS], ["", "", "", "0.", "{}", "", ""]),
        ("aten::_scaled_dot_product_efficient_attention", [QUERY, KEYS, KEYS], [""] * 4 + ["True", "0.", "{}", ""]),
        ("aten::_scaled_dot_product_cudnn_attention", [QUERY, KEYS, KEYS], [""] * 4 + ["True", "0.", "{}", ""]),
        ("aten::_flash_attention_forward", [ROWS_FIRST, KEYS_FIRST, KEYS_FIRST, [], []], [""] * 8 + ["{}", "False"]),
        ("flash_attn::_flash_attn_forward", [ROWS_FIRST, KEYS_FIRST, KEYS_FIRST], [""] * 5 + ["{}"]),
    ],
)
def test_attention_forward_has_its_flops_and_bytes(name: str, dims: list[Any], values: list[str]) -> None:
    full = cost(name, dims, values=[value.replace("{}", "False") for value in values])
    causal = cost(name, dims, values=[value.replace("{}", "True") for value in values])
    assert full is not None
    assert causal is not None
    assert full.flop == 4 * 2 * 8 * 64 * 64 * 16
    assert causal.flop == full.flop / 2
    assert full.bytes == 2 * 2 * (2 * 8 * 64 * 16 + 2 * 4 * 64 * 16)


@pytest.mark.parametrize(
    ("name", "dims", "values"),
    [
        ("aten::_scaled_dot_product_flash_attention_backward", [QUERY, QUERY, KEYS, KEYS], ["0."] * 11 + ["True"]),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", [QUERY, QUERY, KEYS, KEYS], [""] * 7 + ["True"]),
        ("aten::_scaled_dot_product_efficient_attention_backward", [QUERY, QUERY, KEYS, KEYS], [""] * 11 + ["True"]),
        ("aten::_scaled_dot_product_cudnn_attention_backward", [QUERY, QUERY, KEYS, KEYS], [""] * 14 + ["True"]),
        ("aten::_flash_attention_backward", [ROWS_FIRST, ROWS_FIRST, KEYS_FIRST, KEYS_FIRST], [""] * 11 + ["True"]),
        ("aten::_efficient_attention_backward", [ROWS_FIRST, ROWS_FIRST, KEYS_FIRST, KEYS_FIRST], [""] * 14 + ["1"]),
        ("flash_attn::_flash_attn_backward", [ROWS_FIRST, ROWS_FIRST, KEYS_FIRST, KEYS_FIRST], [""] * 11 + ["True"]),
    ],
)  # fmt: skip
def test_attention_backward_runs_five_products(name: str, dims: list[Any], values: list[str]) -> None:
    op_cost = cost(name, dims, values=values)
    assert op_cost is not None
    assert op_cost.flop == 5 * 2 * 2 * 8 * 64 * 64 * 16 / 2


def _pairs(rows: int, columns: int, before: int, after: int) -> int:
    """Count the pairs within a window one by one; queries are the last keys."""
    shift = columns - rows
    return sum(
        (before < 0 or key >= query + shift - before) and (after < 0 or key <= query + shift + after)
        for query in range(rows)
        for key in range(columns)
    )


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (16, 64)])
@pytest.mark.parametrize(("before", "after"), [(7, 0), (7, 3), (0, 0), (-1, 3), (40, -1)])
def test_windowed_attention_counts_only_pairs_within_the_window(
    rows: int, columns: int, before: int, after: int
) -> None:
    """If a window of 8 keys is counted as all 64, the efficiency exceeds one."""
    query, keys = [2, rows, 8, 16], [2, columns, 4, 16]
    flop = 2.0 * 2 * 8 * _pairs(rows, columns, before, after)
    forward = [""] * 8 + ["False", "False", "", str(before), str(after)]
    op_cost = cost("aten::_flash_attention_forward", [query, keys, keys, [], []], values=forward)
    assert op_cost is not None
    assert op_cost.flop == flop * (16 + 16)
    backward = [""] * 11 + ["False", "", "", "", str(before), str(after)]
    op_cost = cost("aten::_flash_attention_backward", [query, query, keys, keys], values=backward)
    assert op_cost is not None
    assert op_cost.flop == flop * 5 * 16


def test_a_causal_window_excludes_later_keys() -> None:
    query = [2, 64, 8, 16]
    windowed = cost(
        "flash_attn::_flash_attn_forward", [query] * 3, values=["", "", "", "0.", "0.25", "True", "7", "-1"]
    )
    assert windowed is not None
    assert windowed.flop == 2.0 * 2 * 8 * _pairs(64, 64, 7, 0) * 32
    unlimited = cost(
        "flash_attn::_flash_attn_forward", [query] * 3, values=["", "", "", "0.", "0.25", "True", "-1", "-1"]
    )
    wide = cost("flash_attn::_flash_attn_forward", [query] * 3, values=["", "", "", "0.", "0.25", "True", "64", "-1"])
    assert unlimited == wide


def test_a_causal_mask_is_aligned_to_the_last_query_and_key() -> None:
    values = ["", "", "", "0.", "True", "False", ""]
    longer = cost(
        "aten::_scaled_dot_product_flash_attention", [[1, 1, 4, 1], [1, 1, 10, 1], [1, 1, 10, 1]], values=values
    )
    shorter = cost(
        "aten::_scaled_dot_product_flash_attention", [[1, 1, 10, 1], [1, 1, 4, 1], [1, 1, 4, 1]], values=values
    )
    assert longer is not None
    assert shorter is not None
    assert (longer.flop, shorter.flop) == (4 * (4 * 6 + 8), 4 * 8)


def test_packed_sequences_cannot_be_counted() -> None:
    packed = [[64, 8, 16], [64, 4, 16], [64, 4, 16], [3], [3]]
    assert cost("aten::_flash_attention_forward", packed, values=[""] * 8 + ["True"]) is None
    bounds = [[1, 64, 8, 16], [1, 64, 4, 16], [1, 64, 4, 16], [3], [3]]
    assert cost("aten::_flash_attention_forward", bounds, values=[""] * 8 + ["True"]) is None


def test_convolutions_have_their_flops_and_bytes() -> None:
    # 2 images of 3 channels, 8 x 8, sixteen 3 x 3 windows, padding 1, stride 2: 4 x 4 outputs.
    flop = 2 * 2 * 16 * 16 * 3 * 9
    settings = ["[1, 1]", "[2, 2]", "[1, 1]"]
    forward = cost("aten::cudnn_convolution", [[2, 3, 8, 8], [16, 3, 3, 3]], values=["", "", *settings, "1"])
    assert forward is not None
    assert forward.flop == flop
    assert forward.bytes == 2 * (2 * 3 * 64 + 16 * 27 + 2 * 16 * 16)
    general = ["", "", "", "[2, 2]", "[1]", "[1, 1]", "False", "[0, 0]", "1"]
    assert cost("aten::convolution", [[2, 3, 8, 8], [16, 3, 3, 3]], values=general) == forward
    turned = cost("aten::convolution", [[2, 16, 4, 4], [16, 3, 3, 3]], values=[*general[:6], "True", "[1, 1]", "1"])
    assert turned is not None
    assert turned.flop == flop
    output_mask = [""] * 10 + ["[true, True, False]"]
    backward = cost("aten::convolution_backward", [[2, 16, 4, 4], [2, 3, 8, 8], [16, 3, 3, 3]], values=output_mask)
    assert backward is not None
    assert backward.flop == 2 * flop


@pytest.mark.parametrize(
    ("name", "dims", "family", "elements"),
    [
        ("aten::add", [[4, 8], [8], []], Family.ELEMENTWISE, 32 + 8 + 32),
        ("aten::add", [[4, 8], [4, 8], [], [4, 8]], Family.ELEMENTWISE, 96),
        ("aten::exp", [[4, 8], [4, 8]], Family.ELEMENTWISE, 64),
        ("aten::where", [[4, 8], [4, 8], [8]], Family.ELEMENTWISE, 32 + 32 + 8 + 32),
        ("aten::mul_", [[4, 8], [4, 8]], Family.ELEMENTWISE, 96),
        ("aten::copy_", [[4, 8], [4, 8]], Family.ELEMENTWISE, 64),
        ("aten::fill_", [[4, 8], []], Family.ELEMENTWISE, 32),
        ("aten::sum", [[4, 8]], Family.REDUCTION, 32),
        ("aten::native_layer_norm", [[4, 8], [], [8], [8], []], Family.NORM, 32 + 16 + 32),
        ("triton_poi_fused_add_mul_0", [[4, 8], [4, 8], [8]], Family.FUSED, 72),
        ("FusedLayerNormAffineFunction", [[4, 8], [8], [8]], Family.NORM, 32 + 16 + 32),
        ("ScaledUpperTriangMaskedSoftmax", [[2, 4, 4]], Family.NORM, 16 + 32),
        ("ScaledMaskedSoftmax", [[2, 4, 4]], Family.NORM, 64),
    ],
)
def test_ops_that_only_move_data_have_bytes_and_no_flops(
    name: str, dims: list[Any], family: Family, elements: int
) -> None:
    op_cost = cost(name, dims)
    assert op_cost is not None
    assert (op_cost.family, op_cost.flop, op_cost.bytes) == (family, 0.0, 2 * elements)


def test_gathers_read_only_the_selected_rows() -> None:
    def picked(name: str, dims: list[Any], values: list[str]) -> float:
        types = ["float", "Scalar", "long int"] if len(dims) == 3 else ["float", "long int"]
        op_cost = formulas.cost(name, formulas.parse(json.dumps(dims), json.dumps(types), json.dumps(values)))
        assert op_cost is not None
        return op_cost.bytes

    assert picked("aten::index_select", [[1000, 8], [], [3]], ["", "0", ""]) == 2 * 3 * 8 * 4 + 3 * 8
    assert picked("aten::gather", [[1000, 8], [], [5, 2]], ["", "1", ""]) == 2 * 10 * 4 + 10 * 8
    assert picked("aten::embedding", [[1000, 8], [2, 3]], []) == 2 * 6 * 8 * 4 + 6 * 8


def test_a_comparison_writes_bytes() -> None:
    op_cost = cost("aten::lt", [[4, 8], []], "float")
    assert op_cost is not None
    assert op_cost.bytes == 4 * 32 + 32


def test_unknown_ops_and_unrecorded_or_odd_shapes_have_no_cost() -> None:
    assert cost("mylib::op", [[2, 3], [3, 4]]) is None
    assert cost("aten::mm", []) is None
    assert cost("aten::mm", [[], []]) is None
    assert cost("aten::mm", [[2, 3], [4, 5]]) is None
    assert cost("aten::linear", [[2, 3], [4, 5]]) is None
    assert cost("aten::matmul", [[2, 3], [4, 5]]) is None
    assert cost("aten::mm", [[2, 3], [3, 4]], "mystery") is None
    assert cost("aten::mm", [[2], [3]]) is None
    assert cost("aten::add", [[[2, 3]], [4]]) is None
    assert cost("triton_poi_fused_0", [[]]) is None
    assert cost("aten::_scaled_dot_product_flash_attention", [QUERY, KEYS, KEYS], values=[""] * 7) is None
    assert formulas.cost("aten::mm", formulas.parse("[[1,2]", "{}", "")) is None


def recorded_op(
    name: str, dims: list[Any], types: list[str], *, lists: str = "", values: list[str] | None = None
) -> Any:
    return formulas.cost(name, formulas.parse(json.dumps(dims), json.dumps(types), json.dumps(values or []), lists))


WEIGHTS = [[4, 8], [8]]
LISTS = ["TensorList"] * 6
"""Forty elements in two tensors; profilers give no type of a list's tensors."""


@pytest.mark.parametrize(
    ("name", "dims", "elements"),
    [
        # Reads parameters, gradients and both moments; writes all of these except the gradients.
        ("aten::_fused_adamw_", [WEIGHTS, WEIGHTS, WEIGHTS, WEIGHTS, [], [[], []]], 7 * 40),
        ("aten::_fused_adam_", [WEIGHTS, WEIGHTS, WEIGHTS, WEIGHTS, WEIGHTS, [[], []]], 9 * 40),
        ("aten::_fused_sgd_", [WEIGHTS, WEIGHTS, WEIGHTS], 5 * 40),
        ("aten::_fused_sgd_", [WEIGHTS, WEIGHTS, []], 3 * 40),
        ("aten::_fused_adagrad_", [WEIGHTS, WEIGHTS, WEIGHTS, [[], []]], 5 * 40),
        ("aten::cat", [WEIGHTS, []], 2 * 40),
        ("aten::stack", [[[], []], []], 2 * 2),
        ("aten::_foreach_add_", [WEIGHTS, WEIGHTS, []], 3 * 40),
        ("aten::_foreach_mul_", [WEIGHTS, []], 2 * 40),
        ("aten::_foreach_sqrt", [WEIGHTS], 2 * 40),
        ("aten::_foreach_addcdiv_", [WEIGHTS, WEIGHTS, WEIGHTS, []], 4 * 40),
        ("aten::_foreach_copy_", [WEIGHTS, WEIGHTS, []], 2 * 40),
        ("aten::_foreach_zero_", [WEIGHTS], 40),
        ("aten::_foreach_norm", [WEIGHTS, []], 40),
    ],
)
def test_ops_on_tensor_lists_need_a_known_element_type(name: str, dims: list[Any], elements: int) -> None:
    op_cost = recorded_op(name, dims, LISTS, lists="c10::BFloat16")
    assert op_cost is not None
    assert (op_cost.family, op_cost.flop, op_cost.bytes) == (Family.ELEMENTWISE, 0.0, 2 * elements)
    assert recorded_op(name, dims, LISTS) is None  # the element size is unknown


def test_another_input_gives_a_tensor_list_its_element_type() -> None:
    assert (
        recorded_op("fsdp::all_gather_copy_in", [WEIGHTS, [160], []], ["TensorList", "float", ""]).bytes == 2 * 40 * 4
    )
    padded = recorded_op("fsdp::chunk_cat", [WEIGHTS, [], [], [4, 12]], ["TensorList", "Scalar", "Scalar", "float"])
    assert padded.bytes == (40 + 48) * 4
    apart = recorded_op("fsdp::split_with_sizes_copy", [[4, 10], [], [], WEIGHTS], ["float", "", "", "TensorList"])
    assert apart.bytes == 2 * 40 * 4


def test_lists_that_were_not_recorded_have_no_cost() -> None:
    assert recorded_op("aten::_fused_adamw_", [[]] * 6, LISTS, lists="float") is None
    assert recorded_op("aten::_fused_adamw_", [WEIGHTS, [[4, 8]], WEIGHTS, WEIGHTS], LISTS, lists="float") is None
    assert recorded_op("aten::cat", [[], []], LISTS, lists="float") is None


@pytest.mark.parametrize(
    ("kernel", "element"),
    [
        ("void at::native::CatArrayBatchedCopy_contig<OpaqueType<2u>, unsigned int, 3>(...)", "c10::BFloat16"),
        ("void at::native::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<4u>, int>", "float"),
        ("multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4, (ADAM_MODE)1>>", "float"),
        ("multi_tensor_apply_kernel<..., BinaryOpListAlphaFunctor<c10::BFloat16, 2, 2, 0>, std::plus<float> >",
         "c10::BFloat16"),
        ("elementwise_kernel", ""),
    ],
)  # fmt: skip
def test_kernel_names_determine_the_element_type(kernel: str, element: str) -> None:
    assert bandwidth.element_type(kernel) == element


@pytest.mark.parametrize("name", ["aten::view", "aten::t", "aten::empty_strided", "aten::slice", "aten::to"])
def test_views_and_allocations_cost_nothing(name: str) -> None:
    op_cost = cost(name, [[4, 8]])
    assert op_cost is not None
    assert (op_cost.family, op_cost.flop, op_cost.bytes) == (Family.NOTHING, 0.0, 0.0)
    assert cost(name, []) == op_cost


def test_scatter_index_put_sort_and_embedding_backward_have_their_bytes() -> None:
    def moved(name: str, dims: list[Any], types: list[str], values: list[str] | None = None) -> float:
        moved_bytes: float = recorded_op(name, dims, types, values=values).bytes
        return moved_bytes

    float_long = ["float", "Scalar", "long int", "float"]
    assert moved("aten::scatter_add_", [[100], [], [6], [6]], float_long) == 3 * 6 * 4 + 6 * 8
    assert moved("aten::_index_put_impl_", [[100, 8], [], [3, 8]], ["float", "", "float"]) == 2 * 24 * 4
    assert moved("aten::sort", [[10], [], []], ["float", "Scalar", "Scalar"]) == 2 * 40 + 80
    table = moved("aten::embedding_dense_backward", [[2, 3, 8], [2, 3], []], ["float", "long int"], ["", "", "50"])
    assert table == 48 * 4 + 6 * 8 + 50 * 8 * 4


@pytest.mark.parametrize("name", ["aten::grouped_mm", "aten::_scaled_grouped_mm_v2"])
def test_grouped_products_cost_the_same_under_every_name(name: str) -> None:
    assert cost(name, [[12, 8], [3, 8, 5], [3]]) == cost("aten::_grouped_mm", [[12, 8], [3, 8, 5], [3]])
