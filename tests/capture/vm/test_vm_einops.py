"""einops: captured whole, the first time as well as with einops' own caches filled, and with symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from vm_public import check

import braze
from braze.api import log_of

pytest.importorskip("einops", minversion="0.8")

from einops import einsum, pack, parse_shape, rearrange, reduce, repeat, unpack  # noqa: E402
from einops.layers.torch import EinMix, Rearrange, Reduce  # noqa: E402

X = torch.arange(24.0).reshape(2, 3, 4) + 1


def attention(x: torch.Tensor) -> torch.Tensor:
    q, k, v = rearrange(x.repeat(1, 1, 6), "b n (t h d) -> t b h n d", t=3, h=2).unbind(0)
    a = torch.softmax(einsum(q, k, "b h i d, b h j d -> b h i j"), -1)
    return rearrange(einsum(a, v, "b h i j, b h j d -> b h i d"), "b h n d -> b n (h d)")


def packing(x: torch.Tensor) -> Any:
    p, ps = pack([x, x[..., 0], x[:, :, :2]], "b h *")
    return p * 2, unpack(p + 1, ps, "b h *")


def sizes(x: torch.Tensor) -> Any:
    s = parse_shape(x, "b _ w")
    return repeat(x[:, 0], "b w -> b w c", c=s["b"]), s


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "flatten": lambda x: rearrange(x, "b h w -> b (h w)"),
    "split": lambda x: rearrange(x, "b (h k) w -> b h k w", k=3),
    "transpose": lambda x: rearrange(x, "b h w -> w h b"),
    "list": lambda x: rearrange([x, x * 2], "n b h w -> b (n h) w"),
    "ellipsis": lambda x: rearrange(x, "... h w -> ... (h w)"),
    "mean": lambda x: reduce(x, "b h w -> b h", "mean"),
    "keep": lambda x: reduce(x, "b h w -> () h ()", "max"),
    "pool": lambda x: reduce(x, "b h (w k) -> b w", "sum", k=2),
    "callable": lambda x: reduce(x, "b h w -> b", torch.logsumexp),
    "repeat": lambda x: repeat(x, "b h w -> b h w c", c=2),
    "repeat inside": lambda x: repeat(x, "b h w -> b (2 h) w"),
    "einsum": lambda x: einsum(x, x, "b h w, b k w -> b h k"),
    "sum of one": lambda x: einsum(x, "b h w -> b"),
    "pack": packing,
    "parse_shape": sizes,
    "attention": attention,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_functions(name: str) -> None:
    assert check(PROGRAMS[name], X, fullgraph=True) == []


def test_layers() -> None:
    layers = [Rearrange("b h w -> b (h w)"), nn.Linear(12, 4), Reduce("b (k j) -> b k", "mean", j=2)]
    model = nn.Sequential(*layers, EinMix("b k -> b c", weight_shape="k c", bias_shape="c", k=2, c=3))
    assert check(lambda m, x: m(x).sum(), model, X, fullgraph=True) == []


def test_errors() -> None:
    def wrong(x: torch.Tensor) -> Any:
        try:
            return rearrange(x, "b h -> h b")
        except Exception as e:
            return type(e).__name__, str(e)

    check(wrong, X)
    check(lambda x: rearrange(x * 2, "b (h k) w -> b h k w", k=2), X)  # 3 is no multiple of 2


def test_sizes_that_change_compile_twice() -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        return rearrange(x, "b (h k) w -> b h (k w)", k=2) * 2

    compiled = braze.compile(halves, backend="eager")
    for n in (4, 6, 8, 10, 12, 20):
        x = torch.randn(3, n, 4)
        assert torch.equal(compiled(x), halves(x))
    log = log_of(compiled)
    assert log is not None and len(log.graphs) == 2 and not log.breaks


def test_gradients() -> None:
    weight = torch.randn(4, 4, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return reduce(rearrange(x @ weight, "b h w -> h (b w)"), "h c -> ", "mean")

    (want,) = torch.autograd.grad(loss(X), weight)
    (got,) = torch.autograd.grad(braze.compile(loss)(X), weight)
    torch.testing.assert_close(got, want)
