"""torch's operator samples, forward and backward, through the whole back half: primitives, loops, fusion, CPU code.

The front half (capture, autograd) has its own tests; here eager's own ATen calls are recorded, compiled and compared.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

from braze.errors import Unsupported
from braze.inductor.codegen.program import compile_program
from braze.inductor.fuse import fuse, plan
from braze.inductor.loops import lower
from braze.prims import decompose

sys.path.insert(0, str(Path(__file__).parent.parent / "prims"))
import opinfo  # noqa: E402

# Random in a way that no tag shows, unique up to a sign only, or casts whose rounding a fused kernel may skip.
LEFT_OUT = ("bernoulli", "fractional_max_pool", "_lowrank", "multinomial", "normal", "rand", "to_sparse", "chalf")
CASTS = ("bfloat16", "half")


def check(case: opinfo.Case) -> str:
    if any(x.layout != torch.strided or x.is_quantized or x.is_conj() for x in case.inputs):
        return "layout"
    found = case.traced()
    if isinstance(found, str):
        return found
    graph, want = found
    try:
        call = compile_program(plan(fuse(lower(decompose(graph))))).call
    except Unsupported as e:
        return f"unsupported: {e.what}"
    got = tree_flatten(call(list(case.inputs)))[0]
    exact: list[Any] = []
    for i, (w, g) in enumerate(zip(want, got)):
        if isinstance(w, torch.Tensor):
            assert g.dtype == w.dtype and g.shape == w.shape, (i, g.dtype, w.dtype, g.shape, w.shape)
            if not opinfo.close(g, w):
                wide = [x.double() if x.is_floating_point() else x for x in case.inputs]
                exact = exact or tree_flatten(case(*wide))[0]
                opinfo.compare(g, w, exact[i], i)
    return "ok"


def run(dtype: torch.dtype, limit: int, backward: bool) -> Counter[str]:
    failures: list[str] = []
    outcomes: Counter[str] = Counter()
    for name, op in opinfo.TABLE.items():
        if dtype not in op.supported_dtypes("cpu") or any(r in name for r in LEFT_OUT) or name in CASTS:
            continue
        for i, sample in enumerate(opinfo.samples(op, dtype, limit)):
            try:
                outcomes[check(opinfo.Case(op, sample, backward and op.supports_autograd))] += 1
            except NotImplementedError:  # eager itself cannot
                continue
            except Exception as e:
                failures.append(f"{name} {dtype} sample {i}: {sample.summary()}\n{type(e).__name__}: {e}")
    assert not failures, "\n".join(failures)
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "limit", "backward"),
    [
        (torch.float32, 6, True),
        (torch.float64, 2, True),
        (torch.bfloat16, 3, False),
        (torch.int64, 3, False),
        (torch.bool, 3, False),
    ],
    ids=lambda x: str(x).removeprefix("torch."),
)
def test_operators(dtype: torch.dtype, limit: int, backward: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = run(dtype, limit, backward)
    print("\n", dict(outcomes))
    assert outcomes["ok"] > 700
