"""Collectives in user code are nodes of the graph: eager's values and gradients, in order, beside other work."""

from __future__ import annotations

import pytest
from collective_cases import DIFFERENTIABLE, PLAIN
from ranks import Ranks


@pytest.mark.parametrize("name", [*DIFFERENTIABLE, *PLAIN])
def test_one_graph_equals_eager(ranks2: Ranks, name: str) -> None:
    ranks2.run("collective_cases", "equals_eager", name=name, differentiate=False, backend="inductor")


@pytest.mark.parametrize("name", list(DIFFERENTIABLE))
def test_gradients(ranks2: Ranks, name: str) -> None:
    ranks2.run("collective_cases", "equals_eager", name=name, differentiate=True, backend="inductor")


def test_call_by_call(ranks2: Ranks) -> None:
    ranks2.run("collective_cases", "equals_eager", name="many", differentiate=True, backend="aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(DIFFERENTIABLE))
def test_on_four_ranks(ranks4: Ranks, name: str) -> None:
    ranks4.run("collective_cases", "equals_eager", name=name, differentiate=True, backend="inductor")


def test_starts_keep_the_programs_order(ranks2: Ranks) -> None:
    """Those of ``w`` need nothing; each start takes the token of the one before."""
    for forward, *_ in ranks2.run(
        "collective_cases", "equals_eager", name="many", differentiate=False, backend="inductor"
    ):
        lines = [line.strip() for line in forward.splitlines() if "= start_all_reduce(" in line]
        assert len(lines) == 6
        for before, after in zip(lines, lines[1:]):
            token = before.split(" = ")[0].split(", ")[1]
            assert f"({token}," in after, forward


@pytest.mark.parametrize(
    "what, text", [("async", "async_op=True"), ("barrier", "barrier()"), ("differentiable", "grad")]
)
def test_breaks_with_a_reason(ranks2: Ranks, what: str, text: str) -> None:
    for reason in ranks2.run("collective_cases", "break_reason", what=what):
        assert text in reason, reason


def test_a_tensor_parallel_layer_is_one_graph(ranks2: Ranks) -> None:
    assert ranks2.run("collective_cases", "tensor_parallel") == [1, 1]


def test_a_step_that_averages_gradients_is_one_graph(ranks2: Ranks) -> None:
    assert ranks2.run("collective_cases", "averaged_step") == [1, 1]
