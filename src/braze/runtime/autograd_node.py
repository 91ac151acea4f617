"""The glue between compiled graphs and the autograd engine: a callable made of a forward, a backward and a signature.

``forward(*inputs)`` and ``backward(*saved, *tangents)`` follow :mod:`braze.ir.signature`.  A function with a true attribute
``boxed`` takes one list instead, which it may empty to free memory early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import Unsupported
from ..ir import Expr, OutputSpec, Signature, TensorType

Tensors = Sequence[Any]
Compiled = Callable[..., Any]
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
_DOUBLE = "differentiating a compiled function twice (create_graph=True)"


def make_autograd_callable(
    forward: Compiled,
    backward: Callable[[], Compiled] | None,
    signature: Signature,
    fallback: Compiled | None = None,
) -> Compiled:
    """A function of the forward graph's inputs that returns the user's flat outputs as a tuple.

    ``backward`` is a thunk, called at the first backward. ``fallback(*inputs) -> outputs`` is the same program in eager:
    a backward with ``create_graph=True`` re-runs it, and raises Unsupported without it. Inputs that the program mutates
    are overwritten in place.
    """
    forward = _unboxed(forward)
    finish = _finisher(signature)
    plain = _plain(forward, signature, finish)
    if backward is None or not signature.differentiable:
        return plain
    node = _make_function(forward, backward, signature, fallback)
    apply = node.apply
    n_results = signature.n_results
    dirty = [m.index for m in signature.mutated if m.differentiable]
    grad_enabled = torch.is_grad_enabled

    def call(*inputs: Any) -> tuple[Any, ...]:
        if not grad_enabled():
            return plain(*inputs)
        outs = apply(*inputs)
        if type(outs) is not tuple:
            outs = (outs,)
        if finish is None:
            return outs
        if dirty:
            now = list(inputs)
            for i, x in zip(dirty, outs[n_results:]):
                now[i] = x
            inputs = tuple(now)
        return finish(inputs, outs)

    return call


def _unboxed(f: Compiled) -> Compiled:
    return (lambda *args: f(list(args))) if getattr(f, "boxed", False) else f


def _plain(forward: Compiled, signature: Signature, finish: Any) -> Compiled:
    """The call without autograd."""
    targets = [m.index for m in signature.mutated]
    n = signature.n_results
    if finish is None and not targets:

        def simple(*inputs: Any) -> tuple[Any, ...]:
            return tuple(forward(*inputs)[:n])

        return simple

    def call(*inputs: Any) -> tuple[Any, ...]:
        outs = forward(*inputs)
        if targets:
            with torch.no_grad():
                _overwrite([inputs[i] for i in targets], outs[n : n + len(targets)])
        return finish(inputs, outs) if finish is not None else tuple(outs[:n])

    return call


def _overwrite(targets: list[Any], values: Tensors) -> None:
    if len(targets) == 1:
        targets[0].copy_(values[0])
    else:
        torch._foreach_copy_(targets, list(values))


def _finisher(signature: Signature) -> Callable[[Tensors, Tensors], tuple[Any, ...]] | None:
    """What makes the user's outputs of inputs and results; None where the results are the outputs."""
    specs = signature.outputs
    same = len(specs) == signature.n_results and all(
        s.kind == "result" and s.index == i and not s.views for i, s in enumerate(specs)
    )
    if same and not any(m.differentiable for m in signature.mutated):
        return None

    def finish(inputs: Tensors, results: Tensors) -> tuple[Any, ...]:
        return tuple([_output(s, inputs, results) for s in specs])

    return finish


def _output(spec: OutputSpec, inputs: Tensors, results: Tensors) -> Any:
    if spec.kind == "const":
        return spec.value
    x = inputs[spec.index] if spec.kind == "input" else results[spec.index]
    if spec.views:
        if not spec.requires_grad and x.requires_grad:
            x = x.detach()
        for step in spec.views:
            x = step(x)
    return x


