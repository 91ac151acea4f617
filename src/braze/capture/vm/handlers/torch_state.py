"""Torch functions that are about the process or the compiler, not about tensors.

Reading a mode (grad mode, autocast) gives its value during the trace, which the guard on the global state pins at
entry. Changing one is done for real while tracing, is written into the graph as a call, so that running the graph
repeats it, and is undone after the trace.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.backends.mha
import torch.compiler
import torch.overrides
import torch.utils.checkpoint
from torch import nn

from braze.capture import directives

from ..passing import passes_result
from ..registry import BREAKS, HANDLERS, handles
from ..signals import NotConst, unsupported
from ..values.base import FALSE, NONE, TRUE, Const, Value
from ..values.floats import in_optimizer
from ..values.functions import PartialValue

if TYPE_CHECKING:
    from ..tracer import Tracer


def _constant(value: Value, *functions: Any) -> None:
    for f in functions:
        if f is not None:
            HANDLERS[f] = lambda vm, args, kwargs: value


_constant(
    FALSE,
    torch.jit.is_scripting,  # type: ignore[attr-defined]
    torch.jit.is_tracing,  # type: ignore[attr-defined]
    torch.overrides.has_torch_function,
    torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic,
    torch._C._has_torch_function,
    torch._C._has_torch_function_unary,
    torch._C._has_torch_function_variadic,
    getattr(torch.onnx, "is_in_onnx_export", None),
    getattr(torch.compiler, "is_exporting", None),
    getattr(torch._C, "_are_functorch_transforms_active", None),
    getattr(torch, "is_storage", None),
)
_constant(FALSE, torch.backends.mha.get_fastpath_enabled)  # whole layers as one kernel: their parts fuse better
_constant(NONE, torch._C._log_api_usage_once, torch._C._get_tracing_state)


@handles(directives.is_compiling)
def braze_is_compiling(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return TRUE


@handles(torch.compiler.is_compiling, getattr(torch.compiler, "is_dynamo_compiling", torch.compiler.is_compiling))
def is_compiling(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """True, as libraries expect; the optimizers take their eager paths, whose numbers are eager's, unless those branch
    on a tensor's value."""
    return FALSE if in_optimizer(vm) and not vm.plan.capturable else TRUE


_jit = getattr(torch, "_jit_internal", None)
_constant(FALSE, getattr(_jit, "is_scripting", None))


def _named(path: str) -> Any:
    """The function at a path below ``torch``, or None where this version of torch lacks it."""
    out: Any = torch
    for part in path.split("."):
        out = getattr(out, part, None)
    return out


def _reads(*functions: Any) -> None:
    """Functions that report a mode; the real one is in force while tracing."""

    def make(function: Any) -> Any:
        return lambda vm, args, kwargs: vm.fold(function, args, kwargs)

    for f in functions:
        if f is not None:
            HANDLERS[f] = make(f)


_MODES = """
    is_grad_enabled is_inference_mode_enabled is_autocast_enabled get_autocast_dtype is_autocast_cache_enabled
    get_default_dtype are_deterministic_algorithms_enabled is_deterministic_algorithms_warn_only_enabled get_num_threads
    is_autocast_cpu_enabled get_autocast_gpu_dtype get_autocast_cpu_dtype get_default_device cuda.is_available
    cuda.device_count cuda.is_bf16_supported cuda.get_device_capability amp.is_autocast_available
    accelerator.is_available _C._get_cudnn_enabled _C._get_cudnn_benchmark _C._get_cudnn_deterministic
    _C._get_mkldnn_enabled _C._get_cudnn_allow_tf32 _C._get_cublas_allow_tf32 _C._get_flash_sdp_enabled
    _C._get_mem_efficient_sdp_enabled _C._get_math_sdp_enabled _C._get_cudnn_sdp_enabled
    _C._get_privateuse1_backend_name _C._is_autocast_available _C._get_default_device _C._is_torch_function_enabled
    _C._is_torch_function_all_disabled _C._len_torch_function_stack _C._is_torch_function_mode_enabled
    _C._accelerator_hooks_is_available _C._get_float32_matmul_precision _C._get_deterministic_algorithms
"""
_reads(*map(_named, _MODES.split()))


def _writes(read: Any, *functions: Any) -> None:
    """Functions that change a mode; ``read(args)`` gives a call that restores it, as (function, args)."""

    def make(function: Any) -> Any:
        def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
            real = tuple(a.as_const(vm) for a in args) + tuple(v.as_const(vm) for v in kwargs.values())
            try:
                vm.modes.change(function, real, read(*real))
            except (TypeError, RuntimeError) as e:
                vm.raise_real(e)
            vm.graph.call(function, real, None, None, vm.loc())
            return NONE

        return handler

    for f in functions:
        if f is not None:
            HANDLERS[f] = make(f)


