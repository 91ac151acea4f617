"""The glue between compiled graphs and the autograd engine: a callable made of a forward, a backward and a signature.

``forward(*inputs)`` and ``backward(*saved, *tangents)`` follow :mod:`braze.ir.signature`.  A function with a true
attribute ``boxed`` takes one list instead, which it may empty to free memory early.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from braze import _C  # type: ignore[attr-defined]

from ..ir import Expr, OutputSpec, Signature, ViewStep, evaluate, leaves, map_leaves
from .again import Again
from .batched import each, has_storage
from .staged import Parts, Staging, active_ddp

Tensors = Sequence[Any]
Outputs = tuple[Any, ...]
Compiled = Callable[..., Any]
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_FREED = "Trying to backward through the graph a second time: specify retain_graph=True in the first backward"


def make_autograd_callable(
    forward: Compiled,
    backward: Callable[[], Compiled] | None,
    signature: Signature,
    fallback: Compiled | None = None,
) -> Compiled:
    """A function of the forward graph's inputs that returns the user's flat outputs as a tuple.

    ``backward`` is a thunk, called at the first backward. ``fallback(*inputs) -> outputs`` is the same program in
    eager: a backward with ``create_graph=True`` re-runs it, and raises Unsupported without it. Inputs that the
    program mutates are overwritten in place; a call where such an input shares its storage with another one goes to
    ``fallback``, since the graph was traced for separate ones. Grad mode now is the one that the program was traced
    from.
    """
    grad = torch.is_grad_enabled()
    if fallback is not None and not grad:
        fallback = torch.no_grad()(fallback)
    call = _make(forward, backward, signature, fallback)
    if not grad and backward is not None and signature.differentiable:
        call = _switching(call)
    if signature.reshaped:
        call = _reshaping(call, signature)
    if fallback is None or not signature.mutated:
        return call
    eager = fallback
    written = [m.index for m in signature.mutated]

    def checked(*inputs: Any) -> tuple[Any, ...]:
        if _C.may_share(inputs) and _overlap(inputs, written):
            return eager(*inputs)  # type: ignore[no-any-return]
        return call(*inputs)

    return checked


def _switching(call: Compiled) -> Compiled:
    """``call`` for a program that is entered with gradients off, and switches them on itself."""
    grad_enabled, set_grad = torch.is_grad_enabled, torch._C._set_grad_enabled

    def run(*inputs: Any) -> Any:
        if grad_enabled() or torch.is_inference_mode_enabled():
            return call(*inputs)
        set_grad(True)
        try:
            return call(*inputs)
        finally:
            set_grad(False)

    return run


def _reshaping(call: Compiled, signature: Signature) -> Compiled:
    """``call``, and then the in-place changes of inputs' sizes."""

    def run(*inputs: Any) -> Outputs:
        outs: Outputs = call(*inputs)
        for i, steps in signature.reshaped:
            _replay(steps, inputs[i])
        return outs

    return run


def _overlap(inputs: Tensors, written: list[int]) -> bool:
    """Whether a written input shares its storage with another input."""
    starts = [x.untyped_storage().data_ptr() if isinstance(x, torch.Tensor) else 0 for x in inputs]
    if len(set(starts)) == len(starts):
        return False
    uses = Counter(starts)
    return any(starts[i] and uses[starts[i]] > 1 for i in written)


def _make(
    forward: Compiled,
    backward: Callable[[], Compiled] | None,
    signature: Signature,
    fallback: Compiled | None = None,
) -> Callable[..., Outputs]:
    forward = _unboxed(forward)
    finish = _finisher(signature)
    plain = _plain(forward, signature, finish)
    if backward is None or not signature.differentiable:
        return plain
    parts = _make_parts(forward, backward, signature, fallback)
    apply: Compiled = _make_function(parts).apply
    dirty = [m.index for m in signature.mutated if m.differentiable]
    if dirty:
        return _writing(parts, plain, finish, dirty, fallback)
    staging = Staging(parts)
    grad_enabled = torch.is_grad_enabled

    def call(*inputs: Any) -> Outputs:
        if not grad_enabled():
            return plain(*inputs)
        ddp = active_ddp()
        staged = staging.apply(ddp, inputs) if ddp is not None else None
        outs: Outputs = apply(*inputs) if staged is None else staged
        return outs if finish is None else finish(inputs, outs)

    return call


