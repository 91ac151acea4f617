"""``parallelize_module`` and DTensors in compiled functions: one graph, eager's values and gradients."""

from __future__ import annotations

import os

import pytest
from ranks import Ranks
from tensor_parallel_cases import FUNCTIONS, PLANS

slow = pytest.mark.slow
pytestmark = pytest.mark.skipif(
    os.environ.get("BRAZE_TENSOR_PARALLEL") != "1", reason="DTensors are captured with BRAZE_TENSOR_PARALLEL=1"
)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("plan", list(PLANS))
def test_a_decoder_trains_in_one_graph(ranks2: Ranks, plan: str, bf16: bool) -> None:
    for collectives in ranks2.run("tensor_parallel_cases", "decoder", plan=plan, bf16=bf16, checkpointed=False):
        expected = ["all_reduce"] if plan == "replicated" else ["all_gather_into_tensor", "reduce_scatter_tensor"]
        assert set(expected) <= set(collectives), collectives


@pytest.mark.parametrize("plan", list(PLANS))
def test_with_activation_checkpoints(ranks2: Ranks, plan: str) -> None:
    ranks2.run("tensor_parallel_cases", "decoder", plan=plan, bf16=False, checkpointed=True)


@slow
@pytest.mark.parametrize("plan", list(PLANS))
def test_on_four_ranks(ranks4: Ranks, plan: str) -> None:
    ranks4.run("tensor_parallel_cases", "decoder", plan=plan, bf16=False, checkpointed=False)


@pytest.mark.parametrize("plan, how", [("replicated", "after"), ("sequence", "before")])
def test_layers_under_fsdp_on_a_mesh_of_two_dims(ranks4: Ranks, plan: str, how: str) -> None:
    assert ranks4.run("tensor_parallel_cases", "two_dimensions", plan=plan, how=how) == [1] * 4


@pytest.mark.parametrize("differentiate", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_functions_of_dtensors(ranks2: Ranks, name: str, differentiate: bool) -> None:
    graphs = ranks2.run("tensor_parallel_cases", "function_equals_eager", name=name, differentiate=differentiate)
    assert graphs == ([2, 2] if name == "broken" else [1, 1])


def test_placements_are_guarded(ranks2: Ranks) -> None:
    assert ranks2.run("tensor_parallel_cases", "placements_are_guarded") == [3, 3]


def test_batches_of_different_sizes(ranks2: Ranks) -> None:
    ranks2.run("tensor_parallel_cases", "batches_of_different_sizes")


def test_dtensors_leave_a_module(ranks2: Ranks) -> None:
    ranks2.run("tensor_parallel_cases", "output_layouts")


def test_random_numbers_in_a_dtensor_break_with_a_reason(ranks2: Ranks) -> None:
    for reasons in ranks2.run("tensor_parallel_cases", "dropout_breaks"):
        assert any("DTensor" in r for r in reasons), reasons


@pytest.mark.parametrize("how, plan", [("eager", "replicated"), ("refuses", "replicated"), ("refuses", "sequence")])
def test_one_rank_is_not_compiled(ranks2: Ranks, how: str, plan: str) -> None:
    ranks2.run("tensor_parallel_cases", "one_rank_differs", how=how, plan=plan)


def test_one_rank_compiles_20_seconds_late(ranks2: Ranks) -> None:
    seconds = ranks2.run("tensor_parallel_cases", "one_rank_differs", how="late", plan="sequence", seconds=20.0)
    assert min(seconds) >= 20.0


@slow
def test_a_killed_rank_ends_the_others() -> None:
    pool = Ranks(2, patience=40)
    try:
        pool.start()
        answers = pool.answers("tensor_parallel_cases", "dies", timeout=200, at=2)
        assert answers[1] == ("died", 9)
        assert answers[0][0] == "failed" and "gloo" in answers[0][1].lower(), answers
    finally:
        pool.stop()