_writes(lambda *a: (torch._C._set_grad_enabled, (torch.is_grad_enabled(),)), torch._C._set_grad_enabled)
_writes(
    lambda d, on: (torch.set_autocast_enabled, (d, torch.is_autocast_enabled(d))),
    torch.set_autocast_enabled,
)
_writes(lambda d, t: (torch.set_autocast_dtype, (d, torch.get_autocast_dtype(d))), torch.set_autocast_dtype)
_writes(
    lambda on: (torch.set_autocast_cache_enabled, (torch.is_autocast_cache_enabled(),)),
    torch.set_autocast_cache_enabled,
)
_writes(lambda: None, torch.clear_autocast_cache)


def _nesting(function: Any, undo: Any) -> None:
    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        vm.graph.call(function, (), None, 0, vm.loc())
        depth = vm.modes.change(function, (), (undo, ()))
        return Const(depth)

    HANDLERS[function] = handler


_nesting(torch.autocast_increment_nesting, torch.autocast_decrement_nesting)
_nesting(torch.autocast_decrement_nesting, torch.autocast_increment_nesting)


class _NoGradRegion:
    """What ``torch.inference_mode()`` is inside a compiled function: gradients off; its tensors stay ordinary ones."""

    def __init__(self, mode: bool) -> None:
        self.mode, self.before = mode, True

    def __enter__(self) -> None:
        self.before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *error: object) -> None:
        torch._C._set_grad_enabled(self.before)


@handles(torch._C._InferenceMode)
def inference_mode(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args[0].truth(vm):
        unsupported("torch.inference_mode(False)")
    return vm.wrap_static(_NoGradRegion).call(vm, args, {})


@handles(torch.compiler.disable)
def compiler_disable(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    unsupported("torch.compiler.disable() inside the compiled function")


BREAKS.update(
    {
        torch.manual_seed: ("torch.manual_seed()", "seed outside of the compiled function"),
        torch.get_rng_state: ("torch.get_rng_state()", ""),
        torch.set_rng_state: ("torch.set_rng_state()", ""),
        torch.set_default_dtype: ("torch.set_default_dtype()", "set it outside of the compiled function"),
        torch.save: ("torch.save()", ""),
        torch.load: ("torch.load()", ""),
        torch._C._autograd._push_saved_tensors_default_hooks: (
            "hooks on saved tensors inside of the compiled function",
            "put them around the compiled function: it passes all that it saves through them",
        ),
        torch._C._autograd._pop_saved_tensors_default_hooks: ("the end of hooks on saved tensors", ""),
        nn.Module.register_forward_hook: ("registering a hook", "register it outside of the compiled function"),
    }
)


@handles(torch.utils.checkpoint.checkpoint)
@passes_result
def checkpoint(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The function itself, its calls marked: the partitioner has the backward compute them again, apart from what a
    selective checkpoint's policy saves (``context_fn``, asked when the graph is traced)."""
    contexts = _contexts(vm, kwargs["context_fn"]) if "context_fn" in kwargs else None
    start = len(vm.graph.nodes)
    out = args[0].call(vm, args[1:], {k: v for k, v in kwargs.items() if k not in _OF_CHECKPOINT})
    for n in vm.graph.nodes[start:]:
        n.tags["checkpoint"] = start
        n.tags.setdefault("inner", start)
        n.tags.pop("contexts", None)
        if contexts is not None:
            n.tags["contexts"] = contexts
    return out


_OF_CHECKPOINT = frozenset(
    "use_reentrant context_fn determinism_check debug preserve_rng_state early_stop respect_saved_tensors_hooks".split()
)


def _contexts(vm: Tracer, given: Value) -> Any:
    """A checkpoint's ``context_fn``, of which only the policy of a selective checkpoint is understood; None for the one
    that does nothing."""
    hint = "make it with functools.partial(create_selective_checkpoint_contexts, policy), outside of what is compiled"
    try:
        found = _existing(vm, given)
    except NotConst:
        unsupported("a checkpoint's context_fn that the compiled function makes", hint)
    if found is torch.utils.checkpoint.noop_context_fn:
        return None
    if not hasattr(found()[0], "policy_fn"):
        unsupported("a checkpoint whose context_fn is not that of a selective checkpoint", hint)
    return found


def _existing(vm: Tracer, value: Value) -> Any:
    """A function that exists, or a partial of one, guarded. Raises NotConst."""
    if isinstance(value, PartialValue):
        args = [_existing(vm, a) for a in value.args]
        kwargs = {k: _existing(vm, v) for k, v in value.kwargs.items()}
        return functools.partial(_existing(vm, value.func), *args, **kwargs)
    return value.as_python(vm)
