"""Operators that overwrite their arguments, as functional calls and a write of the recorder.

Most go by their schema (:func:`generic`): ``x.mul_(y)`` becomes ``mul(x, y)`` stored in x.  The rows here are those
whose functional form has another shape.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload

from ..errors import Unsupported
from ..fake import FakeTensor
from ..ir import Node, TensorType, contiguous_strides, leaves
from ..prims.functionalised import functionalised
from ..prims.registry import decomposition_of
from . import storage
from .layout import same_strides
from .record import Recorder, handles
from .schema import bind, functional_form, op_info

aten = torch.ops.aten
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def generic(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Call the functional form and store what it gives in the arguments that the schema marks as written."""
    form = functional_form(op)
    if form is None or _nested(form) and decomposition_of(form) is None:
        _by_copies(rec, op, args, kwargs, out)
        return
    given = {a.name: x for a, x in zip(op._schema.arguments, args)} | kwargs
    targets = [given.get(name) for name, _ in op_info(op).writes]
    given |= {name: default for name, default in _other_defaults(op, form) if name not in given}
    lowered = {k: rec.lower(v) for k, v in given.items()}
    positional = []
    for a in form._schema.arguments:
        if a.kwarg_only or a.name not in lowered:
            break
        positional.append(lowered.pop(a.name))
    named = {a.name: lowered[a.name] for a in form._schema.arguments if a.name in lowered}
    if len(targets) == 1 and "device" not in given and any(a.name == "device" for a in form._schema.arguments):
        t: TensorType = next(leaves(targets)).val
        named |= {"dtype": t.dtype, "device": t.device}
    node = rec.call(form, *positional, **named)
    results = [node] if isinstance(node.val, TensorType) else [rec.getitem(node, i) for i in range(len(node.val))]
    if len(targets) == 1 and isinstance(targets[0], (list, tuple)):
        targets = list(targets[0])
    written = [x.node.base for x in leaves(targets) if type(x) is FakeTensor]
    if len(set(map(id, written))) < len(written):
        raise Unsupported(f"{op} overwrites tensors that share memory", hint="write to them one after the other")
    _store_all(rec, op, targets, results)


def _nested(form: OpOverload) -> bool:
    """Whether several lists come back (an optimizer's fused step): kernels give single tensors, or one list."""
    returns = form._schema.returns
    return len(returns) > 1 and any("List" in str(r.type) for r in returns)


