"""A GPU program run whole without a card: its host text on CPU tensors, each kernel in Triton's interpreter, vendor
calls by ATen on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from triton_interpreter import Interpreter

from braze.fake import FakeTensor
from braze.inductor.codegen import externs
from braze.inductor.codegen.host import HostWriter, scope
from braze.inductor.codegen.program import compile_program, kernel_order
from braze.inductor.codegen.triton_emit import emit_triton
from braze.inductor.loops import Kernel, Program, canonical
from braze.runtime.mixed import joined

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "gpu"))

import captured  # noqa: E402

GUARDED = {name: f.__name__ for name, f in externs.GUARDED.items()}


class Simulated:
    """A program as a callable over the program's inputs (CPU tensors and integers)."""

    def __init__(self, program: Program, interpreter: Interpreter) -> None:
        writer = HostWriter(program, kernel_order)
        self.source = writer.write()
        cpu = {name: torch.device("cpu") for name, x in writer.objects.items() if isinstance(x, torch.device)}
        writer.objects.update(cpu)
        grouped = {k for first, end in program.groups for k in range(first, end)}
        kernels = [s for k, s in enumerate(program.steps) if isinstance(s, Kernel) and k not in grouped]
        self.codes = {canonical(k).key: emit_triton(k).code for k in kernels}
        self.calls = 0

        def bound(code: Any) -> Any:
            def run(*args: Any) -> None:
                self.calls += 1
                interpreter.call(code, list(args[: code.pointers]), list(args[code.pointers :]))

            return run

        def together(group: Any) -> Any:
            def run(*args: Any) -> None:
                self.calls += len(group.kernels)
                interpreter.group(group, list(args))

            return run

        groups = {key: together(group) for key, group in writer.groups.items()}
        names = scope(writer, {key: bound(code) for key, code in self.codes.items()} | groups)
        for op, stand_in in STAND_INS.items():
            spelled = GUARDED.get(op.split(".")[1], f"torch.ops.{op}") + "("
            if spelled in self.source:
                name = "on_cpu_" + op.replace(".", "_")
                self.source, names[name] = self.source.replace(spelled, f"{name}("), stand_in
        exec(compile(self.source, f"<simulated {program.name}>", "exec"), names)
        self.run = names["call"]

    def __call__(self, inputs: Sequence[Any]) -> Any:
        with torch.no_grad():
            return self.run(list(inputs))


def _scores(q: torch.Tensor, k: torch.Tensor, is_causal: bool, scale: float | None) -> torch.Tensor:
    out = (q @ k.mT) * (scale or q.shape[-1] ** -0.5)
    return out.masked_fill(torch.ones(out.shape[-2:], dtype=torch.bool).triu(1), float("-inf")) if is_causal else out


def _attend(q: Any, k: Any, v: Any, is_causal: bool, scale: Any) -> tuple[torch.Tensor, torch.Tensor]:
    score = _scores(q.float(), k.float(), is_causal, scale)
    return (score.softmax(-1) @ v.float()).to(q.dtype), score.logsumexp(-1)


def _attend_backward(grad: Any, q: Any, k: Any, v: Any, is_causal: bool, scale: Any) -> tuple[torch.Tensor, ...]:
    """Written out: host programs run below autograd."""
    g, a, b, c = (t.float() for t in (grad, q, k, v))
    p = _scores(a, b, is_causal, scale).softmax(-1)
    dp = g @ c.mT
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * (scale or q.shape[-1] ** -0.5)
    return tuple(x.to(q.dtype) for x in (ds @ b, ds.mT @ a, p.mT @ g))


def _heads_inside(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(1, 2).contiguous().transpose(1, 2)


def flash(
    q: Any, k: Any, v: Any, p: float = 0.0, is_causal: bool = False, mask: bool = False, *, scale: Any = None
) -> Any:
    assert p == 0.0 and not mask
    out, sums = _attend(q, k, v, is_causal, scale)
    number = torch.zeros(2, dtype=torch.int64)
    return torch.empty_like(q).copy_(out), sums, None, None, q.shape[2], k.shape[2], number, number[0], torch.zeros(0)


def flash_backward(g: Any, q: Any, k: Any, v: Any, *rest: Any, scale: Any = None) -> Any:
    *_, p, is_causal, _seed, _offset = rest
    assert p == 0.0
    grads = _attend_backward(g, q, k, v, is_causal, scale)
    return tuple(torch.empty_like(t).copy_(x) for t, x in zip((q, k, v), grads))


def efficient(
    q: Any, k: Any, v: Any, bias: Any, keep: bool, p: float = 0.0, is_causal: bool = False, *, scale: Any = None
) -> Any:
    assert p == 0.0 and bias is None
    out, sums = _attend(q, k, v, is_causal, scale)
    length = -(-q.shape[2] // 32) * 32
    return _heads_inside(out), F.pad(sums, (0, length - q.shape[2])), torch.zeros(()).long(), torch.zeros(()).long()


def efficient_backward(
    g: Any, q: Any, k: Any, v: Any, bias: Any, out: Any, sums: Any, seed: Any, offset: Any, p: float, mask: Any,
    is_causal: bool = False, *, scale: Any = None
) -> Any:  # fmt: skip
    assert p == 0.0
    grads = map(_heads_inside, _attend_backward(g, q, k, v, is_causal, scale))
    return (*(t if m else None for t, m in zip(grads, mask)), None)


STAND_INS = {
    "aten._scaled_dot_product_flash_attention.default": flash,
    "aten._scaled_dot_product_flash_attention_backward.default": flash_backward,
    "aten._scaled_dot_product_efficient_attention.default": efficient,
    "aten._scaled_dot_product_efficient_attention_backward.default": efficient_backward,
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


def simulate_steps(
    parts: Sequence[captured.Part], values: dict[int, torch.Tensor], interpreter: Interpreter, steps: int, rate: float
) -> tuple[list[torch.Tensor], Simulated]:
    """Whole training steps, one after another: the losses, and the program. ``values`` has tensors for the meta
    tensors of the capture by id, changed in place; those that it lacks (an optimizer's state) begin as zeros.
    ``rate`` is the learning rate, the one float that a step asks for."""
    host, device = parts
    sig, halves = device.signature, device.halves
    assert halves is not None and (host.side, device.side) == ("forward on the host", "forward")
    for t in host.inputs:
        if isinstance(t, torch.Tensor) and t.is_meta and id(t) not in values:
            values[id(t)] = torch.zeros_like(t, device="cpu", requires_grad=False)
    given = torch.tensor(rate, dtype=torch.float64)
    flat = [given if isinstance(t, FakeTensor) else values.get(id(t), t) for t in host.inputs]
    run, compiled = Simulated(device.program, interpreter), compile_program(host.program)
    call = joined(lambda *xs: compiled(xs), lambda *xs: run(xs), replace(halves, target=torch.device("cpu")))
    losses = []
    for _ in range(steps):
        with torch.no_grad():
            outs = call(*flat)
        losses.append(outs[0].clone())
        for m, new in zip(sig.mutated, outs[sig.n_results :]):
            if new is not None:
                flat[m.index].copy_(new)
    return losses, run
