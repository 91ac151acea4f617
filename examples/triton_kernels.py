"""Triton kernels in compiled code, three ways: launched directly, as a ``triton_op``, as a primitive's CUDA kernel.

    python examples/triton_kernels.py    # on a GPU, or on the CPU under Triton's interpreter

Each is one call of the graph; its neighbours fuse among themselves. ``docs/custom_operators.md`` has the rest.
"""

from __future__ import annotations

import os

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import braze  # noqa: E402


@triton.jit
def gated_kernel(x, gate, out, n, BLOCK: tl.constexpr):
    """out = x * gate, for gates above zero."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + at, mask=at < n)
    tl.store(out + at, tl.where(g > 0, tl.load(x + at, mask=at < n) * g, 0.0), mask=at < n)


def launch(x, gate):
    """The kernel, launched directly: autograd does not see it."""
    x, gate = x.contiguous(), gate.contiguous()
    out = torch.empty_like(x)
    gated_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, gate, out, x.numel(), BLOCK=256)
    return out


@torch.library.triton_op("examples::gated", mutates_args={})
def gated(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """The kernel as an operator of torch."""
    x, gate = x.contiguous(), gate.contiguous()
    out = torch.empty_like(x)
    torch.library.wrap_triton(gated_kernel)[(triton.cdiv(x.numel(), 256),)](x, gate, out, x.numel(), BLOCK=256)
    return out


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad):
    x, gate = ctx.saved_tensors
    return torch.where(gate > 0, grad * gate, 0), torch.where(gate > 0, grad * x, 0)


gated.register_autograd(_backward, setup_context=_save)


@braze.primitive(
    "examples::gated_primitive(Tensor x, Tensor gate) -> Tensor",
    derivative=lambda grad, x, gate: (torch.where(gate > 0, grad * gate, 0), torch.where(gate > 0, grad * x, 0)),
    cuda=launch,
)
def gated_primitive(x, gate):
    """The operator in plain torch, for other devices than CUDA."""
    return torch.where(gate > 0, x * gate, 0)


def main() -> None:
    x, gate = torch.randn(4, 1000, device=DEVICE), torch.randn(4, 1000, device=DEVICE)
    want = torch.where(gate > 0, x.sin() * gate, 0) * 2
    for op in (launch, gated, gated_primitive):
        fast = braze.compile(lambda x, gate, op=op: op(x.sin(), gate) * 2, fullgraph=True)
        torch.testing.assert_close(fast(x, gate), want)
        if op is not launch:
            a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
            fast(a, gate).sum().backward()
            (torch.where(gate > 0, b.sin() * gate, 0) * 2).sum().backward()
            torch.testing.assert_close(a.grad, b.grad)
    print("launched directly, as a triton_op, as a primitive: as in eager")


if __name__ == "__main__":
    main()
