"""What makes a factor of a matrix product, evaluated while it is loaded instead of stored before.

    for ...: half[i0, i1] = convert(w[i0, i1], bf16)
    mm = aten.mm(x, half.t())           ->          sum over q of x[p0, q] * convert(w[p1, q], bf16)

Legal where the factor is read by this product alone and each of its elements is a few instructions on elements of other
buffers.  It is evaluated once for every block of the result that needs it, hence the limit on its arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from braze.inductor.loops import Buffer, Compute, Extern, Kernel, Load, Store, Strided, Value
from braze.inductor.loops.ref import delinearize
from braze.ir import IntLike, Symbol

from .joining import Body, Steps
from .match import complete, match
from .ops import COSTS
from .split import rebound
from .traits import OTHER_POINT, Reason

MOST_COST, MOST_LOADS = 12, 2

SHARED = Reason("the factor is read elsewhere, too, so it is stored anyway")
NOT_POINTWISE = Reason("no pointwise kernel makes the factor")
SEVERAL = Reason("the kernel that makes the factor makes other things, too")
COSTLY = Reason("the factor's arithmetic would be repeated for every block")


@dataclass(frozen=True, eq=False)
class Prologue:
    """``kernel`` makes the factor, which ``view`` shows."""

    kernel: Kernel
    view: Strided

    def value(self, b: Body, place: tuple[IntLike, ...]) -> Value:
        """The factor at an index of its view, as instructions of ``b``."""
        env = _env(self.kernel, self.view, place)
        assert not isinstance(env, Reason)
        new: dict[Any, Any] = {}
        for i in self.kernel.body:
            if isinstance(i, Store):
                return b.convert(new[i.value], i.buffer.type.dtype)
            new[i] = b.add(rebound(i, new, env))
        raise AssertionError("a kernel ends in its store")


def find_prologue(call: Extern, view: Strided, place: tuple[IntLike, ...], steps: Steps) -> Prologue | Reason:
    """How to evaluate a factor of ``call`` at ``place``, an index of the view over the product's axes."""
    made = view.buffer
    makers = steps.writers(made)
    whole = makers[0] if len(makers) == 1 else None
    if not isinstance(whole, Kernel) or whole.r:
        return NOT_POINTWISE
    if made in steps.handed or len(steps.readers(made)) > 1 or _twice(call, made):
        return SHARED
    stores = [i for i in whole.body if isinstance(i, Store)]
    if len(stores) != 1:
        return SEVERAL
    if stores[0].mode != "set" or stores[0].mask is not None or stores[0].indirect:
        return NOT_POINTWISE
    loads = [i for i in whole.body if isinstance(i, Load)]
    cost = sum(COSTS.get(i.fn, 1) for i in whole.body if isinstance(i, Compute) and i.fn != "convert")
    if cost > MOST_COST or len(loads) > MOST_LOADS or any(i.indirect for i in loads):
        return COSTLY
    env = _env(whole, view, place)
    return env if isinstance(env, Reason) else Prologue(whole, view)


def _twice(call: Extern, made: Buffer) -> bool:
    return sum(isinstance(a, Strided) and a.buffer is made for a in call.args) > 1


def _env(kernel: Kernel, view: Strided, place: tuple[IntLike, ...]) -> dict[Symbol, IntLike] | Reason:
    """The axes of the factor's kernel where it makes the element at ``place`` of the view."""
    t = view.buffer.type
    if not t.is_contiguous:
        return OTHER_POINT
    at: IntLike = view.offset - t.offset
    for e, s in zip(place, view.strides):
        at = at + e * s
    (store,) = [i for i in kernel.body if isinstance(i, Store)]
    sizes = {a.index: a.size for a in kernel.x}
    env = match(store.index, delinearize(at, t.sizes), sizes)
    if env is None or not complete(env, sizes, {}):
        return OTHER_POINT
    return env
