"""Gradients of gradients: a backward with ``create_graph=True`` runs the program once more, in eager.

The second run must compute what the first one did. So a program that draws random numbers, or whose results depend on
what an input was before the program overwrote it, is refused; an input that was overwritten since is an error, as in
eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.nn import Parameter

from ..errors import Unsupported
from ..ir import Signature, leaves

_TWICE = "differentiating a compiled function twice (create_graph=True)"
_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: an input of a "
    "compiled function that is differentiated twice"
)


class Again:
    """The second run of one program. ``fallback(*inputs) -> outputs`` is the program in eager."""

    def __init__(self, sig: Signature, fallback: Callable[..., Any] | None) -> None:
        self.sig, self.fallback = sig, fallback
        self.refused = self._refused()
        self.overwritten = frozenset(m.index for m in sig.mutated)
        self.places = self._places()

    def _refused(self) -> str | None:
        sig = self.sig
        if self.fallback is None:
            return "there is no program in eager to run"
        if sig.random:
            return "it draws random numbers, which would be others"
        if sig.stale or sig.reshaped or any(m.differentiable for m in sig.mutated):
            return "it overwrites an input that its results depend on"
        return None

    def _places(self) -> list[tuple[int, bool] | None]:
        """Where each result is among the user's outputs, and whether it is the base of the output there."""
        found: list[tuple[int, bool] | None] = [None] * self.sig.n_results
        for at, spec in enumerate(self.sig.outputs):
            if spec.kind == "result" and (found[spec.index] is None or not spec.views):
                found[spec.index] = (at, bool(spec.views))
        return found

    def keep(self, ctx: Any, inputs: Sequence[Any]) -> None:
        """Remember a call's inputs. Parameters live anyway; others must not live longer for this."""
        ctx.inputs = [x if type(x) is Parameter or not isinstance(x, Tensor) else ref(x) for x in inputs]
        ctx.versions = [x._version for x in inputs if type(x) is Tensor]

    def differentiate(self, ctx: Any, grads: Sequence[Any]) -> tuple[Any, ...]:
        """The inputs' gradients, which can be differentiated."""
        if self.refused is not None:
            raise Unsupported(f"{_TWICE}: {self.refused}", hint="leave the inner gradient out of braze.compile")
        assert self.fallback is not None
        inputs: list[Any] = [x() if type(x) is ref else x for x in ctx.inputs]
        if any(x is None for x in inputs):
            raise Unsupported(f"{_TWICE}: an input is gone", hint="keep a reference to the function's arguments")
        if ctx.versions != [x._version for x in inputs if type(x) is Tensor]:
            raise RuntimeError(_MODIFIED)
        ctx.saved_tensors  # noqa: B018  (reading them checks their versions)
        given = [x.detach().clone() if i in self.overwritten else x for i, x in enumerate(inputs)]
        with torch.enable_grad():
            outs = list(leaves(self.fallback(*given)))
        pairs = [(self._result(outs, k, g), g) for k, g in enumerate(grads) if g is not None]
        wanted = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
        heads, tangents = [o for o, _ in pairs], [g for _, g in pairs]
        new = iter(torch.autograd.grad(heads, wanted, tangents, create_graph=True, allow_unused=True))
        return tuple([next(new) if isinstance(x, Tensor) and x.requires_grad else None for x in inputs])

    def _result(self, outs: list[Any], k: int, grad: Any) -> Any:
        place = self.places[k]
        if place is not None:
            at, is_base = place
            x = outs[at]._base if is_base else outs[at]
            if x is not None and x.requires_grad and x.shape == grad.shape:
                return x
        raise Unsupported(f"{_TWICE}: it returns several views of one tensor", hint="return the tensor itself, too")