def _make_function(forward: Compiled, backward: Callable[[], Compiled], sig: Signature, fallback: Any) -> Any:
    """The torch.autograd.Function of one compiled pair."""
    n, m = sig.n_results, sig.n_results + len(sig.mutated)
    quiet = [(i, n + k) for k, (i, d) in enumerate((x.index, x.differentiable) for x in sig.mutated) if not d]
    dirty = [(x.index, n + k) for k, x in enumerate(sig.mutated) if x.differentiable]
    checked = [r for r in sig.saved if r.kind != "extra"]
    constants = [i for i, g in enumerate(sig.result_grads) if not g]
    restore = _restorer(sig)
    plain_outputs = not sig.mutated and _finisher(sig) is None
    twice = fallback if plain_outputs and not sig.random else None
    dynamic = any(isinstance(d, Expr) for t in sig.tangents for d in t.sizes)

    def run_forward(ctx: Any, *inputs: Any) -> Any:
        outs = forward(*inputs)
        results = [x.detach() if x._is_view() else x for x in outs[:n]]
        if quiet:
            _overwrite([inputs[i] for i, _ in quiet], [outs[k] for _, k in quiet])
        for i, k in dirty:
            inputs[i].copy_(outs[k])
            results.append(inputs[i])
        if dirty:
            ctx.mark_dirty(*[inputs[i] for i, _ in dirty])
        if constants:
            ctx.mark_non_differentiable(*[results[i] for i in constants])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            *[inputs[r.index] if r.kind == "input" else results[r.index] for r in checked],
            *[results[i] for i in sig.watched],
        )
        ctx.extras = outs[m:]
        if dynamic:
            ctx.shapes = [x.shape for x in results]
        if twice is not None:
            ctx.inputs = inputs
        return tuple(results)

    compiled: list[Compiled] = []

    def run_backward(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            return _differentiate_again(twice, ctx, grads)
        if not compiled:
            compiled.append(backward())
        args = restore(ctx, grads)
        f = compiled[0]
        if getattr(f, "boxed", False):
            del grads
            return f(args)
        return f(*args)

    methods = {"forward": staticmethod(run_forward), "backward": staticmethod(run_backward)}
    return type("CompiledFunction", (torch.autograd.Function,), methods)


def _restorer(sig: Signature) -> Callable[[Any, Tensors], list[Any]]:
    """Rebuilds ``[*saved, *tangents]`` from an autograd context and incoming gradients."""
    checked = iter(range(sum(r.kind != "extra" for r in sig.saved)))
    order = [(True, r.index) if r.kind == "extra" else (False, next(checked)) for r in sig.saved]
    heads = [i for i, g in enumerate(sig.result_grads) if g]
    heads += range(sig.n_results, sig.n_results + sum(m.differentiable for m in sig.mutated))
    wanted = list(zip(heads, sig.tangents))
    only_extras = [i for _, i in order] == list(range(len(order))) and all(e for e, _ in order)

    def restore(ctx: Any, grads: Tensors) -> list[Any]:
        kept = ctx.saved_tensors
        extras = ctx.extras
        if extras is None:
            raise RuntimeError("Trying to backward through the graph a second time: pass retain_graph=True the first time")
        if not _keeps_graph():
            ctx.extras = None
        args = list(extras) if only_extras else [extras[i] if e else kept[i] for e, i in order]
        for i, t in wanted:
            args.append(_tangent(grads[i], t, ctx, i))
        return args

    return restore


def _tangent(g: Any, want: TensorType, ctx: Any, index: int) -> Any:
    """A gradient in the layout that the backward was compiled for; zeros for an absent one."""
    if g is not None and g.stride() == want.strides and g.dtype is want.dtype:
        return g
    sizes: Any = want.sizes if g is None and not hasattr(ctx, "shapes") else (ctx.shapes[index] if g is None else g.shape)
    if g is not None and g.dtype is want.dtype:
        if any(isinstance(s, Expr) for s in want.strides):
            return g.contiguous()
        if all(n == 1 or a == b for n, a, b in zip(g.shape, g.stride(), want.strides)):
            return g
    if any(isinstance(s, Expr) for s in want.strides):
        out = torch.empty(tuple(sizes), dtype=want.dtype, device=want.device)
    else:
        out = torch.empty_strided(tuple(sizes), want.strides, dtype=want.dtype, device=want.device)  # type: ignore[arg-type]
    return out.zero_() if g is None else out.copy_(g)


def _differentiate_again(fallback: Compiled | None, ctx: Any, grads: Tensors) -> tuple[Any, ...]:
    """Gradients that can be differentiated, by running the program in eager."""
    if fallback is None:
        raise Unsupported(_DOUBLE, hint="leave the inner gradient computation out of braze.compile")
    inputs = ctx.inputs
    with torch.enable_grad():
        outs = fallback(*inputs)
    pairs = [(o, g) for o, g in zip(outs, grads) if g is not None and o.requires_grad]
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    found = iter(
        torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], create_graph=True, allow_unused=True)
    )
    return tuple([next(found) if isinstance(x, torch.Tensor) and x.requires_grad else None for x in inputs])
