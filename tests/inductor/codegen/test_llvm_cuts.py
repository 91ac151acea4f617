"""Concatenations, paddings, rolls and flips on the CPU: equal to eager at every element, for odd sizes and all dims."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from braze.autograd import partition, trace_joint
from braze.config import Config
from braze.inductor.codegen import compile_program, emit_llvm
from braze.inductor.fuse import fuse
from braze.inductor.loops import Kernel, Program, lower
from braze.ir import type_of
from braze.prims import decompose

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def values(rng: random.Random, sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(rng.randrange(1 << 30))
    t = torch.randn(sizes) * 50
    return t > 0 if dtype == torch.bool else t.abs().to(dtype)


def move(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    """A random rearrangement of x."""
    d = rng.randrange(x.dim())
    n = x.shape[d]
    kind = rng.choice(("cat", "flip", "roll", "pad", "slice", "edges", "step"))
    if kind == "cat":
        k = rng.randint(1, n)
        return torch.cat((x.narrow(d, 0, k), x, x.narrow(d, n - k, k)), d)
    if kind == "flip":
        return x.flip(d)
    if kind == "roll":
        return x.roll(rng.randint(-n, n), d)
    if kind == "pad":
        pads = [rng.randint(0, 3) for _ in range(2 * x.dim())]
        return F.pad(x, pads, value=1)
    if kind == "step":
        return x.narrow(d, 0, n)[(slice(None),) * d + (slice(None, None, 2),)]
    if kind == "edges" and x.dim() == 3 and x.is_floating_point() and x.dtype != torch.bfloat16:
        low, high = rng.randint(0, min(3, x.shape[-1] - 1)), rng.randint(0, min(3, x.shape[-1] - 1))
        return F.pad(x, (low, high), mode=rng.choice(("reflect", "replicate")))
    return x.narrow(d, 0, max(n - 1, 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_moves(dtype: torch.dtype) -> None:
    for seed in range(16):
        rng = random.Random(seed)
        x = values(rng, [rng.choice((1, 2, 3, 7)), rng.choice((1, 5, 8)), rng.choice((1, 3, 17, 40, 67, 130))], dtype)

        def fn(x: torch.Tensor, seed: int = seed) -> Any:
            rng = random.Random(seed)
            for _ in range(4):
                x = move(rng, x)
            return x.clone(), torch.cat((x, x * 1), rng.randrange(x.dim()))

        got = compile_program(program_of(fn, x), Config(disk_cache=False))([x])
        for g, w in zip(got, fn(x)):
            assert torch.equal(g, w) and g.dtype == w.dtype, seed


def program_of(fn: Callable[..., Any], *inputs: torch.Tensor) -> Program:
    return fuse(lower(decompose(partition(trace_joint(fn, [type_of(t) for t in inputs])).forward)))


def text_of(fn: Callable[..., Any], *inputs: torch.Tensor) -> str:
    return "\n".join(emit_llvm(k) for k in program_of(fn, *inputs).steps if isinstance(k, Kernel))


def test_a_concatenation_has_no_masked_load() -> None:
    a, b = torch.randn(16, 64), torch.randn(16, 64)
    assert "masked.load" not in text_of(lambda x, y: torch.cat((x, y), -1), a, b)
    assert "masked.load" not in text_of(lambda x, y: torch.cat((x, y), 0) * 2, a, b)
    assert "masked.load" not in text_of(lambda x: x.roll((3, 5), (0, 1)), torch.randn(16, 8, 128))


def test_a_flip_is_one_load() -> None:
    text = text_of(lambda x: x.flip(-1) + 1, torch.randn(16, 64))
    assert "insertelement" not in text and "gather" not in text
