"""A GPU program run whole without a card: its host text on CPU tensors, each kernel in Triton's interpreter, vendor
calls by ATen on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from triton_interpreter import Interpreter

from braze.inductor.codegen.host import HostWriter, scope
from braze.inductor.codegen.program import kernel_order
from braze.inductor.codegen.triton_emit import emit_triton
from braze.inductor.loops import Kernel, Program, canonical

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "gpu"))

import captured  # noqa: E402

aten = torch.ops.aten


class Simulated:
    """A program as a callable over the program's inputs (CPU tensors and integers)."""

    def __init__(self, program: Program, interpreter: Interpreter) -> None:
        writer = HostWriter(program, kernel_order)
        self.source = writer.write().replace("torch.device('cuda:0')", "torch.device('cpu')")
        kernels = [s for s in program.steps if isinstance(s, Kernel)]
        self.codes = {canonical(k).key: emit_triton(k).code for k in kernels}
        self.calls = 0

        def bound(code: Any) -> Any:
            def run(*args: Any) -> None:
                self.calls += 1
                interpreter.call(code, list(args[: code.pointers]), list(args[code.pointers :]))

            return run

        names = scope(writer, {key: bound(code) for key, code in self.codes.items()})
        for op, stand_in in STAND_INS.items():
            spelled = f"torch.ops.{op}("
            if spelled in self.source:
                name = "on_cpu_" + op.replace(".", "_")
                self.source, names[name] = self.source.replace(spelled, f"{name}("), stand_in
        exec(compile(self.source, f"<simulated {program.name}>", "exec"), names)
        self.run = names["call"]

    def __call__(self, inputs: Sequence[Any]) -> Any:
        with torch.no_grad():
            return self.run(list(inputs))


def attention(q: Any, k: Any, v: Any, p: float = 0.0, is_causal: bool = False, *args: Any, scale: Any = None) -> Any:
    """``_scaled_dot_product_flash_attention`` without dropout."""
    assert p == 0.0 and not any(args)
    score = (q.float() @ k.float().mT) * (scale or q.shape[-1] ** -0.5)
    if is_causal:
        score = score.masked_fill(torch.ones(score.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    out = _as_given((score.softmax(-1) @ v.float()).to(q.dtype), q)
    seed = torch.zeros(2, dtype=torch.int64)
    return out, score.logsumexp(-1), None, None, q.shape[2], k.shape[2], seed, torch.zeros(0), torch.zeros(0)


def attention_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, logsumexp: Any, *args: Any, scale: Any = None, **kwargs: Any
) -> Any:
    """``_scaled_dot_product_flash_attention_backward`` by autograd."""
    *_, is_causal, _seed, _offset = args
    with torch.enable_grad():
        leaves = [t.detach().float().requires_grad_() for t in (q, k, v)]
        a, b, c = leaves
        score = (a @ b.mT) * (scale or q.shape[-1] ** -0.5)
        if is_causal:
            score = score.masked_fill(torch.ones(score.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
        grads = torch.autograd.grad(score.softmax(-1) @ c, leaves, grad.float())
    return tuple(_as_given(g.to(t.dtype), t) for g, t in zip(grads, (q, k, v)))


def _as_given(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The vendor's kernel gives its results in the layout of the query."""
    return torch.empty_like(like, dtype=t.dtype).copy_(t)


STAND_INS = {
    "aten._scaled_dot_product_flash_attention.default": attention,
    "aten._scaled_dot_product_flash_attention_backward.default": attention_backward,
}


def simulate_training(
    parts: Sequence[captured.Part], values: dict[int, torch.Tensor], interpreter: Interpreter
) -> tuple[torch.Tensor, dict[int, torch.Tensor], list[Simulated]]:
    """Forward and backward of a loss, with tensors for the meta tensors of the capture by id. The loss, the gradients
    by the inputs' ids, and the programs. Mutated inputs (statistics) get their new values in ``values``' tensors."""
    forward, backward = parts
    sig = forward.signature
    flat = [values[id(t)] if isinstance(t, torch.Tensor) else t for t in forward.inputs]
    runs = [Simulated(p.program, interpreter) for p in parts]
    outs = runs[0](flat)
    first = sig.n_results
    for m, new in zip(sig.mutated, outs[first:]):
        if new is not None:
            flat[m.index].copy_(new)
    places = {"input": flat, "result": outs, "extra": outs[first + len(sig.mutated) :], "size": flat}
    saved = [places[r.kind][r.index] for r in sig.saved]
    tangents = [torch.ones(t.sizes, dtype=t.dtype).as_strided(t.sizes, t.strides) for t in sig.tangents]
    grads = runs[1]([*saved, *tangents])
    found = {id(t): g for t, g in zip(forward.inputs, grads) if g is not None}
    return outs[0], found, runs
