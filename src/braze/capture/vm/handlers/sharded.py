"""DTensors: a graph's inputs and outputs are their local parts, its calls are on DTensors over tracing tensors.

What a DTensor is (mesh, placements, global sizes) is known while tracing; its spec is guarded.  ``from_local``,
``redistribute``, ``to_local`` and ``full_tensor`` are calls of the graph, so that the hooks of ``parallelize_module``
are inlined like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from braze.capture import sharded_forms as forms
from braze.fake import fake_from, fake_like, type_of, with_history
from braze.fake.sharded import ENABLED
from braze.ir import Node

from ..registry import NAMED
from ..signals import NotConst, unsupported
from ..values.base import NONE, Const, Value
from ..values.objects import ObjectValue
from ..values.tensor import TensorValue

if TYPE_CHECKING:
    from ..tracer import Tracer

_API = "torch.distributed.tensor._api"
_HINT = "leave it to eager: call it outside of the compiled function"


@dataclass(frozen=True, slots=True)
class _SameSpec:
    """Whether a DTensor's spec equals this one."""

    spec: Any

    def __call__(self, spec: Any) -> bool:
        return spec is self.spec or bool(spec == self.spec)


def add_sharded(vm: Tracer, v: TensorValue) -> None:
    """Make an existing DTensor an input of the graph: its local part, and a call that makes it whole."""
    source = v.source
    raw: Any = v.raw
    assert raw is not None and source is not None
    spec, local = raw._spec, raw._local_tensor
    if type(local) is not torch.Tensor:
        unsupported(f"a DTensor over a {type(local).__name__}")
    vm.guards.tensor(source, raw, tuple(raw.shape), raw.stride())
    where = source.attr("_spec")
    if isinstance(raw, torch.nn.Parameter):  # whose spec is made once
        vm.guards.same_object(where, spec)
    else:
        vm.guards.custom(where, _SameSpec(spec), f"the spec {spec}")
    vm.guards.tensor(source.attr("_local_tensor"), local, tuple(local.shape), local.stride())
    t = type_of(fake_like(local)).with_(requires_grad=raw.requires_grad)
    from ..record import input_name

    node = vm.graph.input(input_name(source.name()), t)
    fake: Any = fake_from(t)
    vm.inputs.append(TensorValue(node, fake, raw=local, source=source))
    whole = forms.Whole(spec)
    vm.sharded_inputs[vm.inputs[-1]] = whole
    with torch.enable_grad():
        fake = whole(fake)
    first = [node, vm.graph.call(whole, (node,), {}, type_of(fake))]
    vm.graph.nodes[:] = [*first, *vm.graph.nodes[: -len(first)]]
    v._fake, v._node = fake, first[1]
    vm.by_fake[id(fake)] = v
    vm.sharded[first[1]] = fake


def add_pending(vm: Tracer, v: TensorValue) -> None:
    """Make a result that eager has not waited for an input of the graph: complete, as a tensor with a history."""
    raw, source = v.raw, v.source
    assert raw is not None and source is not None
    from ..record import input_name

    with _disable_current_modes():
        plain = forms.Waited.part(raw).detach()
    vm.guards.tensor(source, raw, tuple(raw.shape), raw.stride())
    t = type_of(fake_like(plain)).with_(requires_grad=raw.requires_grad)
    node = vm.graph.input(input_name(source.name()), t)
    fake = fake_from(t)
    vm.inputs.append(TensorValue(node, fake, raw=plain, source=source))
    vm.sharded_inputs[vm.inputs[-1]] = forms.Waited
    v._fake, v._node, v.cls = with_history(fake), node, torch.Tensor
    vm.by_fake[id(v._fake)] = v


def local_outputs(vm: Tracer, outputs: list[Node]) -> tuple[list[Node], dict[int, forms.Rewrapped]]:
    """The graph's outputs with local parts for DTensors, and how the callers get those whole, by position."""
    out, made = list(outputs), {}
    for k, node in enumerate(outputs):
        fake = vm.sharded.get(node)
        if fake is not None:
            spec = fake._spec
            local = forms.local_part(fake)
            out[k] = vm.graph.call(forms.local_part, (node,), {}, type_of(local))
            made[k] = forms.Rewrapped(spec.mesh, tuple(spec.placements), tuple(fake.shape), fake.stride())
    return out, made


def attribute(vm: Tracer, v: TensorValue, name: str) -> Value | None:
    """What is known of a DTensor beyond a tensor's attributes; None for other names."""
    fake: Any = v.fake(vm)
    if name == "placements":
        return vm.wrap(tuple(fake.placements), None)
    if name == "device_mesh":
        return vm.wrap_frozen(fake.device_mesh, "a DTensor's mesh")
    if name in ("_spec", "_local_tensor", "data", "grad_fn"):
        unsupported(f"reading DTensor.{name}", "use placements, device_mesh and to_local()")
    return None


# ---- methods


def _known(vm: Tracer, v: Value) -> Const:
    """A mesh or placements as a constant of the graph."""
    if isinstance(v, ObjectValue) and v.raw is not None:
        vm.guards.const(v.source, v.raw)
        return Const(v.raw)
    try:
        return Const(v.as_python(vm))
    except NotConst:
        unsupported("a DTensor whose mesh or placements are not known while compiling", _HINT)


_FROM = "local_tensor device_mesh placements run_check shape stride grad_placements"
_REDISTRIBUTE = "self device_mesh placements async_op forward_dtype backward_dtype"


def _given(names: str, args: list[Value], kwargs: dict[str, Value], what: str) -> dict[str, Value]:
    given = {**dict(zip(names.split(), args)), **kwargs}
    if len(args) > len(names.split()) or set(given) - set(names.split()):
        unsupported(f"{what} with the arguments {', '.join(sorted(given))}", _HINT)
    return given


def _from_local(vm: Tracer, raw: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _given(_FROM, args, kwargs, "DTensor.from_local()")
    if "run_check" in given and given["run_check"].truth(vm):
        unsupported("DTensor.from_local(run_check=True), which compares ranks", "give run_check=False")
    local = given["local_tensor"]
    if not isinstance(local, TensorValue):
        unsupported("DTensor.from_local() of something that is no tensor")
    for n in local.fake(vm).shape:
        int(n)  # DTensor's rules need numbers: a symbolic size is pinned
    names = ("device_mesh", "placements", "shape", "stride", "grad_placements")
    return vm.record(forms.from_local, [local, *(_known(vm, given.get(n, NONE)) for n in names)], {})


def _redistribute(vm: Tracer, raw: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _given(_REDISTRIBUTE, args, kwargs, "DTensor.redistribute()")
    dtypes = {n: given[n].as_const(vm) for n in ("forward_dtype", "backward_dtype") if n in given}
    mesh, placements = (_known(vm, given.get(n, NONE)) for n in ("device_mesh", "placements"))
    return vm.record(forms.redistribute, [given["self"], mesh, placements, Const(dtypes or None)], {})


def _local(form: Any) -> Any:
    def handler(vm: Tracer, raw: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = _given("self grad_placements", args, kwargs, f"DTensor.{form.__name__}()")
        return vm.record(form, [given["self"], _known(vm, given.get("grad_placements", NONE))], {})

    return handler


if ENABLED:
    NAMED.update(
        {
            "from_local": (_API, _from_local),
            "redistribute": (_API, _redistribute),
            "to_local": (_API, _local(forms.to_local)),
            "full_tensor": (_API, _local(forms.full_tensor)),
        }
    )