def _by_copies(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """An operator without a functional form: called on copies of what it overwrites."""
    form = functionalised(op)
    given = dict(zip(form.arguments, args)) | kwargs
    targets = [x for name in form.written for x in leaves(given.get(name)) if type(x) is FakeTensor]
    others = [x for name, arg in given.items() for x in leaves(arg) if type(x) is FakeTensor]
    bases = [x.node.base for x in others]
    if any(bases.count(t.node.base) > 1 for t in targets):
        raise Unsupported(f"{op} overwrites an argument that shares memory with another one")
    node = rec.call(form, *[rec.lower(a) for a in args], **{k: rec.lower(v) for k, v in kwargs.items()})
    results = out if isinstance(out, (tuple, list)) else (out,)
    for i, at in enumerate(form.fresh):
        if results[at] is not None:
            rec.define(results[at], rec.getitem(node, i))
    for i, target in enumerate(targets):
        rec.write(target, rec.getitem(node, len(form.fresh) + i))


@lru_cache(None)
def _other_defaults(op: OpOverload, form: OpOverload) -> tuple[tuple[str, Any], ...]:
    """Defaults of ``op`` that its functional form lacks or has otherwise (``bernoulli_``'s p)."""
    theirs = {a.name: a.default_value for a in form._schema.arguments if a.has_default_value()}
    mine = [(a.name, a.default_value) for a in op._schema.arguments if a.has_default_value() and not a.is_out]
    return tuple((k, v) for k, v in mine if k not in theirs or theirs[k] != v)


def _store_all(rec: Recorder, op: OpOverload, targets: list[Any], results: list[Node]) -> None:
    if len(targets) != len(results):
        raise Unsupported(f"the in-place operator {op}: {len(targets)} tensors written, {len(results)} results")
    for target, result in zip(targets, results):
        if isinstance(target, (list, tuple)):
            parts = [rec.getitem(result, i) for i in range(len(target))]
            _store_all(rec, op, list(target), parts)
        elif target is not None:
            if type(target) is FakeTensor and target.val.sizes != result.val.sizes:
                raise Unsupported(f"{op} into a tensor of shape {target.val.sizes}, which it resizes")
            rec.write(target, result)


_RESHAPES = {
    aten.as_strided_.default: aten.as_strided.default,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.swapaxes_.default: aten.transpose.int,
    aten.swapdims_.default: aten.transpose.int,
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.unsqueeze_.default: aten.unsqueeze.default,
}


@handles("as_strided_.default squeeze_.default squeeze_.dim squeeze_.dims swapaxes_.default swapdims_.default")
@handles("t_.default transpose_.default unsqueeze_.default")
def _reshape(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    rec.reshape_in_place(op, args[0], _RESHAPES[op], args[1:], kwargs)


@handles("resize_.default", "resize_as_.default")
def _resize(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Nothing where the sizes stay; new memory where there was none; else fewer of the same elements."""
    x = args[0]
    old: TensorType = x.node.type
    if old.sizes == x.val.sizes:
        return
    if 0 in old.sizes:
        t = x.val
        rec.write(x, rec.call(aten.empty.memory_format, list(t.sizes), dtype=t.dtype, device=t.device))
        return
    view = (list(x.val.sizes), list(x.val.strides))
    rec.reshape_in_place(aten.as_strided_.default, x, aten.as_strided.default, view, {})


@handles("as_strided_copy.default")
def _strided_copy(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    base = args[0].node.base
    _, at = storage.absolute(rec, args[0].node, args[1:], kwargs)
    node = storage.read(rec, rec.read(base), base, at)
    rec.define(out, rec.call(aten.clone.default, node, memory_format=torch.contiguous_format))


@handles("as_strided_scatter.default")
def _strided_scatter(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    rec.define(out, storage.scattered(rec, *bind(op, args, kwargs).values()))


@handles("_unsafe_view.default unsafe_split.Tensor unsafe_split_with_sizes.default")
def _unsafe_view(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Views that autograd does not know of: what is written to one is in its argument too, yet to autograd each owns
    its memory. ``reshape`` makes one of a copy that nobody sees, whose owner it becomes."""
    base = args[0].node.base
    if op is aten._unsafe_view.default and args[0].node is base and base.input == -1:
        rec.view(aten.view.default, args, kwargs, out)
        base.fake = out
        return
    rec.view(op, args, kwargs, out)
    for x in leaves(out):
        x.node.apart = op


@handles("conj_physical_.default")
def _conj_physical(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    if args[0].val.dtype.is_complex:
        rec.write(args[0], rec.call(aten.conj_physical.default, rec.lower(args[0])))


@handles("copy_.default")
def _copy(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    rec.write(args[0], rec.lower(args[1]))


@handles("_foreach_copy_.default")
def _foreach_copy(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    for target, source in zip(args[0], args[1]):
        rec.write(target, rec.lower(source))


def _filled(rec: Recorder, target: FakeTensor, value: Any) -> Node:
    t = target.val
    if same_strides(t.sizes, t.strides, contiguous_strides(t.sizes)):
        return rec.call(aten.full.default, list(t.sizes), value, dtype=t.dtype, device=t.device, pin_memory=False)
    return rec.call(aten.full_like.default, rec.lower(target), value, pin_memory=False)


@handles("fill_.Scalar", "zero_.default")
def _fill(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    value = args[1] if len(args) > 1 else kwargs.get("value", 0)
    rec.write(args[0], _filled(rec, args[0], value))


@handles("_foreach_zero_.default")
def _foreach_zero(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    for target in args[0]:
        _fill(rec, op, (target,), {}, None)


@handles("fill_.Tensor")
def _fill_tensor(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    rec.write(args[0], rec.lower(args[1]))


@handles("native_batch_norm.default", "cudnn_batch_norm.default", "_native_batch_norm_legit.default")
@handles("_batch_norm_with_update.default native_batch_norm.out _native_batch_norm_legit.out")
def _batch_norm(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """All the batch norms whose training form updates the running statistics, as one functional operator."""
    x = [v for a, v in zip(op._schema.arguments, bind(op, args, kwargs).values()) if not a.is_out]
    if "with_update" in op._schema.name:
        x.insert(5, True)
    *tensors, training, momentum, eps = x
    mean, var = tensors[3:]
    nodes = [rec.lower(t) for t in tensors]
    vals = tuple(x.val for x in out[:3])
    if not training or mean is None or var is None:
        node = rec.emit(aten.native_batch_norm.default, (*nodes, training, momentum, eps), {}, vals)
    else:
        form = aten._native_batch_norm_legit_functional.default
        node = rec.emit(form, (*nodes, True, momentum, eps), {}, (*vals, mean.val, var.val))
        rec.write(mean, rec.getitem(node, 3))
        rec.write(var, rec.getitem(node, 4))
    for i in range(3):
        (rec.write if op._overloadname == "out" else rec.define)(out[i], rec.getitem(node, i))
    for reserve in out[3:]:  # cuDNN's scratch memory: the functional backward does without it
        t = reserve.val
        rec.define(reserve, rec.call(aten.empty.memory_format, list(t.sizes), dtype=t.dtype, device=t.device))


@handles("native_batch_norm_backward.default")
def _batch_norm_backward(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    grad, x, weight, mean, var, save_mean, save_rstd, train, eps, mask = bind(op, args, kwargs).values()
    _emit_backward(rec, (grad, x, weight, mean, var, save_mean, save_rstd), train, eps, mask, out)


@handles("cudnn_batch_norm_backward.default")
def _cudnn_backward(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    x, grad, weight, mean, var, save_mean, save_rstd, eps, _ = bind(op, args, kwargs).values()
    _emit_backward(rec, (grad, x, weight, mean, var, save_mean, save_rstd), True, eps, [True] * 3, out)


@handles("batch_norm_backward.default")
def _update_backward(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    grad, x, weight, mean, var, save_mean, save_rstd, update, eps, mask, _ = bind(op, args, kwargs).values()
    _emit_backward(rec, (grad, x, weight, mean, var, save_mean, save_rstd), update, eps, mask, out)


def _emit_backward(rec: Recorder, tensors: Args, train: bool, eps: float, mask: Any, out: Any) -> None:
    nodes = [rec.lower(t) for t in tensors]
    if train:  # batch statistics alone matter: the running ones need not be saved
        nodes[3] = nodes[4] = None
    form = aten.native_batch_norm_backward.default
    val = tuple(t.val if type(t) is FakeTensor else t for t in out)
    rec.define(out, rec.emit(form, (*nodes, train, eps, list(mask)), {}, val))
