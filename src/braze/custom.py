"""``@braze.primitive``: a new operator by one decorator, for eager and compiled code alike.

    @braze.primitive("mylib::axpy(Tensor x, Tensor y, float a) -> Tensor",
                     derivative=lambda grad, x, y, a: (grad * a, grad, None),
                     lowering=lambda p, x, y, a: p.add(p.mul(x, a), y))
    def axpy(x, y, a):
        return x * a + y

Compiled, a call fuses where there is a ``lowering``, and is one call of the implementation elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .fake import forget, register
from .ir import TensorType, contiguous_strides, leaves
from .prims.registry import register as register_lowering
from .runtime.cpu_user import UserKernel, implementation

_libraries: list[Any] = []  # registrations live as long as these


def primitive(
    schema: str,
    *,
    shape: Callable[..., Any] | None = None,
    derivative: Callable[..., Any] | None = None,
    lowering: Callable[..., Any] | None = None,
    cuda: Callable[..., Any] | None = None,
    llvm: Callable[..., None] | None = None,
    units: Callable[..., int] | None = None,
) -> Callable[[Callable[..., Any]], Any]:
    """Registers an operator; the decorated function, in torch operations or plain Python, is its implementation.

    ``schema``: "namespace::name(arguments) -> results", as for ``torch.library``; a function of its arguments, which it
    does not overwrite. ``shape(*args)`` gives the results' ``braze.ir.TensorType`` for arguments with a TensorType in
    the place of each tensor; without it the result is like the first tensor, contiguous. ``derivative(*grads, *args)``
    gives a gradient or None for each argument, in torch operations. ``lowering(p, *args)`` computes the result of
    primitives, ``p.mul(x, p.exp(y))``, with broadcasting and numbers as operands (the rows of docs/primitives.md); the
    implementation still defines what eager does. ``cuda`` is another implementation for CUDA tensors, such as the
    launch of a Triton kernel.  ``llvm(k, *results, *args)`` is one for CPU tensors at the level of LLVM: it emits, with
    llvmlite's builder ``k.b``, the code of one unit of work (``braze.runtime.cpu_user``). ``units(*args)``, of types as
    ``shape``, is how many there are; without it one for each row along the first tensor's last dim.

    Gives ``torch.ops.namespace.name``. ValueError for a schema that overwrites an argument or lacks the namespace.
    """
    name, parenthesis, _ = schema.partition("(")
    namespace, colons, base = name.strip().partition("::")
    if not (parenthesis and colons and base):
        raise ValueError(f'a schema is "namespace::name(arguments) -> results", not {schema!r}')

    def add(plain: Callable[..., Any]) -> Any:
        library: Any = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
        library.define(schema.strip().removeprefix(f"{namespace}::"))
        packet = getattr(getattr(torch.ops, namespace), base)
        op = packet.default
        if op._schema.is_mutable:
            library._destroy()
            raise ValueError(f"{schema!r} overwrites an argument: return the new value instead")
        _libraries.append(library)
        library.impl(base, plain, "CompositeExplicitAutograd")
        if llvm is not None:
            kernel = UserKernel(f"{namespace}::{base}", llvm)
            run = implementation(kernel, shape or _like_the_first, units, plain)
            library.impl(base, _of_all_arguments(op, run), "CPU")
        if cuda is not None:
            library.impl(base, cuda, "CUDA")
        register(shape or _like_the_first, [f"{namespace}::{base}"])
        forget()
        if lowering is not None:
            register_lowering(f"{namespace}::{base}", lowering)
        if derivative is not None:
            _differentiable(f"{namespace}::{base}", derivative, library)
        return packet

    return add


def _of_all_arguments(op: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, given every argument of the operator's schema by place."""
    arguments = [(a.name, a.default_value) for a in op._schema.arguments]

    def call(*args: Any, **kwargs: Any) -> Any:
        return run(*args, *[kwargs.get(name, default) for name, default in arguments[len(args) :]])

    return call


def _like_the_first(*args: Any, **kwargs: Any) -> TensorType:
    """The type of a contiguous result with the first tensor's sizes and dtype."""
    first = next(x for x in leaves((args, kwargs)) if isinstance(x, TensorType))
    return TensorType(first.sizes, contiguous_strides(first.sizes), first.dtype, first.device)


def _differentiable(name: str, derivative: Callable[..., Any], library: torch.library.Library) -> None:
    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.places = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        ctx.save_for_backward(*[inputs[i] for i in ctx.places])
        ctx.others = [None if isinstance(x, torch.Tensor) else x for x in inputs]

    def backward(ctx: Any, *grads: Any) -> Any:
        args = list(ctx.others)
        for i, x in zip(ctx.places, ctx.saved_tensors):
            args[i] = x
        return derivative(*grads, *args)

    torch.library.register_autograd(name, backward, setup_context=save, lib=library)
