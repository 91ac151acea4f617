"""Draws along the first block dim (sums over columns): the reference's bits, one Philox for four where four fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton_cases import Body
from triton_interpreter import Interpreter

from braze.inductor.codegen.triton_emit import Emitted, emit_triton
from braze.inductor.codegen.triton_random import _step
from braze.ir import floordiv, mod, symbol, symbol_of
from braze.prims import PRIMS

F32, I64 = torch.float32, torch.int64
SEED = torch.tensor([-(2**62) + 12345, 2**63 - 2])


def drawn(k: Body, index: Any) -> Any:
    s = k.buffer("s", (2,), I64)
    return k.compute("philox", k.load(s, 0), k.load(s, 1) + 5, k.index(index), dtype=F32)


def run(made: Emitted, k: Body, data: torch.Tensor, triton_run: Interpreter) -> torch.Tensor:
    memory = {b: torch.zeros([int(d) for d in b.type.sizes]) for b in k.buffers.values()}  # type: ignore[call-overload]
    memory[k.buffers["s"]], memory[k.buffers["a"]] = SEED, data
    triton_run.run(made, memory)
    return memory[k.buffers["o"]]


@pytest.mark.parametrize("rows, columns, few", [(300, 96, True), (70, 64, True), (300, 90, False), (9, 132, True)])
def test_sums_of_columns(rows: int, columns: int, few: bool, triton_run: Interpreter) -> None:
    """In loops (300 rows) and in registers."""
    k = Body({"j": columns}, {"i": rows})
    a, o = k.buffer("a", (rows, columns), F32), k.buffer("o", (columns,), F32)
    u = drawn(k, k["i"] * columns + k["j"])
    k.store(o, (k["j"],), k.fold("sum", k.load(a, k["i"], k["j"]) * u))
    made = emit_triton(k.kernel("k"))
    assert ("bz_uniform4_first(" in made.code.source) == few
    data = torch.randn(rows, columns)
    want = (PRIMS["philox_uniform"](SEED, 5, (rows, columns), torch.device("cpu")).double() * data).sum(0)
    torch.testing.assert_close(run(made, k, data, triton_run).double(), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("columns, few", [(48, True), (50, False)])
def test_partial_sums_of_columns(columns: int, few: bool, triton_run: Interpreter) -> None:
    """The rows in chunks: a chunk and a column are one axis of the program."""
    chunks, rows = 3, 140
    k = Body({"c": chunks, "j": columns}, {"i": rows})
    a, o = k.buffer("a", (chunks * rows, columns), F32), k.buffer("o", (chunks, columns), F32)
    at = k["c"] * rows + k["i"]
    u = drawn(k, at * columns + k["j"])
    k.store(o, (k["c"], k["j"]), k.fold("sum", k.load(a, at, k["j"]) * u))
    made = emit_triton(k.kernel("k"))
    assert ("bz_uniform4_first(" in made.code.source) == few
    data = torch.randn(chunks * rows, columns)
    draws = PRIMS["philox_uniform"](SEED, 5, (chunks * rows, columns), torch.device("cpu")).double()
    want = (draws * data).reshape(chunks, rows, columns).sum(1)
    torch.testing.assert_close(run(made, k, data, triton_run).double(), want, rtol=1e-5, atol=1e-4)


def test_steps_within_four() -> None:
    x, y, q = symbol("x", 0, 10**6), symbol("y", 0, 10**6), symbol("quarter", 0, 2**61)
    s = symbol_of(x)
    assert s is not None
    cases = {
        x + 7 * y: 1,
        2 * x: 2,
        y: 0,
        floordiv(x, 12): 0,
        mod(x, 12) + 96 * floordiv(x, 12): 1,
        floordiv(x, 6): None,
        mod(x, 6): None,
        mod(x + 2, 12): None,  # wraps within four
        mod(x + 4 * y, 12): 1,
        mod(floordiv(x, 12), 5): 0,
        x * y: None,
    }
    assert {e: _step(e, s, q) for e in cases} == cases
    for e, want in cases.items():
        if want == 1 and not e == x + 7 * y:
            from braze.ir import evaluate

            for first in range(0, 96, 4):
                values = [evaluate(e, {"x": first + j, "y": 3}) for j in range(4)]
                assert values == [values[0] + j for j in range(4)]
