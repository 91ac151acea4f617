"""Control flow written as calls (``torch.cond``, scans, ``flex_attention``), as the plain Python that it stands for.

Also ``nn.Transformer``'s look at the values of its masks, which only chooses between two ways to the same result, and
the names of tied tensors in ``functional_call``.

Libraries that see ``torch.compiler.is_compiling()`` call these functions; PyTorch's own versions start PyTorch's own
compiler. Capture inlines the versions below in their place: a known predicate takes its branch, one that depends on
tensor values breaks the graph there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.utils import _pytree as pytree

Tensor = torch.Tensor


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = (), *args: Any, **kwargs: Any
) -> Any:
    """``true_fn(*operands)`` or ``false_fn(*operands)``."""
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)


def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Any, *args: Any, **kwargs: Any
) -> Any:
    """``body_fn`` on the carried values for as long as ``cond_fn`` is true of them."""
    carried = tuple(carried_inputs)
    while cond_fn(*carried):
        carried = tuple(body_fn(*carried))
    return carried


def map_(f: Callable[..., Any], xs: Any, *args: Any, **kwargs: Any) -> Any:
    """``f(x, *args)`` for each slice of ``xs`` along its first dim, stacked."""
    leaves, spec = pytree.tree_flatten(xs)
    out = [f(pytree.tree_unflatten([t[i] for t in leaves], spec), *args) for i in range(leaves[0].shape[0])]
    return _stacked(out, 0)


def scan(
    combine_fn: Callable[..., Any], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False, **kwargs: Any
) -> Any:
    """``(carry, y) = combine_fn(carry, x)`` slice after slice along ``dim``: the last carry and the stacked ys."""
    leaves, spec = pytree.tree_flatten(xs)
    carry, ys = init, []
    for i in _order(leaves[0].shape[dim], reverse):
        carry, y = combine_fn(carry, pytree.tree_unflatten([t.select(dim, i) for t in leaves], spec))
        ys.append(y)
    return carry, _stacked(ys[::-1] if reverse else ys, 0)


def associative_scan(
    combine_fn: Callable[..., Any], xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise", **kw: Any
) -> Any:
    """All prefixes of ``xs`` along ``dim`` under ``combine_fn``. A pointwise function works on many slices at once, in
    about ``2 log2(n)`` steps (Blelloch 1990); any other, slice after slice."""
    leaves, spec = pytree.tree_flatten(xs)
    n = leaves[0].shape[dim]

    def combine(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
        out = combine_fn(pytree.tree_unflatten(a, spec), pytree.tree_unflatten(b, spec))
        return pytree.tree_flatten(out)[0]

    if combine_mode == "pointwise":
        if reverse:
            leaves = [t.flip(dim) for t in leaves]
        leaves = _prefixes(combine, leaves, dim)
        return pytree.tree_unflatten([t.flip(dim) for t in leaves] if reverse else leaves, spec)
    done: list[list[Tensor]] = []
    for i in _order(n, reverse):
        x = [t.select(dim, i) for t in leaves]
        done.append(combine(done[-1], x) if done else x)
    return pytree.tree_unflatten(_stacked(done[::-1] if reverse else done, dim), spec)


def _order(n: int, reverse: bool) -> Any:
    return range(n - 1, -1, -1) if reverse else range(n)


def _stacked(results: list[Any], dim: int) -> Any:
    spec = pytree.tree_flatten(results[0])[1]
    columns = zip(*[pytree.tree_flatten(r)[0] for r in results])
    return pytree.tree_unflatten([torch.stack(list(c), dim) for c in columns], spec)


def _prefixes(combine: Callable[..., list[Tensor]], xs: list[Tensor], dim: int) -> list[Tensor]:
    """Pairs are combined, their prefixes are the odd places; the even ones take one more step."""
    n = xs[0].shape[dim]
    if n < 2:
        return xs

    def every_other(t: Tensor, start: int, stop: int) -> Tensor:
        return t.narrow(dim, start, stop - start).unfold(dim, 1, 2).squeeze(-1) if stop > start else t.narrow(dim, 0, 0)

    pairs = combine([every_other(t, 0, n - 1) for t in xs], [every_other(t, 1, n) for t in xs])
    odd = _prefixes(combine, pairs, dim)
    first = [t.narrow(dim, 0, 1) for t in xs]
    if n == 2:
        return [torch.cat(p, dim) for p in zip(first, odd)]
    rest = (n - 1) // 2
    later = combine([t.narrow(dim, 0, rest) for t in odd], [every_other(t, 2, n) for t in xs])
    even = [torch.cat(p, dim) for p in zip(first, later)]
    return [_interleaved(e, o, dim) for e, o in zip(even, odd)]


def _interleaved(even: Tensor, odd: Tensor, dim: int) -> Tensor:
    k = odd.shape[dim]
    both = torch.stack([even.narrow(dim, 0, k), odd], dim + 1 if dim >= 0 else dim).flatten(dim, dim + 1)
    return both if even.shape[dim] == k else torch.cat([both, even.narrow(dim, k, 1)], dim)


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """Attention over [batch, heads, length, width]; ``score_mod(score, batch, head, query, key)`` changes scores."""
    if return_aux is not None:
        raise NotImplementedError("flex_attention(return_aux=...) is not compiled: use return_lse=True")
    (b, h, m, d), n = query.shape, key.shape[2]
    if enable_gqa and key.shape[1] != h:
        key, value = (t.repeat_interleave(h // t.shape[1], dim=1) for t in (key, value))
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = (query @ key.transpose(-2, -1)).to(wide) * (1 / math.sqrt(d) if scale is None else scale)
    index = [
        torch.arange(size, device=query.device).view([-1 if k == axis else 1 for k in range(4)])
        for axis, size in enumerate((b, h, m, n))
    ]
    if score_mod is not None:
        scores = score_mod(scores, *index).to(wide)
    if block_mask is not None:
        scores = torch.where(block_mask.mask_mod(*index), scores, -math.inf)
    lse = scores.logsumexp(-1)
    weights = torch.where(scores == -math.inf, 0.0, (scores - lse.unsqueeze(-1)).exp())
    out = weights.to(query.dtype) @ value
    return (out, lse) if return_lse else out


def detect_is_causal_mask(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Whether the caller says so. A mask that is given is used, whatever its values are: those of a causal one, too."""
    return is_causal is True


