"""Kernels for AArch64, compiled without such a machine: NEON vectors in the hot loops, no calls to libm."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from arm import neon

import braze
from braze.api import log_of
from braze.inductor.codegen.llvm_module import emit_source
from braze.inductor.loops import Kernel
from braze.runtime.cpu import assembly

CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], list[str]]] = {
    "gelu": (lambda x: F.gelu(x), (torch.ones(64, 256),), [r"fmla\s+v\d+\.4s", r"(ldp|ldr)\s+q", r"(stp|str)\s+q"]),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (256,), w, b),
        (torch.ones(64, 256), torch.ones(256), torch.ones(256)),
        [r"fadd\s+v\d+\.4s", r"fmul\s+v\d+\.4s", r"fsqrt"],
    ),
    "softmax": (lambda x: x.softmax(-1), (torch.ones(64, 256),), [r"fmax(nm)?\s+v\d+\.4s|fcmgt\s+v\d+\.4s"]),
    "double": (lambda x, y: x * y + 1, (torch.ones(4096).double(),) * 2, [r"\bf(mul|mla)\s+v\d+\.2d"]),
    "int64": (lambda x, y: (x + y) & 7, (torch.ones(4096).long(),) * 2, [r"\badd\s+v\d+\.2d", r"\band\s+v\d+\.16b"]),
    "bf16": (lambda x: (x * 2).relu(), (torch.ones(4096).bfloat16(),), [r"\bv\d+\.4s", r"\bv\d+\.(4|8)h"]),
    "column sums": (lambda x: x.sum(0), (torch.ones(512, 256),), [r"fadd\s+v\d+\.4s"]),
    "masked": (lambda x: F.pad(x, (1, 1)), (torch.ones(64, 255),), [r"(stp|str)\s+q"]),
}


@pytest.mark.parametrize("name", list(CASES))
def test_neon(name: str) -> None:
    fn, inputs, wanted = CASES[name]
    fast = braze.compile(fn, fullgraph=True)
    fast(*inputs)
    kernels = [s for s in log_of(fast).graphs[0].programs["forward"].steps if isinstance(s, Kernel)]
    text = "\n".join(assembly(emit_source(k, neon()).text, neon()) for k in kernels)
    for pattern in wanted:
        assert re.search(pattern, text), pattern
    assert not re.search(r"\bbl\s+(expf?|erff?|tanhf?|sqrtf?|fmaf?)\b", text)
