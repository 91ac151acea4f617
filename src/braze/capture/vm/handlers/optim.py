"""torch.optim: the wrappers around ``step``, and grouping by device and dtype. The update rules are interpreted."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.autograd.profiler
from torch.optim.optimizer import _use_grad_for_differentiable
from torch.utils._python_dispatch import _disable_current_modes

from ..registry import CODE_HANDLERS, HANDLERS, handles, simple
from ..signals import Restart, unsupported
from ..values.base import FALSE, NONE, TRUE, Const, Value
from ..values.functions import MethodValue
from ..values.mappings import DictValue
from ..values.sequences import ListValue, TupleValue
from ..values.statics import FunctionValue
from ..values.tensor import TensorValue
from .gradients import set_grad
from .markers import DISABLED_BY_TORCH

if TYPE_CHECKING:
    from ..tracer import Tracer


def _step_under_its_grad_mode(func: Any, *args: Any, **kwargs: Any) -> Any:
    """What the closure of ``_use_grad_for_differentiable`` does, without its messages to torch's own compiler."""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(args[0].defaults["differentiable"])
        return func(*args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


def use_grad(vm: Tracer, f: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``_use_grad_for_differentiable(func)(*args)``."""
    func = dict(zip(f.code.co_freevars, f.cells(vm)))["func"].read(vm)
    assert func is not None
    plain: Any = _step_under_its_grad_mode
    return vm.call_function(FunctionValue(plain), [func, *args], kwargs)


def call_wrapped(vm: Tracer, f: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function of torch's that torch's own compiler leaves alone: it is interpreted like any other."""
    fn = dict(zip(f.code.co_freevars, f.cells(vm)))["fn"].read(vm)
    assert fn is not None
    return fn.call(vm, args, kwargs)


CODE_HANDLERS[DISABLED_BY_TORCH] = call_wrapped
CODE_HANDLERS[_use_grad_for_differentiable(lambda: None).__code__] = use_grad

for _name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
    if hasattr(torch.optim.Optimizer, _name):  # about graphs that the program itself records
        HANDLERS[getattr(torch.optim.Optimizer, _name)] = lambda vm, args, kwargs: NONE

# ---- state that the first step makes


def _prepared(init: Any) -> Any:
    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        opt = getattr(args[0], "raw", None)
        if opt is not None and id(opt) not in vm.plan.prepared:
            missing = [
                [p for p in g["params"] if not opt.state.get(p) and _has_gradient(vm, p)] for g in opt.param_groups
            ]
            if any(missing):
                vm.plan.prepared.add(id(opt))
                _prepare(vm, opt, missing)
        return vm.inline_function(FunctionValue(init), args, kwargs)

    return handler


def _prepare(vm: Tracer, opt: Any, missing: list[list[torch.Tensor]]) -> None:
    """Make the state now where the trace has not looked at it; else before another trace."""

    def make() -> None:
        for group, params in zip(opt.param_groups, missing):
            make_state(opt, group, params)

    if vm.known_value(opt.state) is not None:
        vm.plan.prepare.append(make)
        raise Restart
    with _disable_current_modes():
        make()


def _has_gradient(vm: Tracer, p: torch.Tensor) -> bool:
    v = vm.known_value(p)
    if v is None:  # the trace has not touched it
        return p.grad is not None
    return isinstance(v, TensorValue) and isinstance(v.get_attr(vm, "grad"), TensorValue)


def make_state(opt: Any, group: dict[str, Any], params: list[torch.Tensor]) -> None:
    """What the optimizer's first step creates (counters, moments), made before the trace, so that one compiled version
    serves the first step and all others."""
    if not params:
        return
    before = [p.grad for p in group["params"]]
    lists = len(inspect.signature(opt._init_group).parameters) - 1
    with torch.no_grad():
        try:
            for p in group["params"]:
                p.grad = None
            for p in params:
                p.grad = torch.zeros((), dtype=p.dtype, device=p.device).expand(p.shape)
            opt._init_group(group, *[[] for _ in range(lists)])
        finally:
            for p, g in zip(group["params"], before):
                p.grad = g
    for p in params:
        if type(opt) is torch.optim.SGD and group["momentum"] and not group["dampening"]:
            # the first step takes the gradient, which is what a step makes of zeros
            opt.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format).detach()
        if not opt.state[p]:
            del opt.state[p]  # a look at what is not there made it


for _cls in vars(torch.optim).values():
    if isinstance(_cls, type) and "_init_group" in vars(_cls):
        _init: Any = vars(_cls)["_init_group"]
        HANDLERS[_init] = _prepared(_init)

# ---- zero_grad: gradients become None whatever they were, so a first step is no version of its own


def _forgets(zero_grad: Any, ready: Any) -> Any:
    """``zero_grad(set_to_none=True)`` without a look at the gradients."""

    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        flag = dict(zip(("self", "set_to_none"), args)) | kwargs
        to_none = flag.pop("set_to_none", TRUE)
        plain = len(flag) == 1 and len(args) < 3 and isinstance(to_none, Const) and to_none.as_const(vm) is True
        params = ready(vm, args[0]) if plain else None
        if params is None or not all(isinstance(p, TensorValue) and p.raw is not None for p in params):
            return vm.inline_function(FunctionValue(zero_grad), args, kwargs)
        for p in params:
            p.pytype(vm)
            set_grad(vm, p, NONE)
        return NONE

    return handler


def _grouped(vm: Tracer, opt: Value) -> list[Value] | None:
    if not hasattr(getattr(opt, "raw", None), "_zero_grad_profile_name"):  # of an unpickled one
        return None
    groups = vm.unpack(opt.get_attr(vm, "param_groups"))
    return [p for g in groups for p in vm.unpack(g.get_item(vm, Const("params")))]


def _owned(vm: Tracer, module: Value) -> list[Value] | None:
    replica = vm.get_attr_or_none(module, "_is_replica")
    if replica is not None and replica.truth(vm):
        return None
    return vm.unpack(module.get_attr(vm, "parameters").call(vm, [], {}))


for _zero_grad, _params in ((torch.optim.Optimizer.zero_grad, _grouped), (torch.nn.Module.zero_grad, _owned)):
    HANDLERS[inspect.unwrap(_zero_grad)] = _forgets(inspect.unwrap(_zero_grad), _params)

# ---- profiler marks: nothing to compute


@handles(torch.autograd.profiler.record_function.__enter__)
def mark_enter(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    args[0].set_attr(vm, "run_callbacks_on_exit", FALSE)  # for the real __exit__, after a graph break
    return args[0]


@handles(torch.autograd.profiler.record_function.__exit__)
def mark_exit(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return NONE


def _group(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Lists of tensors by the device and dtype of the first list's: ``{(device, dtype): (lists, indices)}``."""
    lists = [vm.unpack(x) for x in vm.unpack(args[0])]
    with_indices = len(args) > 1 and args[1].truth(vm)
    places: dict[tuple[Any, Any], list[int]] = {}
    for i, t in enumerate(lists[0]):
        if not isinstance(t, TensorValue):
            unsupported("grouping something else than tensors by device")
        fake = t.fake(vm)
        places.setdefault((fake.device, fake.dtype), []).append(i)
    out = DictValue()
    for (device, dtype), where in places.items():
        grouped = [ListValue([x[i] for i in where] if x else []) for x in lists]
        indices = [Const(i) for i in where] if with_indices else []
        key = TupleValue([Const(device), Const(dtype)])
        out.set_item(vm, key, TupleValue([ListValue(list(grouped)), ListValue(list(indices))]))
    return out


HANDLERS[torch._C._group_tensors_by_device_and_dtype] = _group


@simple(FunctionType.__get__)
def bind_function(vm: Tracer, f: Value, obj: Value, cls: Value = NONE) -> Value:
    """``f.__get__(obj, cls)``: schedulers bind the optimizer's step so."""
    return f if vm.is_none(obj) else MethodValue(f, obj)