def untied(module: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """``given`` tensors by name, those of all names of a tied tensor, for ``functional_call``. PyTorch's own goes
    through sets of names, whose order a trace cannot know."""
    owners: dict[Tensor, list[str]] = {}
    for name, tensor in [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]:
        owners.setdefault(tensor, []).append(name)
    out = given.copy()
    for names in owners.values():
        chosen = [name for name in names if name in given]
        if len(names) > 1 and chosen:
            value = given[chosen[0]]
            if any(given[name] is not value for name in chosen):
                raise ValueError(
                    f"functional_call got multiple values for keys {sorted(names)}, which are tied. "
                    "Consider using tie_weights=False"
                )
            for name in names:
                out[name] = value
    return out


_PEER = "torch._higher_" + "order_ops."
_PLAIN: dict[tuple[str, str], Any] = {
    (_PEER + "cond", "cond"): cond,
    (_PEER + "while_loop", "while_loop"): while_loop,
    (_PEER + "map", "map"): map_,
    (_PEER + "scan", "scan"): scan,
    (_PEER + "associative_scan", "associative_scan"): associative_scan,
    ("torch.nn.utils.stateless", "_untie_named_tensors_map"): untied,
    ("torch.nn.attention.flex_attention", "flex_attention"): flex_attention,
    ("torch.nn.modules.transformer", "_detect_is_causal_mask"): detect_is_causal_mask,
}


def plain_form(function: FunctionType) -> FunctionType | None:
    """The plain Python function that stands for one of PyTorch's control-flow functions, else None."""
    home = function.__globals__.get("__name__", "")  # __module__ may say "torch"
    plain: FunctionType | None = _PLAIN.get((home, function.__name__))
    return plain