def _writing(parts: Parts, plain: Compiled, finish: Any, dirty: list[int], fallback: Compiled | None) -> Compiled:
    """The call of a program that overwrites the inputs ``dirty`` under autograd. A view's new value is copied into it
    in eager, so that its base and the base's other views get the history, too; for a leaf, eager raises its error."""
    n = parts.signature.n_results
    apply: Compiled = _make_function(parts).apply
    apart = replace(parts, forward=partial(parts.forward, overwrite=False))
    copied: Compiled = _make_function(apart).apply
    grad_enabled = torch.is_grad_enabled

    def call(*inputs: Any) -> Outputs:
        if not grad_enabled():
            return plain(*inputs)  # type: ignore[no-any-return]
        targets = [inputs[i] for i in dirty]
        if fallback is not None and any([x.is_leaf and x.requires_grad for x in targets]):
            return fallback(*inputs)  # type: ignore[no-any-return]
        now = list(inputs)
        if any([x._is_view() for x in targets]):
            outs: Outputs = copied(*inputs)
            for x, new in zip(targets, outs[n:]):
                x.copy_(new)
        else:
            outs = apply(*inputs)
            for i, x in zip(dirty, outs[n:]):
                now[i] = x
        return finish(now, outs)  # type: ignore[no-any-return]

    return call


def _unboxed(f: Compiled) -> Compiled:
    return (lambda *args: f(list(args))) if getattr(f, "boxed", False) else f


def _plain(forward: Compiled, signature: Signature, finish: Any) -> Callable[..., Outputs]:
    """The call without autograd: also in grad mode, where library calls must not build an autograd graph."""
    targets = [m.index for m in signature.mutated]
    n = signature.n_results
    grad_enabled, set_grad = torch.is_grad_enabled, torch._C._set_grad_enabled

    def run(inputs: Tensors) -> Tensors:
        outs: Tensors = forward(*inputs)
        if targets:
            _overwrite([inputs[i] for i in targets], outs[n : n + len(targets)])
        return outs

    def call(*inputs: Any) -> Outputs:
        if grad_enabled():
            set_grad(False)
            try:
                outs = run(inputs)
            finally:
                set_grad(True)
        else:
            outs = run(inputs)
        done: Outputs = tuple(outs[:n]) if finish is None else finish(inputs, outs)
        return done

    return call


def _overwrite(targets: list[Any], values: Tensors) -> None:
    done = [t for t, v in zip(targets, values) if v is None]  # by the kernels, which autograd does not see
    if done:
        torch.autograd.graph.increment_version(done)
    pairs = [(t, v) for t, v in zip(targets, values) if v is not None]
    if len(pairs) == 1:
        pairs[0][0].copy_(pairs[0][1])
    elif pairs:
        torch._foreach_copy_([t for t, _ in pairs], [v for _, v in pairs])


def _symbolic(spec: OutputSpec) -> bool:
    parts = [spec.value, *((step.args, dict(step.kwargs)) for step in spec.views)]
    return any(isinstance(x, Expr) for x in leaves(parts))


def _sizes_now(sig: Signature, inputs: Tensors) -> dict[str, int]:
    return {name: inputs[i] if d < 0 else inputs[i].shape[d] for name, i, d in sig.sizes}


def _at_sizes(spec: OutputSpec, env: Mapping[str, int]) -> OutputSpec:
    """The spec with symbolic sizes replaced by this call's."""

    def fix(x: Any) -> Any:
        return evaluate(x, env) if isinstance(x, Expr) else x

    views = [
        replace(s, args=map_leaves(s.args, fix), kwargs=tuple((k, map_leaves(v, fix)) for k, v in s.kwargs))
        for s in spec.views
    ]
    return replace(spec, views=tuple(views), value=fix(spec.value))


def _finisher(signature: Signature) -> Callable[[Tensors, Tensors], Outputs] | None:
    """What makes the user's outputs of inputs and results; None where the results are the outputs."""
    specs = signature.outputs
    same = len(specs) == signature.n_results and all(
        s.kind == "result" and s.index == i and not s.views and not s.freed for i, s in enumerate(specs)
    )
    if same and not any(m.differentiable for m in signature.mutated):
        return None

    symbolic = any(_symbolic(s) for s in specs)
    # what several outputs are views of is made for one that requires grad, and what is the same as another comes last
    order = sorted(range(len(specs)), key=lambda i: (specs[i].kind == "output", not specs[i].requires_grad))

    def finish(inputs: Tensors, results: Tensors) -> Outputs:
        now = specs
        if symbolic:
            env = _sizes_now(signature, inputs)
            now = tuple([_at_sizes(s, env) for s in specs])
        outs: list[Any] = [None] * len(now)
        detached: dict[int, Any] = {}
        for i in order:
            s = now[i]
            out = outs[s.index] if s.kind == "output" else _output(s, inputs, results, detached)
            outs[i] = _UsedUp.mark(out) if s.freed else out
        return tuple(outs)

    return finish


