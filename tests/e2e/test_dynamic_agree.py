"""Sizes that must agree: a program compiled for symbolic ones raises, or compiles again, where they do not.

A kernel that took one size for another would read beyond the end of a tensor.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze

R = torch.randn


def I(*sizes: int, hi: int = 5) -> torch.Tensor:  # noqa: E743
    return torch.randint(0, hi, sizes)


# name -> (function, its arguments for the sizes n and m: equal ones fit)
CASES: dict[str, tuple[Any, Any]] = {
    "mm": (lambda x, w: x @ w + 1, lambda n, m: (R(4, n), R(m, 3))),
    "bmm": (lambda x, w: torch.bmm(x, w) + 1, lambda n, m: (R(2, 4, n), R(2, m, 3))),
    "bmmb": (lambda x, w: torch.bmm(x, w) + 1, lambda n, m: (R(n, 4, 3), R(m, 3, 3))),
    "matmul4": (lambda x, w: x @ w + 1, lambda n, m: (R(n, 2, 4, 3), R(m, 2, 3, 3))),
    "mv": (lambda x, w: x @ w + 1, lambda n, m: (R(4, n), R(m))),
    "dot": (lambda x, w: torch.dot(x, w) + 1, lambda n, m: (R(n), R(m))),
    "addmm": (lambda b, x, w: torch.addmm(b, x, w) + 1, lambda n, m: (R(n), R(4, 3), R(3, m))),
    "linear": (lambda x, w, b: F.linear(x, w, b) * 2, lambda n, m: (R(4, 3), R(n, 3), R(m))),
    "linear2": (lambda x, w: F.linear(x, w) * 2, lambda n, m: (R(4, n), R(3, m))),
    "add": (lambda x, w: x + w, lambda n, m: (R(n, 3), R(m, 3))),
    "where": (lambda c, x, w: torch.where(c > 0, x, w), lambda n, m: (R(n, 3), R(m, 3), R(n, 3))),
    "cat": (lambda x, w: torch.cat([x, w], 0) * 2, lambda n, m: (R(2, n), R(3, m))),
    "cat1": (lambda x, w: torch.cat([x, w], 1) * 2, lambda n, m: (R(n, 2), R(m, 3))),
    "stack": (lambda x, w: torch.stack([x, w]) * 2, lambda n, m: (R(3, n), R(3, m))),
    "ln": (lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b), lambda n, m: (R(3, n), R(m), R(m))),
    "ln2": (lambda x, w: F.layer_norm(x, (w.shape[0],), w), lambda n, m: (R(3, n), R(m))),
    "rms": (lambda x, w: F.rms_norm(x, (w.shape[0],), w), lambda n, m: (R(3, n), R(m))),
    "bn": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), lambda n, m: (R(3, n, 4), R(m), R(m))),
    "bn_eval": (lambda x, w, b: F.batch_norm(x, w, b.abs(), None, None, False), lambda n, m: (R(3, n, 4), R(m), R(m))),
    "gn": (lambda x, w, b: F.group_norm(x, 2, w, b), lambda n, m: (R(3, 2 * n, 4), R(2 * m), R(2 * m))),
    "ce": (lambda x, t: F.cross_entropy(x, t), lambda n, m: (R(n, 5), I(m))),
    "nll": (lambda x, t: F.nll_loss(x, t), lambda n, m: (R(n, 5), I(m))),
    "cew": (lambda x, t, w: F.cross_entropy(x, t, w), lambda n, m: (R(4, n), I(4, hi=2), R(m).abs())),
    "mse": (lambda x, t: F.mse_loss(x, t), lambda n, m: (R(n, 5), R(m, 5))),
    "bce": (lambda x, t: F.binary_cross_entropy_with_logits(x, t), lambda n, m: (R(n, 5), R(m, 5))),
    "kl": (lambda x, t: F.kl_div(x, t), lambda n, m: (R(n, 5), R(m, 5))),
    "gather": (lambda x, t: x.gather(0, t) * 2, lambda n, m: (R(3, n), I(2, m, hi=3))),
    "scatter": (lambda x, t, s: x.scatter(0, t, s) * 2, lambda n, m: (R(3, n), I(2, m, hi=3), R(2, m))),
    "scatter2": (lambda x, t, s: x.scatter(0, t, s) * 2, lambda n, m: (R(3, 40), I(2, n, hi=3), R(2, m))),
    "scatter_add": (lambda x, t, s: x.scatter_add(0, t, s) * 2, lambda n, m: (R(3, 40), I(2, n, hi=3), R(2, m))),
    "index_add": (lambda x, t, s: x.index_add(0, t, s) * 2, lambda n, m: (R(6, 4), I(n), R(m, 4))),
    "index_add2": (lambda x, t, s: x.index_add(0, t, s) * 2, lambda n, m: (R(6, n), I(3), R(3, m))),
    "index_copy": (lambda x, t, s: x.index_copy(0, t, s) * 2, lambda n, m: (R(600, 4), torch.arange(n), R(m, 4))),
    "index_put": (lambda x, t, s: x.index_put((t,), s) * 2, lambda n, m: (R(600, 4), torch.arange(n), R(m, 4))),
    "index2": (lambda x, a, b: x[a, b] * 2, lambda n, m: (R(6, 6), I(n), I(m))),
    "setitem": (lambda x, s: x.clone().__setitem__(slice(0, s.shape[0]), s + 1), lambda n, m: (R(n, 4), R(m, 4))),
    "copy_": (lambda x, s: x.clone().copy_(s) * 2, lambda n, m: (R(n, 4), R(m, 4))),
    "masked_fill": (lambda x, s: x.masked_fill(s > 0, 1.0) * 2, lambda n, m: (R(n, 4), R(m, 4))),
    "masked_scatter_like": (lambda x, s: torch.lerp(x, s, 0.5), lambda n, m: (R(n, 4), R(m, 4))),
    "addcmul": (lambda x, s: torch.addcmul(x, s, s), lambda n, m: (R(n, 4), R(m, 4))),
    "view": (lambda x, s: x.view(s.shape[0], 4) * 2, lambda n, m: (R(n * 4), R(m))),
    "expand": (lambda x, s: x.expand(s.shape[0], 4) * 2, lambda n, m: (R(n, 4), R(m))),
    "sdpa_b": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v) * 2,
        lambda n, m: (R(n, 2, 5, 4), R(m, 2, 5, 4), R(m, 2, 5, 4)),
    ),
    "sdpam": (
        lambda q, k, v, k2: F.scaled_dot_product_attention(q, k, v, attn_mask=k2) * 2,
        lambda n, m: (R(1, 2, 5, 4), R(1, 2, n, 4), R(1, 2, n, 4), R(5, m)),
    ),
    "conv": (lambda x, w: F.conv2d(x, w) * 2, lambda n, m: (R(2, n, 5, 5), R(3, m, 3, 3))),
    "convb": (lambda x, w, b: F.conv2d(x, w, b) * 2, lambda n, m: (R(2, 3, 5, 5), R(n, 3, 3, 3), R(m))),
    "prelu": (lambda x, w: F.prelu(x, w) * 2, lambda n, m: (R(2, n), R(m))),
    "baddbmm": (lambda x, a, b: torch.baddbmm(x, a, b) * 2, lambda n, m: (R(n, 3, 3), R(m, 3, 3), R(m, 3, 3))),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b) * 2, lambda n, m: (R(3, n), R(m, 3))),
    "einsum2": (lambda a, b: torch.einsum("bij,bjk->bik", a, b) * 2, lambda n, m: (R(n, 3, 3), R(m, 3, 3))),
    "split": (lambda x, s: x.split([s.shape[0], 3], 0)[0] * 2, lambda n, m: (R(n + 3, 4), R(m))),
    "narrow": (lambda x, s: x.narrow(0, 0, s.shape[0]) * 2, lambda n, m: (R(n, 4), R(m))),
    "select": (lambda x, s: x.select(0, s.shape[0] - 1) * 2, lambda n, m: (R(n, 4), R(m))),
    "idxint": (lambda x, s: x[s.shape[0] - 1] * 2, lambda n, m: (R(n, 4), R(m))),
    "mul_": (lambda x, s: x.clone().mul_(s), lambda n, m: (R(n, 4), R(m, 4))),
    "cdist": (lambda x, s: torch.cdist(x, s) * 2, lambda n, m: (R(3, n), R(4, m))),
    "cosine": (lambda x, s: F.cosine_similarity(x, s) * 2, lambda n, m: (R(3, n), R(3, m))),
    "outer": (lambda x, s: torch.outer(x, s) * 2, lambda n, m: (R(n), R(m))),
    "pad": (lambda x, s: F.pad(x, (0, s.shape[0])) * 2, lambda n, m: (R(n, 4), R(m))),
    "repeat": (lambda x, s: x.repeat(s.shape[0], 1) * 2, lambda n, m: (R(n, 4), R(m))),
    "arange": (lambda x, s: torch.arange(s.shape[0]) + x[:, 0], lambda n, m: (R(n, 4), R(m))),
    "tril": (lambda x, s: x.tril(s.shape[0] - 3) * 2, lambda n, m: (R(n, n), R(m))),
    "roll": (lambda x, s: x.roll(s.shape[0]) * 2, lambda n, m: (R(n, 4), R(m))),
    "unfold": (lambda x, s: x.unfold(0, 2, 1).sum(-1) * 2 + s.sum(), lambda n, m: (R(n, 4), R(m))),
    "chunk": (lambda x, s: x.chunk(2, 0)[0] * s.sum(), lambda n, m: (R(n, 4), R(m))),
    "topk": (lambda x, s: x.topk(s.shape[0])[0] * 2, lambda n, m: (R(4, n), R(m))),
    "cumsum": (lambda x, s: x.cumsum(0) * s, lambda n, m: (R(n, 4), R(m, 4))),
    "interp": (lambda x, s: F.interpolate(x, size=(s.shape[0], 7)) * 2, lambda n, m: (R(1, 2, n, 4), R(m))),
    "pool": (lambda x, s: F.max_pool2d(x, 2) * s.sum(), lambda n, m: (R(1, 2, n, 4), R(m))),
    "apool": (lambda x, s: F.adaptive_avg_pool2d(x, 2) * s.sum(), lambda n, m: (R(1, 2, n, 4), R(m))),
    "avgp": (lambda x, s: F.avg_pool2d(x, 3, 2, 1) * s.sum(), lambda n, m: (R(1, 2, n, 4), R(m))),
    "var": (lambda x, s: x.var(0) * s.std(), lambda n, m: (R(n, 4), R(m))),
    "mean": (lambda x, s: x.mean(0) * s.mean(), lambda n, m: (R(n, 4), R(m))),
    "argmax": (lambda x, s: x.argmax() + s.argmax(), lambda n, m: (R(n, 4), R(m))),
    "onehot": (lambda x, s: F.one_hot(s, 5) * 2 + x.sum(), lambda n, m: (R(n, 4), I(m))),
    "flip": (lambda x, s: x.flip(0) * s.flip(0), lambda n, m: (R(n, 4), R(m, 4))),
    "sort": (lambda x, s: x.sort(0)[0] * s, lambda n, m: (R(n, 4), R(m, 4))),
    "diag": (lambda x, s: torch.diag_embed(x) * s.sum(), lambda n, m: (R(n, 4), R(m))),
    "diagonal": (lambda x, s: x.diagonal() * s.sum(), lambda n, m: (R(n, n), R(m))),
    "meshgrid": (lambda x, s: sum(torch.meshgrid(x, s, indexing="ij")), lambda n, m: (R(n), R(m))),
    "tensordot": (lambda x, s: torch.tensordot(x, s, 1), lambda n, m: (R(4, n), R(m, 3))),
    "full": (lambda x, s: torch.full((s.shape[0],), s.shape[0]) + x.sum(), lambda n, m: (R(n), R(m))),
    "new": (lambda x, s: x.new_zeros(s.shape[0], 3) + s[:, None], lambda n, m: (R(n), R(m))),
    "rep_int": (lambda x, s: x.repeat_interleave(2, 0) + s.sum(), lambda n, m: (R(n, 3), R(m))),
    "sl": (lambda x, s: x[1 : s.shape[0] - 1] * 2, lambda n, m: (R(n, 3), R(m))),
    "slneg": (lambda x, s: x[-s.shape[0] :] * 2, lambda n, m: (R(n, 3), R(m))),
    "slstep": (lambda x, s: x[::2] * s.sum(), lambda n, m: (R(n, 3), R(m))),
    "ctc": (lambda x, s: torch.logsumexp(x, 0) * s.sum(), lambda n, m: (R(n, 3), R(m))),
    "glu": (lambda x, s: F.glu(x, 0) * s.sum(), lambda n, m: (R(2 * n, 3), R(m))),
    "pixshuf": (lambda x, s: F.pixel_shuffle(x, 2) * s.sum(), lambda n, m: (R(1, 4, n, 3), R(m))),
    "mha": (
        lambda x, s: (
            F.multi_head_attention_forward(
                x,
                x,
                x,
                4,
                2,
                torch.ones(12, 4),
                torch.ones(12),
                None,
                None,
                False,
                0.0,
                torch.ones(4, 4),
                torch.ones(4),
            )[0]
            * s.sum()
        ),
        lambda n, m: (R(n, 2, 4), R(m)),
    ),
}


def probe(f: Any, args: tuple[Any, ...]) -> Any:
    try:
        return f(*args)
    except Exception as e:
        return e


def check(name: str, dynamic: bool | None) -> None:
    f, make = CASES[name]
    g = braze.compile(f, dynamic=dynamic)
    for n, m in [(6, 6), (9, 9), (7, 7), (6, 9), (9, 6), (31, 17), (12, 12)]:
        torch.manual_seed(n * 100 + m)
        args = make(n, m)
        want, got = probe(f, args), probe(g, args)
        assert isinstance(want, Exception) == isinstance(got, Exception), (n, m, want, got)
        if not isinstance(want, Exception):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.filterwarnings("ignore:braze could not compile")
@pytest.mark.parametrize("name", CASES)
def test_sizes_that_must_agree(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        check(name, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_sizes_that_have_changed(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        check(name, None)
