"""Compare tracing with eager on torch's own operator samples (OpInfo): every ATen call, forward and backward."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from aten_record import Call, outputs, record_eager
from torch.testing._internal.common_methods_invocations import op_db

from braze import ir
from braze.errors import Unsupported
from braze.fake import DataDependent, FakeMode, fake_like

# Known to make other calls. A gradient through an in-place write to a view is replayed by view functions under tracing,
# by as_strided in eager; eager conjugates lazily and resolves that with copies, which is not traced; one_hot compares
# where its argument is a subclass.
OTHER_CALLS = """nn_functional_one_hot
nn_functional_pad_circular polar fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ihfft fft_ihfft2 fft_ihfftn
linalg_eig linalg_eigvals""".split()


@dataclass
class Tally:
    """Outcome of an operator's samples."""

    name: str
    same: int = 0
    differ: list[str] = field(default_factory=list)
    data: int = 0
    unsupported: list[str] = field(default_factory=list)
    executed: set[str] = field(default_factory=set)


def _leaves(tree: Any) -> list[torch.Tensor]:
    return [x for x in ir.leaves(tree) if isinstance(x, torch.Tensor)]


def _relaid(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in another memory layout: "fortran", "gaps", or "last" (channels last)."""
    y = x.detach()
    if layout == "fortran":
        dims = list(range(y.dim()))[::-1]
        y = y.permute(dims).contiguous().permute(dims)
    elif layout == "gaps" and y.dim():
        wide = y.new_zeros((*y.shape, 2))
        wide[..., 0] = y
        y = wide[..., 0]
    elif layout == "last" and y.dim() in (4, 5):
        y = y.contiguous(memory_format=torch.channels_last if y.dim() == 4 else torch.channels_last_3d)
    return y.requires_grad_(x.requires_grad)


def tensors_complex(tensors: list[torch.Tensor]) -> bool:
    return any(t.is_complex() for t in tensors)


def program(op: Any, sample: Any, backward: bool) -> Any:
    """A function of the sample's tensors: the operator, then its gradients; returns both."""

    def run(*tensors: Any) -> Any:
        it = iter(tensors)
        tree = (sample.input, list(sample.args), dict(sample.kwargs))
        x, args, kwargs = ir.map_leaves(tree, lambda v: next(it) if isinstance(v, torch.Tensor) else v)
        out = op.op(x, *args, **kwargs)
        outs = [o for o in _leaves(out) if o.requires_grad]
        wants = [t for t in tensors if t.requires_grad]
        grads: tuple[Any, ...] = ()
        if backward and outs and wants:
            grads = torch.autograd.grad(outs, wants, [torch.ones_like(o) for o in outs], allow_unused=True)
        return [*ir.leaves(out), *grads]

    return run


def compare(want: list[Call], got: list[Call], results: list[tuple[str, ...]], results_only: bool) -> str | None:
    """The first difference of calls (unless ``results_only``) or results."""
    if not results_only:
        if [c[0] for c in want] != [c[0] for c in got]:
            return f"other calls: eager {[c[0] for c in want]} traced {[c[0] for c in got]}"
        for a, b in zip(want, got):
            if a != b:
                return f"eager {a} traced {b}"
    if results[0] != results[1]:
        return f"results: eager {results[0]} traced {results[1]}"
    return None


def run_sample(op: Any, sample: Any, tally: Tally, backward: bool, layout: str = "") -> None:
    tensors = _leaves((sample.input, list(sample.args), dict(sample.kwargs)))
    if layout:
        tensors = [_relaid(t, layout) for t in tensors]
    fn = program(op, sample, backward)
    want: list[Call] = []
    got: list[Call] = []
    try:
        eager = outputs(record_eager(fn, tensors, want))
    except Exception:  # noqa: BLE001  (a sample that eager rejects says nothing about tracing)
        return
    mode = FakeMode(lambda f, a, k, out: got.append((str(f), outputs(out))), lift=fake_like)
    try:
        fakes = [fake_like(t) for t in tensors]
        with mode:
            traced = outputs(fn(*fakes))
    except DataDependent:
        tally.data += 1
        return
    except Unsupported as e:
        tally.unsupported.append(str(e).split("\n")[0])
        return
    except Exception as e:  # noqa: BLE001
        if "data is not allocated yet" in str(e):
            tally.data += 1
        else:
            tally.differ.append(f"{type(e).__name__} after {got[-1:]}: {str(e)[:300]}")
        return
    tally.executed |= {str(f) for f in mode.executed_rules}
    bad = compare(want, got, [eager, traced], op.formatted_name in OTHER_CALLS or tensors_complex(tensors))
    if bad is None:
        tally.same += 1
    else:
        tally.differ.append(bad)


def samples(op: Any, dtype: torch.dtype, limit: int | None, backward: bool) -> Iterator[Any]:
    yield from islice(op.sample_inputs("cpu", dtype, requires_grad=backward), limit)


def check(op: Any, dtype: torch.dtype = torch.float32, limit: int | None = None, layout: str = "") -> Tally:
    """All samples of one operator, with the backward pass where it has one."""
    tally = Tally(op.formatted_name)
    backward = op.supports_autograd and dtype.is_floating_point
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples(op, dtype, limit, backward):
            run_sample(op, sample, tally, backward, layout)
    return tally


@dataclass
class Variant:
    """Another form of an operator, with what :func:`run_sample` asks of one."""

    op: Callable[..., Any]
    formatted_name: str


def check_in_place(op: Any, limit: int) -> Tally:
    """The in-place method of an operator, on a copy of the sample."""
    tally = Tally(op.formatted_name + "_")
    method = op.inplace_variant
    backward = op.supports_inplace_autograd
    variant = Variant(lambda x, *args, **kwargs: method(x.clone(), *args, **kwargs), op.formatted_name)
    for sample in samples(op, torch.float32, limit, backward):
        if not sample.broadcasts_input:
            run_sample(variant, sample, tally, backward)
    return tally


def check_foreach(op: Any, limit: int) -> Tally:
    """Both forms of a ``torch._foreach_*`` operator."""
    tally = Tally(op.name)
    for form in (op.method_variant, op.inplace_variant):
        for sample in samples(op, torch.float32, limit if form else 0, False):
            known = ("disable_fastpath", "expect_fastpath", "zero_size", "is_fastpath")
            sample.kwargs = {k: v for k, v in sample.kwargs.items() if k not in known}
            run_sample(Variant(form, op.name), sample, tally, False)
    return tally


def operators(dtype: torch.dtype) -> list[Any]:
    return [op for op in op_db if dtype in op.dtypes]
