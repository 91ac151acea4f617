"""Matrix products with epilogues on a card: each form of tile against float64, and programs under max-autotune."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from test_triton_product import BF16, big, linear_gelu, operands, saved

import braze
from braze.config import Config
from braze.inductor.codegen.product_tiles import FORMS
from braze.inductor.codegen.triton_product import emit_product
from braze.inductor.codegen.triton_tiling import H200
from braze.runtime.cuda import load_later

pytestmark = pytest.mark.gpu


def test_every_form_of_tile() -> None:
    for m, n, k in ((256, 384, 192), (200, 136, 72)):
        x, w = torch.randn(m, k, device="cuda").to(BF16), (torch.randn(k, n, device="cuda") / k**0.5).to(BF16)
        p = x.double() @ w.double()
        wants = {"mm": p, "silu": F.silu(p)}
        kernel = big(m, n, k, BF16)
        waiting = {t: (e := emit_product(kernel, t, H200), load_later(e.code, 0, Config.from_env())) for t in FORMS}
        for tile, (made, wait) in waiting.items():
            run = wait(120.0)
            assert run is not None, tile
            memory: dict[Any, torch.Tensor] = {}
            for b in made.buffers:
                known = {"x": x, "w": w}.get(b.name[0])
                new = torch.full((m, n), float("nan"), dtype=b.type.dtype, device="cuda")
                memory[b] = new if known is None else known
            run(*(memory[b] for b in made.buffers))
            outs = [t for b, t in memory.items() if b in kernel.writes]
            assert len(outs) == 2
            for out in outs:
                errors = {name: float((out.double() - want).norm() / want.norm()) for name, want in wants.items()}
                assert min(errors.values()) < 3e-3, (tile, errors)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("fn", [linear_gelu, saved], ids=lambda f: f.__name__)
def test_max_autotune(fn: Any, graphs: bool) -> None:
    args = tuple(t.cuda() for t in operands(512, 256, 128, BF16))
    options = {"max_autotune": True, "cudagraphs": graphs, "disk_cache": False, "strict": True}
    compiled = braze.compile(fn, options=options)
    want = fn(*(t.double() for t in args))
    with torch.no_grad():
        for _ in range(4):
            got = compiled(*args)
            pairs = zip(got, want) if isinstance(got, tuple) else [(got, want)]
            assert all(float((a.double() - b).norm() / b.norm()) < 5e-3 for a, b in pairs)


def test_an_unaligned_address() -> None:
    """TMA wants multiples of 16 bytes: the vendor's way serves others."""
    compiled = braze.compile(linear_gelu, options={"max_autotune": True, "disk_cache": False, "strict": True})
    x, w, b, r = (t.cuda() for t in operands(512, 256, 128, BF16))
    with torch.no_grad():
        compiled(x, w, b, r)
        shifted = torch.zeros(x.numel() + 1, dtype=BF16, device="cuda")[1:].view_as(x).copy_(x)
        got = compiled(shifted, w, b, r)
    want = linear_gelu(*(t.double() for t in (x, w, b, r)))
    assert float((got.double() - want).norm() / want.norm()) < 5e-3
