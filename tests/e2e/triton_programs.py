"""Programs that launch Triton kernels, on the CPU under Triton's interpreter: run as a script by test_triton_launch."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from torch.library import wrap_triton  # noqa: E402

import braze  # noqa: E402
from braze.api import log_of  # noqa: E402
from braze.fake.kernels import written  # noqa: E402


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    target = out + at
    tl.store(target, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def scale_kernel(x, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x += at
    tl.store(x, tl.load(x, mask=at < n) * factor, mask=at < n)


@triton.jit
def helper(pointer, at, value, mask):
    tl.store(pointer + at, value, mask=mask)


@triton.jit
def copy_kernel(src, dst, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    helper(dst, at, tl.load(src + at, mask=at < n), at < n)


def timed(call, quantiles):
    """In the place of Triton's benchmark, which needs a GPU."""
    call()
    return (1.0, 1.0, 1.0)


def pruned(configs, named_args, **kwargs):
    assert named_args["n"] > 0
    return configs[1:]


@triton.autotune([triton.Config({"BLOCK": b}) for b in (16, 64)], key=["n"], do_bench=timed)
@triton.jit
def tuned_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 3, mask=at < n)


@triton.autotune(
    [triton.Config({"BLOCK": b}) for b in (16, 32, 64)],
    ["n"],
    do_bench=timed,
    prune_configs_by={"early_config_prune": pruned},
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_by_rules_kernel(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + at, tl.load(x + at) + 1)
    else:
        tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@triton.heuristics({"BLOCK": lambda args: 16 if args["n"] < 200 else 128})
@triton.jit
def by_rule_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 3, mask=at < n)


def add(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=32)
    return out


def scaled(x):
    y = x + 1
    scale_kernel[(4,)](y, y.numel(), 2.5, BLOCK=32)
    return y * 2


def overwritten_input(x):
    scale_kernel[(4,)](x, x.numel(), 2.0, BLOCK=32)
    return x.sin()


def through_a_helper(x):
    out = torch.zeros_like(x)
    copy_kernel[(4,)](x * 2, out, x.numel(), BLOCK=32)
    return out + 1


def keywords(x):
    out = torch.empty_like(x)
    add_kernel[(4, 1, 1)](x=x, y=x, out=out, n=x.numel(), BLOCK=32)
    return out


def tuned(x):
    out = torch.empty_like(x)
    n = x.numel()
    tuned_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
    return out - 1


def tuned_by_rules(x):
    out = torch.empty_like(x)
    n = x.numel()
    tuned_by_rules_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
    return out.sin()


def by_rule(x):
    out = torch.empty_like(x)
    n = x.numel()
    by_rule_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]), 1)](x, out, n=n)
    return out + x


def wrapped(x):
    out = torch.empty_like(x)
    wrap_triton(add_kernel)[(4,)](x, x, out, x.numel(), BLOCK=32)
    return out * 2


@torch.library.triton_op("test_triton::sums", mutates_args={})
def sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 32),)](x, y, out, x.numel(), BLOCK=32)
    return out * 1


sums.register_autograd(lambda ctx, g: (g, g))


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        n = x.numel()
        tuned_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
        return out

    @staticmethod
    def backward(ctx, g):
        g, out = g.contiguous(), torch.empty_like(g)
        tuned_kernel[lambda meta: (triton.cdiv(g.numel(), meta["BLOCK"]),)](g, out, g.numel())
        return out


def beside_gradients(x, w):
    y = add(x * w.detach(), w.detach())
    return (y * w).sum()


def check(fn, *inputs, dynamic=None):
    mine, theirs = ([x.detach().clone().requires_grad_(x.requires_grad) for x in inputs] for _ in range(2))
    fast = braze.compile(fn, fullgraph=True, dynamic=dynamic)
    got, want = fast(*mine), fn(*theirs)
    torch.testing.assert_close(got, want, msg=lambda text: f"{fn.__name__}: {text}\n{got}\n{want}")
    if want.requires_grad:
        got.sum().backward()
        want.sum().backward()
        torch.testing.assert_close([x.grad for x in mine], [x.grad for x in theirs])
    torch.testing.assert_close(mine, theirs)
    (graph,) = log_of(fast).graphs
    assert not graph.fallback, (fn.__name__, graph.fallback)


x, y = torch.randn(100), torch.randn(100)
assert written(add_kernel) == {"out"} and written(scale_kernel) == {"x"} and written(tuned_kernel) == {"out"}
assert "dst" in written(copy_kernel)
check(lambda x, y: add(x * 2, y).sin(), x, y)
check(lambda x, y: add(x * 2, y).sin(), x, y, dynamic=True)
for program in (scaled, overwritten_input, through_a_helper, keywords, tuned, tuned_by_rules, by_rule, wrapped):
    check(program, x)
for program in (tuned, tuned_by_rules, by_rule):
    check(program, torch.randn(64), dynamic=True)
check(lambda x, y: sums(x * 2, y).sin(), x, y)
check(lambda x, y: sums(x * 2, y).sin(), x, y, dynamic=True)
check(lambda x, y: (sums(x.sin(), y) * y).sum(), x.clone().requires_grad_(), y.clone().requires_grad_())
check(lambda x: (Tripled.apply(x.sin()) * x).sum(), x.clone().requires_grad_())
check(lambda x: torch.autograd.grad(Tripled.apply(x.sin()).sum(), x)[0], x.clone().requires_grad_())
launch = triton.runtime.jit.KernelInterface.__getitem__
assert launch.__module__ == "triton.runtime.jit"  # put back after each trace
torch.testing.assert_close(sums(x, y), x + y)
check(beside_gradients, x, y.clone().requires_grad_())
print("done")
