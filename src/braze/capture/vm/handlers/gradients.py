"""Differentiation inside a captured function: ``backward()``, ``torch.autograd.grad``, ``.grad``, ``requires_grad_``.

``loss.backward()`` becomes one call of ``torch.autograd.grad`` for the leaves that the loss depends on, and what the
engine does with the gradients is written out: a gradient that exists is added to in place, a first one becomes the
leaf's ``.grad``, an attribute that the replacement code stores when it differs from before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from braze.ir.pause import grad_without_hooks

from ..registry import HANDLERS, handles
from ..signals import unsupported
from ..values.base import FALSE, NONE, TRUE, Const, Value
from ..values.sequences import ListValue, SequenceValue, TupleValue
from ..values.tensor import TensorValue

if TYPE_CHECKING:
    from ..tracer import Tracer

_OUTSIDE = "differentiating a graph that was made outside of the compiled function"
_HINT = "call the model and backward() in one compiled function, or both outside"
_CHECKPOINTED = "backward() of what activation checkpoints lie behind"
_WHOLE = "a forward and a backward of their own save the most memory; fullgraph=True makes one graph, which saves less"
_BACKWARD = ("self", "gradient", "retain_graph", "create_graph", "inputs")
_ENGINE = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
_GRAD = (
    "outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused",
    "is_grads_batched", "materialize_grads",
)  # fmt: skip


def _bind(names: tuple[str, ...], args: list[Value], kwargs: dict[str, Value], what: str) -> dict[str, Value]:
    given = {**dict(zip(names, args)), **kwargs}
    unknown = set(given) - set(names)
    if unknown or len(args) > len(names):
        unsupported(f"{what} with the arguments {', '.join(sorted(unknown))}")
    return given


@handles(torch.Tensor.backward)
def tensor_backward(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _bind(_BACKWARD, args, kwargs, "Tensor.backward()")
    return backward(vm, [given["self"]], [given.get("gradient", NONE)], given)


@handles(torch.autograd.backward)
def engine_backward(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _bind(_ENGINE, args, kwargs, "torch.autograd.backward()")
    if "grad_variables" in given:
        unsupported("torch.autograd.backward(grad_variables=…)", "it is called grad_tensors")
    heads = _listed(vm, given["tensors"])
    grads = given.get("grad_tensors", NONE)
    return backward(vm, heads, [NONE] * len(heads) if vm.is_none(grads) else _listed(vm, grads), given)


def _listed(vm: Tracer, v: Value) -> list[Value]:
    return vm.unpack(v) if isinstance(v, SequenceValue) else [v]


def _flag(vm: Tracer, given: dict[str, Value], name: str, default: bool) -> bool:
    v = given.get(name, NONE)
    return default if vm.is_none(v) else v.truth(vm)


def backward(vm: Tracer, heads: list[Value], grads: list[Value], given: dict[str, Value]) -> Value:
    """Accumulate the gradients of ``heads`` into the leaves that they depend on (or into ``inputs``)."""
    tensors = [h for h in heads if isinstance(h, TensorValue)]
    if len(tensors) != len(heads) or len(grads) != len(heads):
        unsupported("backward() of something that is no tensor")
    if not vm.plan.whole and any("checkpoint" in n.tags for n in vm.graph.nodes):
        unsupported(_CHECKPOINTED, _WHOLE)
    create = _flag(vm, given, "create_graph", False)
    retain = _flag(vm, given, "retain_graph", create)
    found = reached(vm, tensors)
    wanted = given.get("inputs", NONE)
    if vm.is_none(wanted):
        leaves = [v for v in found if v.fake(vm).is_leaf or v.retains]
    else:
        leaves = [v for v in _listed(vm, wanted) if isinstance(v, TensorValue)]
    if not leaves:
        unsupported("backward() that reaches no tensor that requires grad", "the call in eager says why")
    call: list[Value] = [ListValue(list(tensors)), ListValue(list(leaves)), ListValue(list(grads))]
    options: dict[str, Value] = {"retain_graph": _bool(retain), "create_graph": _bool(create), "allow_unused": TRUE}
    hooked = any(_hooks(vm, leaf, "_backward_hooks") for leaf in leaves)
    new = vm.unpack(vm.record(grad_without_hooks if hooked else torch.autograd.grad, call, options))
    for leaf, g in zip(leaves, new):
        if not isinstance(g, TensorValue):
            continue
        g = _hooked(vm, leaf, g)
        accumulate(vm, leaf, g, create)
        _after_hooks(vm, leaf)
    return NONE


def _bool(b: bool) -> Const:
    return TRUE if b else FALSE


def reached(vm: Tracer, heads: list[TensorValue], wanted: list[TensorValue] | None = None) -> list[TensorValue]:
    """The tensors of the graph that the heads' history leads to and that may keep a gradient: leaves, and those with
    ``retain_grad()``. Breaks where the history goes on outside of the captured function and may lead to one of
    ``wanted`` (None: to any leaf) there."""
    retained = {id(v.fake(vm).grad_fn): v for v in vm.retained}
    out: dict[TensorValue, None] = {}
    seen: set[Any] = set()
    todo: list[Any] = []
    for h in heads:
        fake = h.fake(vm)
        if fake.grad_fn is not None:
            todo.append(fake.grad_fn)
        elif fake.requires_grad:
            out[h] = None
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if id(node) in retained:
            out[retained[id(node)]] = None
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            v = vm.by_fake.get(id(leaf))
            if v is None:
                unsupported("a gradient for a tensor that the compiled function does not know")
            out[v] = None
        todo += [n for n, _ in node.next_functions if n is not None]
    existing = None if wanted is None else [w for w in wanted if w.source is not None]
    for v in out:
        if existing is None or any(w is not v for w in existing):
            _check_leaf(vm, v)
    return list(out)


def _check_leaf(vm: Tracer, v: TensorValue) -> None:
    """An existing tensor takes a gradient: it must be a leaf in eager, too."""
    if v.raw is None or v.source is None or not v.raw.requires_grad:
        return
    if not v.raw.is_leaf:
        unsupported(_OUTSIDE, _HINT)
    if not isinstance(v.raw, torch.nn.Parameter):
        vm.guards.const(v.source.attr("is_leaf"), True)


# ---- what becomes of a gradient


def accumulate(vm: Tracer, leaf: TensorValue, g: TensorValue, create: bool) -> None:
    """What the engine does with the gradient of a leaf: add it to ``.grad``, or make it the first one."""
    before = leaf.get_attr(vm, "grad")
    if isinstance(before, TensorValue):
        if create:
            set_grad(vm, leaf, vm.record(torch.add, [before, g], {}))
        else:
            with no_grad(vm):
                vm.record(torch.Tensor.add_, [before, g], {})
        return
    like, fake = leaf.fake(vm), g.fake(vm)
    if create or like.stride() == fake.stride():
        first = vm.record(torch.Tensor.clone, [g], {})
    else:
        first = vm.record(torch.empty_like, [leaf], {"requires_grad": FALSE})
        first = vm.record(torch.Tensor.copy_, [first, g], {})
    set_grad(vm, leaf, first)


class no_grad:
    """Gradients are added with grad mode off."""

    def __init__(self, vm: Tracer) -> None:
        self.vm = vm

    def __enter__(self) -> None:
        self.before = torch.is_grad_enabled()
        self._set(False)

    def __exit__(self, *error: object) -> None:
        self._set(self.before)

    def _set(self, on: bool) -> None:
        if torch.is_grad_enabled() != on:
            HANDLERS[torch._C._set_grad_enabled](self.vm, [_bool(on)], {})


def set_grad(vm: Tracer, v: TensorValue, value: Value) -> None:
    """``v.grad = value``."""
    if isinstance(value, TensorValue):
        mine, theirs = v.fake(vm), value.fake(vm)
        if (mine.shape, mine.dtype, mine.device) != (theirs.shape, theirs.dtype, theirs.device):
            unsupported("assigning a .grad of another shape, dtype or device", "eager says what does not fit")
        if value is v:
            unsupported("a tensor that is its own .grad")
    elif not vm.is_none(value):
        unsupported(f"assigning a {value.pytype(vm).__name__} to .grad")
    v.grad = value
    if v.source is not None:
        vm.effects.touch(v)


def set_data(vm: Tracer, v: TensorValue, value: Value) -> None:
    """``v.data = value`` of an existing tensor: an attribute that is stored after the graph."""
    what = "assigning to the attribute 'data' of a tensor"
    if v.raw is None or v.source is None or not isinstance(value, TensorValue) or value is v or v.sets_data is not None:
        unsupported(what)
    mine, theirs = v.fake(vm), value.fake(vm)
    same = (mine.shape, mine.dtype, mine.device) == (theirs.shape, theirs.dtype, theirs.device)
    if not same or v in vm.flagged_inputs or value.cls not in (torch.Tensor, torch.nn.Parameter):
        unsupported(f"{what} with a tensor of another kind")
    new = vm.record(torch.Tensor.detach, [value], {}) if theirs.requires_grad else value
    v.sets_data = new
    vm.effects.touch(v)


def get_grad(vm: Tracer, v: TensorValue) -> Value:
    """``v.grad``."""
    if v.grad is None:
        if v.raw is None or v.source is None:
            if not v.fake(vm).is_leaf and not v.retains:
                unsupported("reading .grad of a tensor that is no leaf", "call retain_grad() on it first")
            v.grad = NONE
        else:
            v.node(vm)
            v.grad = v.grad_before = vm.wrap(v.raw.grad, v.source.attr("grad"))
            if v.raw.grad is None:
                vm.is_none(v.grad)
                v.grad = v.grad_before = NONE
    return v.grad


# ---- hooks of leaves


def _hooks(vm: Tracer, leaf: TensorValue, name: str) -> list[Value]:
    if leaf.raw is None or leaf.source is None:
        return []
    raw = getattr(leaf.raw, name)
    hooks = vm.wrap(raw, leaf.source.attr(name))
    return [] if vm.is_none(hooks) else vm.unpack(hooks.get_attr(vm, "values").call(vm, [], {}))


def _hooked(vm: Tracer, leaf: TensorValue, g: TensorValue) -> TensorValue:
    """The gradient as ``register_hook``'s functions leave it."""
    for hook in _hooks(vm, leaf, "_backward_hooks"):
        with no_grad(vm):
            new = hook.call(vm, [g], {})
        if isinstance(new, TensorValue):
            g = new
        elif not vm.is_none(new):
            unsupported("a tensor hook that returns something else than a tensor or None")
    return g


