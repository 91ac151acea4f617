"""A backward as a chain of autograd nodes, one for each stage."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from braze.ir import OutputSpec, SavedRef, Signature, tensor_type
from braze.runtime.autograd_node import make_autograd_callable

ROWS, COLUMNS = 4, 3


def weighted(grad_strides: tuple[int, ...]) -> Any:
    """y = a * b * x of columns a and b with dims of size 1, whose gradients come in two stages, with these strides."""

    def forward(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
        return (a.view(ROWS, 1) * b.view(ROWS, 1) * x,)

    def stages(first: int, rest: int) -> Any:
        def run(args: list[torch.Tensor]) -> Iterator[list[Any]]:
            a, b, x, g = args
            args.clear()
            sums = (g * x).sum(1)
            yield [(sums * b.view(ROWS)).as_strided((ROWS, 1, 1), grad_strides)]
            yield [(sums * a.view(ROWS)).as_strided((ROWS, 1, 1), grad_strides), None]

        return run, [(0,), (1, 2)]

    def backward(*args: Any) -> Any:
        raise AssertionError("under DDP the stages run")

    thunk = partial(backward)
    thunk.stages = stages  # type: ignore[attr-defined]
    sig = Signature(
        n_inputs=3,
        n_results=1,
        outputs=(OutputSpec("result", 0),),
        result_grads=(True,),
        saved=tuple(SavedRef("input", i) for i in range(3)),
        tangents=(tensor_type((ROWS, COLUMNS)),),
        input_grads=(True, True, False),
    )
    return make_autograd_callable(forward, lambda: thunk, sig)


@pytest.mark.parametrize("strides", [(1, 1, 1), (1, ROWS, ROWS), (1, 1, ROWS)])
def test_gradients_have_their_parameters_strides(monkeypatch: pytest.MonkeyPatch, strides: tuple[int, ...]) -> None:
    monkeypatch.setattr("braze.runtime.autograd_node.active_ddp", lambda: object())
    call = weighted(strides)
    a, b = (torch.nn.Parameter(torch.randn(ROWS, 1, 1)) for _ in range(2))
    x = torch.randn(ROWS, COLUMNS)
    call(a, b, x)[0].square().sum().backward()
    for p, other in ((a, b), (b, a)):
        want = 2 * (p.detach().view(ROWS) * (other.detach().view(ROWS) ** 2) * x.square().sum(1))
        assert p.grad is not None and p.grad.stride() == p.stride()
        torch.testing.assert_close(p.grad.view(ROWS), want)