class _UsedUp(torch.autograd.Function):
    """The history of a tensor whose graph a backward inside of the compiled program has freed."""

    @staticmethod
    def forward(ctx: Any, _leaf: Tensor, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(_FREED)

    @classmethod
    def mark(cls, x: Tensor) -> Tensor:
        """``x``, requiring grad."""
        with torch.enable_grad():
            out: Tensor = cls.apply(torch.empty(0, requires_grad=True), x)
        return out


def _output(spec: OutputSpec, inputs: Tensors, results: Tensors, detached: dict[int, Any]) -> Any:
    if spec.kind == "const":
        return spec.value
    x = inputs[spec.index] if spec.kind == "input" else results[spec.index]
    if spec.views:
        done = 0
        for number, steps in spec.shared:
            if number not in detached:
                detached[number] = _replay(spec.views[done:steps], _as_wanted(spec, x))
            x, done = detached[number], steps
        views = spec.views[done:]
        if spec.no_grad:
            with torch.no_grad():
                return _replay(views, x)
        return _replay(views, _as_wanted(spec, x)) if views else x
    return x


def _as_wanted(spec: OutputSpec, x: Any) -> Any:
    """What the views of an output are taken of."""
    return x.detach() if x.requires_grad and not spec.requires_grad else x


def _replay(views: tuple[ViewStep, ...], x: Any) -> Any:
    for step in views:
        x = step(x)
    return x


def _make_parts(forward: Compiled, backward: Callable[[], Compiled], sig: Signature, fallback: Any) -> Parts:
    again = Again(sig, fallback)
    run = _forward_method(forward, sig, again.keep if again.refused is None else None)
    return Parts(run, backward, _restorer(sig), again.differentiate, sig)


def _make_function(parts: Parts) -> Any:
    """The torch.autograd.Function of one compiled pair."""
    methods = {"forward": staticmethod(parts.forward), "backward": staticmethod(_backward_method(parts))}
    return type("CompiledFunction", (torch.autograd.Function,), methods)


def _forward_method(forward: Compiled, sig: Signature, keep: Callable[[Any, Tensors], None] | None) -> Compiled:
    n, m = sig.n_results, sig.n_results + len(sig.mutated)
    quiet = [(x.index, n + k) for k, x in enumerate(sig.mutated) if not x.differentiable]
    dirty = [(x.index, n + k) for k, x in enumerate(sig.mutated) if x.differentiable]
    checked = [(r.kind == "input", r.index) for r in sig.saved if r.kind in ("input", "result")]
    sizes = [r.index for r in sig.saved if r.kind == "size"]
    checked += [(False, i) for i in sig.watched]
    constants = [i for i, g in enumerate(sig.result_grads) if not g]
    dynamic = _symbolic_tangents(sig)

    def run(ctx: Any, *inputs: Any, overwrite: bool = True) -> Outputs:
        outs = forward(*inputs)
        # autograd forbids in-place writes to views that a custom function returns, so they must not look like views
        results = [x.detach() if x._is_view() else x for x in outs[:n]]
        if quiet:
            _overwrite([inputs[i] for i, _ in quiet], [outs[k] for _, k in quiet])
        for i, k in dirty:
            if overwrite:
                inputs[i].copy_(outs[k])
            results.append(inputs[i] if overwrite else outs[k])
        if dirty and overwrite:
            ctx.mark_dirty(*[inputs[i] for i, _ in dirty])
        if sig.shown:
            _show(sig, inputs, results)
        if constants:
            ctx.mark_non_differentiable(*[results[i] for i in constants])
        ctx.set_materialize_grads(False)
        kept = [inputs[i] if is_input else results[i] for is_input, i in checked]
        if _hooks(False) is None:
            ctx.save_for_backward(*kept)
            ctx.extras = outs[m:]
        else:  # a checkpoint or an offload around the call: everything goes through its hooks
            ctx.save_for_backward(*kept, *outs[m:])
            ctx.extras = len(kept)
        if sizes:
            ctx.sizes = [inputs[i] for i in sizes]
        if dynamic:
            ctx.shapes = [x.shape for x in results]
            ctx.symbols = [inputs[i] if d < 0 else inputs[i].shape[d] for _, i, d in sig.sizes]
        if keep is not None:
            keep(ctx, inputs)
        return tuple(results)

    return run


def _show(sig: Signature, inputs: Tensors, results: list[Any]) -> None:
    """Put the views that a user's autograd function returned in their places among the results."""
    plain = [x.detach() if isinstance(x, Tensor) else x for x in inputs]
    env = _sizes_now(sig, inputs) if any(_symbolic(s) for _, s in sig.shown) else None
    for k, spec in sig.shown:
        results[k] = _output(spec if env is None else _at_sizes(spec, env), plain, results, {}).detach()


def _backward_method(parts: Parts) -> Compiled:
    backward, restore, again = parts.backward, parts.restore, parts.again
    compiled: list[Compiled] = []

    n_inputs = parts.signature.n_inputs

    def run(ctx: Any, *grads: Any) -> Any:
        if all(g is None for g in grads):  # nothing that counts: what was saved may have been overwritten
            return (None,) * n_inputs
        if not all([g is None or has_storage(g) for g in grads]):
            return _batched(run, ctx, grads)
        if torch.is_grad_enabled():
            return again(ctx, grads)
        if not compiled:
            compiled.append(backward())
        args = restore(ctx, grads)
        f = compiled[0]
        if getattr(f, "boxed", False):
            del grads
            return f(args)
        return f(*args)

    return run


def _batched(run: Compiled, ctx: Any, grads: Tensors) -> Outputs:
    """One run for each gradient of a ``vmap``, on what is saved once; sparse gradients are made dense."""
    extras = ctx.extras

    def one(*grads: Any) -> Any:
        ctx.extras = extras
        return run(ctx, *grads)

    return each(one, [g if g is None or g.layout is torch.strided else g.to_dense() for g in grads])


def _symbolic_tangents(sig: Signature) -> bool:
    return any(isinstance(d, Expr) for t in sig.tangents for d in (*t.sizes, *t.strides))


def _restorer(sig: Signature) -> Callable[[Any, Tensors], list[Any]]:
    """Rebuilds ``[*saved, *tangents]`` from an autograd context and incoming gradients."""
    checked = iter(range(sum(r.kind in ("input", "result") for r in sig.saved)))
    tensors = [r for r in sig.saved if r.kind != "size"]
    order = [(True, r.index) if r.kind == "extra" else (False, next(checked)) for r in tensors]
    sizes_at = [k for k, r in enumerate(sig.saved) if r.kind == "size"]
    heads = [i for i, g in enumerate(sig.result_grads) if g]
    heads += range(sig.n_results, sig.n_results + sum(m.differentiable for m in sig.mutated))
    names = [name for name, _, _ in sig.sizes]
    symbolic = _symbolic_tangents(sig)
    wanted = [(i, (t.dtype, t.device, _numbers(t.strides, names), t.sizes)) for i, t in zip(heads, sig.tangents)]
    only_extras = [i for _, i in order] == list(range(len(order))) and all(e for e, _ in order)

    def restore(ctx: Any, grads: Tensors) -> list[Any]:
        kept = ctx.saved_tensors
        extras = ctx.extras
        if extras is None:
            raise RuntimeError(
                "Trying to backward through the graph a second time: pass retain_graph=True the first time"
            )
        if not _keeps_graph():
            ctx.extras = None
        if type(extras) is int:
            extras = kept[extras:]
        args = list(extras) if only_extras else [extras[i] if e else kept[i] for e, i in order]
        if sizes_at:
            for k, n in zip(sizes_at, ctx.sizes):
                args.insert(k, n)
        for i, t in wanted:
            if symbolic:
                strides = t[2](*ctx.symbols) if callable(t[2]) else t[2]
                args.append(_tangent(grads[i], t[0], t[1], strides, ctx.shapes[i]))
            else:
                args.append(_tangent(grads[i], *t))
        return args

    return restore


def _tangent(g: Any, dtype: torch.dtype, device: torch.device, strides: Any, sizes: Any) -> Any:
    """A gradient in the layout that the backward was compiled for; zeros of these ``sizes`` for an absent one. The
    result of a collective that eager has not waited for has no memory of its own."""
    if g is not None and type(g) is not torch.Tensor and hasattr(g, "trigger_wait"):
        g = g.trigger_wait()
    if g is not None and g.dtype is dtype:
        if g.stride() == strides:
            return g
        if all(n == 1 or a == b for n, a, b in zip(g.shape, g.stride(), strides)):
            return g
    out = torch.empty_strided(sizes if g is None else g.shape, strides, dtype=dtype, device=device)
    return out.zero_() if g is None else out.copy_(g)


def _numbers(exprs: Sequence[Any], names: Sequence[str]) -> Any:
    """Expressions as a tuple, or, where some are symbolic, as a function of the symbols' values in this order."""
    if not any(isinstance(e, Expr) for e in exprs):
        return tuple(exprs)
    return eval(f"lambda {', '.join(names)}: ({''.join(f'{e}, ' for e in exprs)})")  # noqa: S307
