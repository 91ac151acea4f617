"""One operator sample through ``braze.compile`` and in eager, compared: what ``scripts/coverage`` and the tests run.

A sample's outcome is one of:

* ``compiled``: right, in one graph, of primitives only; ``opaque``: right, in one graph that calls ATen kernels too;
* ``reads data``: right, in two graphs: between them Python gets a value, or a result a size, that depends on data;
* ``fell back``: right, but a part ran as plain Python (a graph break, or a graph that did not compile);
* ``drawn``: as these, where eager's own values differ from call to call, so that only types were compared;
* ``wrong``: another value, type, layout or aliasing than eager's, or an error;
* ``rejected``: eager itself raises, so there is nothing to compare.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_device_type import toleranceOverride
from torch.utils._pytree import tree_flatten, tree_map

import braze
from braze.api import log_of

OUTCOMES = ("compiled", "opaque", "drawn", "reads data", "fell back", "wrong", "rejected")
VARIANTS = ("function", "noncontiguous", "inplace", "mutated", "out")
# No values to compare: memory as it is found, or kernels of another device.
UNSET = ("empty", "new_empty", "resize", "jiterator")
_KEPT = 3  # examples kept of each reason


@dataclass
class Tally:
    """The outcomes of one operator's samples for one dtype and variant."""

    name: str
    dtype: str
    variant: str
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, list[str]] = field(default_factory=dict)  # "wrong: …" or "fell back: …" -> samples
    calls: Counter[str] = field(default_factory=Counter)  # ATen calls in compiled graphs -> samples

    def add(self, outcome: str, reason: str, sample: str) -> None:
        self.outcomes[outcome] += 1
        if reason:
            self.reasons.setdefault(f"{outcome}: {reason}", []).append(sample)
            del self.reasons[f"{outcome}: {reason}"][_KEPT:]


@dataclass
class Result:
    """What one run gave: flat outputs and their structure, gradients, and the inputs afterwards."""

    outs: list[Any]
    spec: Any
    grads: list[Any]
    inputs: list[torch.Tensor]


def operators() -> dict[str, Any]:
    """Every entry of torch's table by a name that is unique. Random ones draw from the generator as it is."""
    common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    table = common_methods_invocations.op_db
    return {op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op for op in table}


