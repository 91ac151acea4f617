"""How a pair of compiled graphs is called: what autograd's partition tells the runtime.

With ``S`` a :class:`Signature`, the compiled graphs mean::

    (*results, *mutated, *extras) = forward(*inputs)          # len: S.n_results, len(S.mutated), the rest
    (*gradients,)                 = backward(*saved, *tangents)   # one gradient or None for each input

``results`` are what the user's outputs are made of: an output is a result, an input, a view of either, or a constant.
A forward that has written a mutated input's new value
into the input itself returns None in its place; it may do so for the inputs that are not differentiable.

``saved`` picks from inputs, results and extras.  There is one tangent for each differentiable result and then for each
differentiable mutated input, of the layout in ``tangents``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .types import TensorType


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view operator to replay: ``op(x, *args, **kwargs)``, then ``[index]`` where ``op`` gives several views."""

    op: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    index: int | None = None

    def __call__(self, x: Any) -> Any:
        out = self.op(x, *self.args, **dict(self.kwargs))
        return out if self.index is None else out[self.index]


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One user output: result ``index``, input ``index``, or the constant ``value``; then the views in order. "output"
    is the same object as the earlier output ``index``.

    ``requires_grad`` False on a view means that it is taken of the detached source, ``no_grad`` that it is taken under
    ``torch.no_grad()`` (a view whose ``requires_grad`` is its source's, outside of the autograd graph). ``freed``: it
    requires grad, and its graph was used up by a backward of the program itself. ``shared``, pairs (number, steps):
    after so many of its views it is one tensor object for all outputs of that number: views of one detached tensor.
    """

    kind: Literal["result", "input", "const", "output"]
    index: int = 0
    views: tuple[ViewStep, ...] = ()
    requires_grad: bool = False
    value: Any = None
    no_grad: bool = False
    freed: bool = False
    shared: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MutatedInput:
    """Input ``index`` gets a new value. ``differentiable``: under autograd, so that it carries a tangent; else its
    memory is overwritten as under ``no_grad``."""

    index: int
    differentiable: bool


@dataclass(frozen=True, slots=True)
class SavedRef:
    """Where one saved value comes from: an input, a result, or an extra output of the forward graph; "size" is an input
    that is an integer."""

    kind: Literal["input", "result", "extra", "size"]
    index: int


@dataclass(frozen=True, slots=True)
class Signature:
    """See the module's docstring.

    ``result_grads[k]``: whether result k requires grad. ``watched``: results that share memory with extras, so that a
    result overwritten before the backward must be an error. ``random``: running the program again draws other numbers.
    ``stale``: the results depend on what a mutated input was before.
    ``sizes``: where to read symbolic sizes: (symbol's name, input, dim), given where views or tangents have any; dim
    -1: the input is the size. ``reshaped``: inputs whose sizes and strides change in place (``x.t_()``), by these
    calls, after all else. ``shown``: results that a user's autograd function made views of an input or of a result:
    they have that tensor's memory and their own history.
    """

    n_inputs: int
    n_results: int
    outputs: tuple[OutputSpec, ...]
    result_grads: tuple[bool, ...]
    mutated: tuple[MutatedInput, ...] = ()
    saved: tuple[SavedRef, ...] = ()
    tangents: tuple[TensorType, ...] = ()
    input_grads: tuple[bool, ...] = ()
    watched: tuple[int, ...] = ()
    random: bool = False
    stale: bool = False
    sizes: tuple[tuple[str, int, int], ...] = ()
    reshaped: tuple[tuple[int, tuple[ViewStep, ...]], ...] = ()
    shown: tuple[tuple[int, OutputSpec], ...] = ()

    @property
    def differentiable(self) -> bool:
        """Whether results require grad: then there is a backward graph, even if all it gives is None."""
        return bool(self.tangents)