def _after_hooks(vm: Tracer, leaf: TensorValue) -> None:
    for hook in _hooks(vm, leaf, "_post_accumulate_grad_hooks"):
        with no_grad(vm):
            hook.call(vm, [leaf], {})


# ---- torch.autograd.grad, and which tensors require grad


@handles(torch.autograd.grad)
def autograd_grad(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _bind(_GRAD, args, kwargs, "torch.autograd.grad()")
    heads = [h for h in _listed(vm, given["outputs"]) if isinstance(h, TensorValue)]
    wanted = [x for x in _listed(vm, given["inputs"]) if isinstance(x, TensorValue)]
    if _flag(vm, given, "is_grads_batched", False):
        unsupported("torch.autograd.grad(is_grads_batched=True)")
    known = {id(w) for w in wanted}
    for v in reached(vm, heads, wanted):
        if id(v) in known and v.raw is not None and v.raw._backward_hooks is not None:
            unsupported("torch.autograd.grad() for a tensor with hooks")
    if not isinstance(given["outputs"], SequenceValue):
        given["outputs"] = TupleValue([given["outputs"]])
    if not isinstance(given["inputs"], SequenceValue):
        given["inputs"] = TupleValue([given["inputs"]])
    return vm.record(torch.autograd.grad, [], given)


@handles(torch.Tensor.requires_grad_)
def requires_grad_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _bind(("self", "requires_grad"), args, kwargs, "Tensor.requires_grad_()")
    v = given["self"]
    assert isinstance(v, TensorValue)
    set_requires_grad(vm, v, given.get("requires_grad", TRUE))
    return v


def set_requires_grad(vm: Tracer, v: TensorValue, value: Value) -> None:
    """``v.requires_grad = value``. Of an existing tensor it is stored after the graph, too."""
    on = value.truth(vm)
    if v.fake(vm).requires_grad == on:
        return
    if v.source is not None:
        assert v.raw is not None
        if not v.raw.is_leaf:
            unsupported("changing requires_grad of a tensor that is no leaf")
        vm.guards.const(v.source.attr("is_leaf"), True)
    vm.record(torch.Tensor.requires_grad_, [v, _bool(on)], {})
    if v.source is not None:
        v.sets_requires_grad = _bool(on) if v.raw is None or v.raw.requires_grad != on else None
        vm.effects.touch(v)


@handles(torch.Tensor.retain_grad)
def retain_grad(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    v = args[0]
    assert isinstance(v, TensorValue)
    if not v.fake(vm).requires_grad:
        unsupported("retain_grad() of a tensor that does not require grad")
    if v.raw is not None and v.source is not None and v.raw.requires_grad:
        if not v.raw.is_leaf:
            unsupported("retain_grad() of a tensor that was made outside of the compiled function", "call it outside")
        vm.guards.const(v.source.attr("is_leaf"), True)
    if v.fake(vm).grad_fn is not None and "retain_grad" in vm.plan.refused:
        unsupported("retain_grad() of a tensor that leaves the compiled function", "call it outside")
    if v.fake(vm).grad_fn is not None and not v.retains:
        v.retains = True
        vm.retained.append(v)
    return NONE