def _copied(tree: Any) -> Any:
    """The same tensors in memory of their own: layouts, sharing, ``requires_grad`` kept."""
    stores: dict[int, Any] = {}

    def copy(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x.layout != torch.strided or x.is_quantized or x.is_nested:
            return x.detach().clone().requires_grad_(x.requires_grad)
        y = x.detach()
        plain = y.conj() if y.is_conj() else y
        plain = plain._neg_view() if plain.is_neg() else plain
        key = plain.untyped_storage()._cdata
        if key not in stores:
            stores[key] = plain.untyped_storage().clone()
        new = torch.empty(0, dtype=x.dtype).set_(stores[key], x.storage_offset(), x.shape, x.stride())
        new = new._neg_view() if y.is_neg() != plain.is_neg() else new
        new = new.conj() if y.is_conj() else new
        return new.requires_grad_(x.requires_grad)

    return tree_map(copy, tree)


def _program(op: Any, variant: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What is compiled, and the same for eager: two functions, so that the hook sees one of them only."""
    call = op.inplace_variant if variant in ("inplace", "mutated") else op.op
    if variant == "inplace":

        def compiled(x: Any, *args: Any, **kwargs: Any) -> Any:
            return call(x.clone(), *args, **kwargs)

        def eager(x: Any, *args: Any, **kwargs: Any) -> Any:
            return call(x.clone(), *args, **kwargs)
    else:

        def compiled(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        def eager(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

    return compiled, eager


def _heads(outs: list[Any], process: Callable[[Any], Any], spec: Any) -> list[torch.Tensor]:
    done = process(torch.utils._pytree.tree_unflatten(outs, spec))
    return [x for x in tree_flatten(done)[0] if isinstance(x, torch.Tensor) and x.requires_grad]


def run(fn: Callable[..., Any], sample: Any, out: Any, backward: bool, seed: int, wide: bool = False) -> Result:
    """One call, and its gradients for tangents that depend on the outputs' shapes alone."""
    tree = (sample.input, tuple(sample.args), dict(sample.kwargs), out)
    tree = tree_map(_double, tree) if wide else _copied(tree)
    inputs = [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]
    x, args, kwargs, out = tree
    if out is not None:
        kwargs["out"] = out
    torch.default_generator.manual_seed(seed)
    outs, spec = tree_flatten(fn(x, *args, **kwargs))
    grads: list[Any] = []
    wanted = [x for x in inputs if x.requires_grad and x.is_leaf]
    heads = _heads(outs, sample.output_process_fn_grad, spec) if backward and wanted else []
    if heads:
        generator = torch.Generator().manual_seed(7)
        tangents = [
            torch.randn(h.shape, generator=generator, dtype=torch.float32).to(h.dtype).to_sparse(h.layout)
            if h.layout != torch.strided
            else torch.randn(h.shape, generator=generator, dtype=torch.float32).to(h.dtype)
            for h in heads
        ]
        grads = list(torch.autograd.grad(heads, wanted, tangents, allow_unused=True))
    return Result(outs, spec, grads, inputs)


_WIDE = {torch.complex64: torch.complex128, torch.float32: torch.float64, torch.bfloat16: torch.float64}
_WIDE[torch.float16] = torch.float64


def _double(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.detach().to(_WIDE.get(x.dtype, x.dtype)).requires_grad_(x.requires_grad)
    return _WIDE.get(x, x) if isinstance(x, torch.dtype) else x


# ---- comparison


def tolerances(op: Any, dtype: torch.dtype) -> tuple[float, float]:
    """(rtol, atol): ``torch.testing``'s for the dtype, or the widest that the operator's own tests have."""
    rtol, atol = default_tolerances(dtype)
    for d in op.decorators:
        for o in getattr(d, "decorators", [d]):
            if isinstance(o, toleranceOverride) and dtype in o.d and getattr(d, "device_type", None) in (None, "cpu"):
                rtol, atol = max(rtol, o.d[dtype].rtol), max(atol, o.d[dtype].atol)
    return rtol, atol


def _dense(t: torch.Tensor) -> bool:
    return sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1 == t.numel()


def _layout(t: torch.Tensor) -> tuple[int, ...]:
    if t.layout != torch.strided or t.numel() == 0:
        return ()
    return tuple(s for n, s in zip(t.shape, t.stride()) if n != 1)


def metadata(got: Any, want: Any) -> str:
    """The first difference of type: "" where there is none."""
    if not isinstance(want, torch.Tensor):
        same = type(got) is type(want) and (got == want or got != got and want != want)
        return "" if same or isinstance(want, (torch.Generator, torch.SymInt)) else f"{got!r} instead of {want!r}"
    if type(got) is not type(want):
        return f"a {type(got).__name__} instead of a {type(want).__name__}"
    for what in ("dtype", "shape", "layout", "requires_grad", "device"):
        if getattr(got, what) != getattr(want, what):
            return f"{what} {getattr(got, what)} instead of {getattr(want, what)}"
    if got.is_conj() != want.is_conj() or got.is_neg() != want.is_neg():
        return "conjugate or negative bit"
    if _layout(got) != _layout(want) and want.layout == torch.strided and _dense(want):  # gaps are closed
        return f"strides {got.stride()} instead of {want.stride()}"
    return ""


def value(got: Any, want: Any, exact: Callable[[], Any], tols: tuple[float, float]) -> str:
    """The difference of values beyond rounding: "" where there is none."""
    if not isinstance(want, torch.Tensor):
        return ""
    if want.layout != torch.strided:
        got, want = got.to_dense(), want.to_dense()
    got, want = got.detach(), want.detach()
    if want.dtype == torch.complex32:
        got, want = got.to(torch.complex64), want.to(torch.complex64)
    if got.is_quantized:
        got, want = got.dequantize(), want.dequantize()
    if torch.equal(got, want):
        return ""
    if not (want.is_floating_point() or want.is_complex()):
        return f"{_where(got, want, got != want)}"
    if torch.allclose(got, want, *tols, equal_nan=True):
        return ""
    close = torch.isclose(got, want, *tols, equal_nan=True)
    try:
        true = exact()
    except Exception:  # noqa: BLE001  (no such kernel in double precision)
        true = None
    if isinstance(true, torch.Tensor) and true.shape == want.shape and _no_worse(got, want, true.detach()):
        return ""
    return _where(got, want, ~close)


def _where(got: torch.Tensor, want: torch.Tensor, bad: torch.Tensor) -> str:
    at = tuple(int(i[0]) for i in torch.nonzero(bad, as_tuple=True)) if bad.dim() else ()
    return f"{int(bad.sum())} of {bad.numel()} elements, e.g. {got[at].item()} instead of {want[at].item()}"


def _no_worse(got: torch.Tensor, want: torch.Tensor, true: torch.Tensor) -> bool:
    """Eager is as far from the value in double precision as this is."""
    over = ~want.isfinite() & true.isfinite()  # an intermediate of eager's overflowed
    if not torch.allclose(got[over], true[over].to(got.dtype), rtol=1e-2, atol=1e-2, equal_nan=True):
        return False
    want = torch.where(over, got, want)
    if not torch.equal(got.isnan(), want.isnan()) or not torch.equal(got.isinf(), want.isinf()):
        return False
    fine = want.isfinite() & true.isfinite()
    if not fine.any():
        return True
    mine, theirs = ((t.to(true.dtype) - true).abs()[fine].max() for t in (got, want))
    size = max(float(true.abs()[fine].max()), 1.0)
    unit = torch.finfo(want.dtype).eps
    return bool(mine <= min(2 * theirs + 2 * unit * size, unit**0.5 * 8 * size))


def aliasing(r: Result) -> list[set[str]]:
    """For each output, which inputs and earlier outputs it shares memory with."""
    owners: dict[int, set[str]] = {}
    for i, x in enumerate(r.inputs):
        _own(owners, x, f"input {i}")
    shares = []
    for i, x in enumerate(r.outs):
        shares.append(set(owners.get(_storage(x), ())) if isinstance(x, torch.Tensor) else set())
        _own(owners, x, f"output {i}")
    return shares


def _storage(x: Any) -> int:
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.is_nested or x.numel() == 0:
        return 0
    return int(x.untyped_storage().data_ptr())


def _own(owners: dict[int, set[str]], x: Any, name: str) -> None:
    if _storage(x):
        owners.setdefault(_storage(x), set()).add(name)


def compare(
    got: Result,
    want: Result,
    exact: Callable[[], Result],
    tols: Callable[[Any], Any],
    values: bool = True,
    views: bool = True,
) -> str:
    """The first difference, or ""."""
    if got.spec != want.spec:
        return f"structure {got.spec} instead of {want.spec}"
    if views and aliasing(got) != aliasing(want):
        return f"outputs share memory with {aliasing(got)}, eager's with {aliasing(want)}"
    kinds = (("output", "outs"), ("gradient", "grads"), ("input after the call", "inputs"))
    for title, attr in kinds:
        mine, theirs = getattr(got, attr), getattr(want, attr)
        if len(mine) != len(theirs):
            return f"{len(mine)} {title}s instead of {len(theirs)}"
        for i, (g, w) in enumerate(zip(mine, theirs)):
            bad = "" if attr == "grads" and g is not None and w is not None else metadata(g, w)
            if attr == "grads" and g is not None and w is not None and (g.shape, g.dtype) != (w.shape, w.dtype):
                bad = f"{g.dtype} {tuple(g.shape)} instead of {w.dtype} {tuple(w.shape)}"
            if not bad and values:
                bad = value(g, w, lambda: getattr(exact(), attr)[i], tols(w))  # noqa: B023
            if bad:
                return f"{title} {i}: {bad}"
    return ""


# ---- samples


def _samples(op: Any, dtype: torch.dtype, variant: str, backward: bool) -> Iterator[Any]:
    torch.default_generator.manual_seed(0)
    for s in op.sample_inputs("cpu", dtype, requires_grad=backward):
        if variant == "noncontiguous":
            try:
                s = s.noncontiguous()
            except Exception:  # noqa: BLE001  (sparse)
                continue
        elif variant in ("inplace", "mutated") and (s.broadcasts_input or not isinstance(s.input, torch.Tensor)):
            continue
        yield s


def applies(op: Any, dtype: torch.dtype, variant: str) -> bool:
    """Whether the operator has this variant for this dtype."""
    if dtype not in op.supported_dtypes("cpu"):
        return False
    if variant in ("inplace", "mutated"):
        return op.inplace_variant is not None
    return variant != "out" or op.supports_out


def differentiable(op: Any, dtype: torch.dtype, variant: str) -> bool:
    if variant in ("mutated", "out") or not op.supports_autograd or dtype not in op.supported_backward_dtypes("cpu"):
        return False
    return (dtype.is_floating_point or dtype.is_complex) and (variant != "inplace" or op.supports_inplace_autograd)


def check(name: str, op: Any, dtype: torch.dtype, variant: str, limit: int | None = None) -> Tally:
    """``limit`` samples of one operator, spread over all of them."""
    tally = Tally(name, str(dtype).removeprefix("torch."), variant)
    backward = differentiable(op, dtype, variant)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(_samples(op, dtype, variant, backward))
        step = 1 if limit is None else -(-len(found) // limit) or 1
        for sample in found[::step]:
            _check_sample(tally, op, sample, dtype, variant, backward)
    return tally


def _check_sample(tally: Tally, op: Any, sample: Any, dtype: torch.dtype, variant: str, backward: bool) -> None:
    compiled, eager = _program(op, variant)
    out = None
    try:
        if variant == "out":
            first = run(eager, sample, None, False, 0)
            if not all(isinstance(x, torch.Tensor) and x.layout == torch.strided for x in first.outs):
                return
            outs = [torch.empty_like(x, requires_grad=False).fill_(1) for x in first.outs]
            out = torch.utils._pytree.tree_unflatten(outs, first.spec)
        want = run(eager, sample, out, backward, 0)
    except Exception:  # noqa: BLE001  (eager's refusal says nothing)
        tally.outcomes["rejected"] += 1
        return
    fast = braze.compile(compiled)
    title = sample.summary()
    try:
        got = run(fast, sample, out, backward, 0)
    except Exception as e:  # noqa: BLE001
        tally.add("wrong", f"{type(e).__name__}: {e}"[:300], title)
        return
    exact: list[Result] = []

    def in_double() -> Result:
        if not exact:
            exact.append(run(eager, sample, _double(out), backward, 0, wide=True))
        return exact[0]

    def tols(x: Any) -> tuple[float, float]:
        return tolerances(op, x.dtype) if isinstance(x, torch.Tensor) else (0.0, 0.0)

    kind, reason = _how(tally, fast, tensors=bool(got.inputs))
    views = not op.name.startswith("unsafe_")  # results that callers promise not to write to
    bad = compare(got, want, in_double, tols, not op.name.startswith(UNSET), views)
    if bad:
        others = (run(eager, sample, out, backward, seed) for seed in range(1, 6))
        if any(compare(other, want, in_double, tols) for other in others):
            bad, kind = compare(got, want, in_double, tols, False, views), "drawn" if kind != "fell back" else kind
    tally.add("wrong" if bad else kind, bad or reason, title)


_READS = re.compile(
    r"depends? on the (values of a tensor|rank)|a Python value is read|Tensor\.(item|tolist)|Python number from a"
    r"|size of the result depends on data|data is not allocated|looks at the memory of its arguments|boolean mask"
)


def _how(tally: Tally, fast: Any, tensors: bool) -> tuple[str, str]:
    """How the call ran: (outcome if right, why it fell back)."""
    log = log_of(fast)
    assert log is not None
    reasons = [g.fallback for g in log.graphs if g.fallback] + [f"graph break: {b.reason}" for b in log.breaks]
    if reasons:
        return ("reads data" if all(map(_READS.search, reasons)) else "fell back"), reasons[0].split("\n")[0][:300]
    if not log.graphs:
        return ("fell back", "nothing was captured") if tensors else ("compiled", "")
    calls = set()
    for record in log.graphs:
        for level, graph in record.levels.items():
            if level.endswith(": prims"):
                calls |= set(re.findall(r"torch\.ops\.(\w+\.\w+\.\w+)", str(graph)))
    tally.calls.update(calls)
    return ("opaque" if calls else "compiled"), ""
