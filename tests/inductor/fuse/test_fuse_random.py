"""Random graphs mean the same after lowering, after fusion under several devices' traits, and after planning."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from random_graphs import RandomGraph

from braze.inductor.fuse import CPU, CUDA, fuse, plan
from braze.inductor.loops import Kernel, canonical, interpret_program, lower, verify_kernel, verify_program
from braze.ir import interpret

TRAITS = {
    "cpu": CPU,
    "splits and pieces": replace(CPU, split_points=8, split_pieces=1, parallel_rows=8, min_chunk=2),
    "short rows": replace(CPU, row_bytes=64, split_points=10, min_chunk=2),
    "short axes": replace(CPU, split_points=8, fold_rows=1, short_axis=64),
    "columns that store": replace(CUDA, split_points=8, parallel_rows=4, line_elems=2, min_chunk=2),
    "wide machine, free arithmetic": replace(
        CUDA, split_points=4, parallel_rows=1000, line_elems=1, flop_bytes=0, min_chunk=2
    ),
}


@pytest.mark.parametrize("size, seeds", [(12, range(60)), (30, range(100, 125)), (60, range(200, 206))])
def test_random_graphs(size: int, seeds: range) -> None:
    for seed in seeds:
        run(seed, size)


@pytest.mark.slow
def test_more_random_graphs() -> None:
    for seed in range(1000, 2000):
        run(seed, 20)


def run(seed: int, size: int) -> None:
    graph, inputs = RandomGraph(seed).make(size)
    want = interpret(graph, inputs)
    lowered = verify_program(lower(graph))
    compare(f"lowered {seed}", want, interpret_program(lowered, inputs))
    for name, traits in TRAITS.items():
        program = verify_program(plan(verify_program(fuse(lowered, traits))))
        for k in program.steps:
            if isinstance(k, Kernel):
                verify_kernel(canonical(k).kernel)
        before = [t.clone() for t in inputs]
        compare(f"{name} {seed}", want, interpret_program(program, inputs))
        assert all(torch.equal(a, b) for a, b in zip(before, inputs)), f"{name} {seed} wrote to an input"


def compare(what: str, want: list[torch.Tensor], got: list[torch.Tensor]) -> None:
    for w, g in zip(want, got):
        assert w.shape == g.shape, what
        torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-9, equal_nan=True, msg=lambda m: f"{what}: {m}")
