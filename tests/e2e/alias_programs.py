"""Random straight-line programs of views, writes and arithmetic as Python source, run in eager and compiled.

A program is a list of steps; a step is (template, first operand, second operand), taken modulo what there is. Inputs
may be views of one memory. Everything that a user can see is compared: outputs, their layouts and ``requires_grad``,
inputs afterwards, gradients, and what a later write to each output changes.
"""

from __future__ import annotations

import itertools
import linecache
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

import braze
from braze.api import log_of

Step = tuple[int, int, int]

STEPS = """
{n} = {a}.t() if {a}.dim() == 2 else {a}.unsqueeze(0)
{n} = {a}.reshape(-1)
{n} = {a}[0] if {a}.dim() else {a}.view(1)
{n} = {a}[1:] if {a}.dim() and {a}.shape[0] > 1 else {a}.view_as({a})
{n} = {a}[..., ::2] if {a}.dim() else {a}.detach()
{n} = {a}.transpose(0, -1) if {a}.dim() else {a}.view_as({a})
{n} = {a}.diagonal() if {a}.dim() >= 2 else {a}.view_as({a})
{n} = {a}.split(2, -1)[0] if {a}.dim() else {a}.view_as({a})
{n} = {a}.unbind(0)[-1] if {a}.dim() else {a}.view_as({a})
{n} = {a}.expand(2, *{a}.shape)
{n} = {a}.detach()
{n} = {a}.flatten()
{n} = {a}.as_strided((2, 2), (1, 2)) if {a}.numel() > 3 and {a}.is_contiguous() else {a}.view_as({a})
{n} = {a}.unfold(0, 2, 1) if {a}.dim() and {a}.shape[0] > 1 else {a}.view_as({a})
{n} = torch.view_as_real(torch.view_as_complex({a}.view(-1, 2))) if {a}.is_contiguous() else {a}
{n} = {a} * 2
{n} = {a} + {b}.sum()
{n} = {a}.clone()
{n} = {a}.sin()
{n} = {a}.contiguous()
{n} = {a}.sum(0) if {a}.dim() else {a} + 1
{n} = torch.cat([{a}.flatten(), {b}.flatten()])
{n} = {a}.to(torch.float64).to(torch.float32)
{n} = torch.where({a} > 0, {a}, {b}.mean())
{a}.add_(1)
{a}.mul_({b}.mean())
{a}.add_({a}.sum())
{a}.copy_({b}.sum())
{a}.zero_()
{a}.fill_(3)
{a}.clamp_(-1, 1)
{a}[..., :1] = {b}.mean() if {a}.dim() else 0
{a}.masked_fill_({a} > 0.5, 0.25)
{a}.copy_({a}.flip(0)) if {a}.dim() else {a}.neg_()
{a}.index_fill_(0, torch.tensor([0]), 2.0) if {a}.dim() else {a}.neg_()
torch.add({a}.detach(), 1, out={a}.detach())
{a}.t_() if {a}.dim() == 2 else {a}.unsqueeze_(0)
{a}.squeeze_()
torch._foreach_add_([{a}, {b}], 1.0)
{a}, {b} = {b}, {a}
{n} = {a}.permute(tuple(reversed(range({a}.dim()))))
{n} = {a}.narrow(-1, 1, {a}.shape[-1] - 1) if {a}.dim() and {a}.shape[-1] > 1 else {a}.view(-1)
{n} = {a}.select(-1, -1) if {a}.dim() else {a}.view(1)
{n} = {a}.chunk(2, 0)[-1] if {a}.dim() else {a}.view_as({a})
{n} = {a}.tensor_split(3, -1)[1] if {a}.dim() else {a}.view_as({a})
{n} = {a}.unflatten(-1, (2, -1)) if {a}.dim() and {a}.shape[-1] % 2 == 0 else {a}.unsqueeze(-1)
{n} = {a}.movedim(0, -1) if {a}.dim() else {a}.view_as({a})
{n} = {a}.view(torch.int32).view(torch.float32) if {a}.is_contiguous() else {a}.mT if {a}.dim() > 1 else {a}
{n} = {a}.view(-1) if {a}.is_contiguous() else {a}.reshape({a}.shape)
{n} = {a}.data
{n} = {a}.expand_as({a})
{n} = {a}.broadcast_to(3, *{a}.shape)[1]
{n} = {a}.as_strided({a}.shape, {a}.stride(), {a}.storage_offset())
{n} = {a}.float()
{n} = {a}.roll(1)
{n} = torch.stack([{a}, {a}], -1)
{n} = {a}.clone(memory_format=torch.contiguous_format)
{n} = {a}.reciprocal().clamp(-3, 3)
{n} = {a}.index_select(0, torch.tensor([0, 0])) if {a}.dim() else {a} - 1
{n} = {a}.matmul({a}.mT) if {a}.dim() > 1 else {a} * {a}
{n} = {a}.softmax(-1) if {a}.dim() else {a}.tanh()
{n} = {a} + {b} if {a}.shape == {b}.shape else {a} * {b}.max()
{n} = torch.slice_scatter({a}, {a}[:1] * 3, 0, 0, 1) if {a}.dim() else {a} * 3
{n} = torch.empty_like({a}).copy_({a})
{n} = torch.zeros_like({a}).add_({a})
{n} = torch.broadcast_tensors({a}, {a}[:1])[1] if {a}.dim() else {a}.cos()
{n} = {a}.detach().requires_grad_(False)
{a} += {b}.clone() if {a}.shape == {b}.shape else 1
{a} *= 2
{a}.sub_({b}.clone()) if {a}.shape == {b}.shape else {a}.div_(2)
{a}.copy_({b}.clone()) if {a}.shape == {b}.shape else {a}.sin_()
{a}.copy_({a}.t().clone()) if {a}.dim() == 2 and {a}.shape[0] == {a}.shape[1] else {a}.tanh_()
{a}.add_({b}[0].clone()) if {b}.dim() and {b}[0].numel() == 1 else {a}.abs_()
{a}[1:] = {a}[:-1].clone() if {a}.dim() else 0
{a}[1:] += {a}[:-1].clone() if {a}.dim() else 0
{a}[{a} > 0.3] = 0.1
{a}[torch.tensor([0])] = {b}.min() if {a}.dim() else 0
{a}.index_add_(0, torch.tensor([0, 0]), {a}[:1].expand(2, *{a}.shape[1:]).clone()) if {a}.dim() else {a}.neg_()
{a}.scatter_(0, torch.zeros_like({a}[:1], dtype=torch.int64), 2.5) if {a}.dim() else {a}.neg_()
{a}.diagonal().fill_(0.7) if {a}.dim() >= 2 else {a}.relu_()
{a}.transpose_(0, -1) if {a}.dim() else {a}.neg_()
{a}.unsqueeze_(-1)
{a}.data.mul_(2)
{a}.detach().add_(1)
{a}.clamp_(min={b}.min().detach())
{a}.lerp_({b}.clone(), 0.5) if {a}.shape == {b}.shape else {a}.sigmoid_()
{a}.addcmul_({b}.clone(), {b}.clone()) if {a}.shape == {b}.shape else {a}.exp_().clamp_(max=3)
{a}.masked_scatter_({a} > 0, {b}.flatten().repeat(12).clone())
{a}.fill_diagonal_(1.5) if {a}.dim() == 2 else {a}.neg_()
torch.sin({a}.detach().clone(), out={b}.detach()) if {a}.shape == {b}.shape else {b}.neg_()
torch.mul({a}.detach(), 3, out={a}.detach()[:]) if {a}.dim() else {a}.neg_()
torch._foreach_mul_([{a}, {b}], [{b}.mean(), {a}.mean()])
torch._foreach_copy_([{a}], [{b}.clone()]) if {a}.shape == {b}.shape else {a}.neg_()
with torch.no_grad(): {a}.mul_(0.5)
with torch.no_grad(): {n} = {a}[:1] if {a}.dim() else {a}.view(1)
with torch.no_grad(): {n} = {a} * 3
for {n} in {a}.unbind(0) if {a}.dim() else [{a}]: {n}.mul_(2)
for {n} in {a}.detach().split(1, 0) if {a}.dim() else [{a}]: {n}.add_({b}.mean().detach())
{n} = Negated.apply({a})
{n} = {a}.view(torch.int16) if {a}.is_contiguous() else {a} * 1
{n} = {a}.view(torch.int16).view(torch.float32) if {a}.is_contiguous() and {a}.dim() else {a}
{n} = torch.view_as_complex({a}.view(-1, 2)).conj() if {a}.is_contiguous() else {a}
{n} = torch.view_as_complex({a}.view(-1, 2)).imag if {a}.is_contiguous() else {a}
torch.view_as_complex({a}.view(-1, 2)).imag.add_(1) if {a}.is_contiguous() else {a}
torch.view_as_complex({a}.view(-1, 2)).conj().mul_(2j) if {a}.is_contiguous() else {a}
{n} = torch.view_as_complex({a}.view(-1, 2)).conj().imag if {a}.is_contiguous() else {a}
{n} = torch.unsafe_chunk({a}, 2, 0)[0] if {a}.dim() else {a}
{n} = torch.unsafe_split({a}, 1, -1)[-1] if {a}.dim() else {a}
{n} = torch.ops.aten.alias({a})
{n} = torch.ops.aten._unsafe_view({a}.contiguous(), [-1])
{n} = torch.ops.aten._unsafe_view({a}.clone().contiguous(), [-1])
{n} = +{a}
{n} = torch.einsum('ij->ji', {a}) if {a}.dim() == 2 else {a}[...]
{n} = torch.nn.functional.dropout({a}, 0.5, False)
{n} = torch.nn.functional.dropout({a}, 0.0, True)
{n} = torch.atleast_2d({a})
{n} = torch.ravel({a})
{n} = {a}[...]
{n} = {a}[None, ..., None]
{n} = {a}[()]
{n} = {a}.real
{n} = {a}.adjoint() if {a}.dim() >= 2 else {a}.conj()
{n} = torch.meshgrid({a}.flatten(), {b}.flatten(), indexing='ij')[1]
{n} = torch.swapaxes({a}, 0, -1) if {a}.dim() else {a}
{n} = torch.hsplit({a}, [1])[1] if {a}.dim() else {a}
{n} = torch.linalg.diagonal({a}) if {a}.dim() >= 2 else {a}.to('cpu')
{n} = {a}.to(torch.float32, copy=True)
{n} = torch.nn.functional.pad({a}, (0, 0)) if {a}.dim() else {a}
{n} = torch.nn.functional.pad({a}, (-1, 0)) if {a}.dim() and {a}.shape[-1] > 1 else {a}
{n} = torch.squeeze({a}, 0) if {a}.dim() else {a}
{n} = {a}.index_put((torch.tensor([0]),), {b}.mean()) if {a}.dim() else {a}
{n} = {a}.requires_grad_({a}.requires_grad)
{n} = {a}.detach().clone().detach()
{a}.detach_()
{n} = {a}.unsqueeze(0).expand(3, *{a}.shape).reshape(-1)
{n} = {a}.reshape({a}.shape[::-1])
{n} = {a}.reshape(-1, 1)
{n} = {a}.t().reshape(-1) if {a}.dim() == 2 else {a}.reshape(1, -1)
{n} = {a}.expand(2, *{a}.shape).flatten(0, 1) if {a}.dim() else {a}
{n} = {a}.expand(2, *{a}.shape)[0]
{n} = {a}.expand(1, *{a}.shape)
{n} = {a}.repeat(2, *([1] * {a}.dim()))
{n} = {a}.split(1, 0) if {a}.dim() else [{a}]; {n} = {n}[-1]
{n} = {a}.max(0).values if {a}.dim() else {a}
torch.cumsum({a}.detach().clone(), 0, out={a}.detach()) if {a}.dim() else 0
{a}.cumsum_(0) if {a}.dim() else 0
{a}.index_copy_(0, torch.tensor([0]), {a}[-1:].clone()) if {a}.dim() else 0
{a}.put_(torch.tensor([0, 1]), {a}.flatten()[-1:].clone().expand(2)) if {a}.numel() > 1 else 0
{a}.index_put_((torch.tensor([0, 0]),), {b}.mean(), accumulate=True) if {a}.dim() else 0
{a}.scatter_add_(0, torch.zeros_like({a}, dtype=torch.int64), {a}.clone()) if {a}.dim() else 0
{a}.scatter_reduce_(0, torch.zeros_like({a}, dtype=torch.int64), {a}.clone(), 'amax') if {a}.dim() else 0
{a}.triu_() if {a}.dim() >= 2 else 0
{a}.addmm_({a}.clone(), {a}.clone()) if {a}.dim() == 2 and {a}.shape[0] == {a}.shape[1] else 0
{a}.swapaxes_(0, -1) if {a}.dim() else 0
{a}.squeeze_(0) if {a}.dim() else 0
{a}.squeeze_(-1) if {a}.dim() else 0
{a}.as_strided_((2,), (1,)) if {a}.numel() > 4 else 0
{a}.resize_(2) if {a}.numel() > 4 and {a}.is_contiguous() and not {a}.requires_grad else 0
{a}.resize_as_({a})
{a}.expand(1, *{a}.shape).add_(1)
{a}.unfold(0, 1, 1).mul_(2) if {a}.dim() else 0
{a}.unfold(0, 2, 2).mul_(2) if {a}.dim() and {a}.shape[0] > 1 else 0
{a}.as_strided((2,), (2,)).add_(1) if {a}.numel() > 3 and {a}.is_contiguous() else 0
{a}.movedim(0, -1)[0] += 1 if {a}.dim() else 0
{a}.view(torch.int32).bitwise_not_() if {a}.is_contiguous() else 0
{a}.view(-1)[::2] = {b}.sum() if {a}.is_contiguous() else 0
{a}.view(-1)[1:].copy_({b}.flatten()[0]) if {a}.is_contiguous() else 0
{a}.unbind(0)[0].detach().mul_(2) if {a}.dim() else 0
{a}.chunk(2)[0].data.copy_({a}.chunk(2)[0].data * 3) if {a}.dim() else 0
{a}.flatten().add_(1)
{a}.reshape(-1).mul_(2)
{a}.reshape(-1)[0] = 5
{a}.contiguous().add_({b}.sum())
{a}.to(torch.float32).add_(1)
{a}.float().detach().mul_(0.5)
torch.nn.functional.relu({a}, inplace=True)
torch.nn.functional.leaky_relu_({a}, 0.1)
torch.nn.init.constant_({a}, 0.3)
torch.nn.functional.dropout({a}, 0.0, True, inplace=True)
torch._foreach_copy_([{a}[:1]], [{a}[-1:].clone()]) if {a}.dim() else 0
torch._foreach_mul_([{a}.detach(), {b}.detach()], 2.0) if {a}.shape != {b}.shape else 0
{n} = torch.utils.checkpoint.checkpoint(torch.sin, {a}, use_reentrant=False)
{n} = {a}.exp(); {n} = {n}.detach() + {n}
{n} = {a} * {b} if {a}.shape == {b}.shape else {a}; {n}.sigmoid_()
{n} = {a}.sigmoid(); {b}.mul_({n}.mean())
{n} = {a}.var() if {a}.numel() > 1 else {a}
{n} = {a}.cumsum(-1) if {a}.dim() else {a}
with torch.enable_grad(): {n} = {a} * {b}.mean()
with torch.no_grad(): {n} = {a}.detach().requires_grad_({a}.requires_grad)
with torch.no_grad(): {a}.copy_({b}.mean())
with torch.no_grad(): {a}[..., :1] = 4
""".strip().split("\n")

SHAPES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda s: s[:24].view(4, 6),
    lambda s: s[:24].view(4, 6).t(),
    lambda s: s[4:20].view(4, 4),
    lambda s: s[:3],
    lambda s: s[2:14].view(2, 3, 2),
    lambda s: s[5],
    lambda s: s[::2][:6].view(2, 3),
    lambda s: s[:12].view(4, 3)[:, :2],
]
BUGS = ("AssertionError", "KeyError", "TypeError", "AttributeError", "IndexError", "NameError")  # as fallbacks
LOUD = (  # errors on writes after a graph, to its outputs or, after a graph break, inputs, that eager allows
    "modified by an inplace operation",  # the backward saves what eager's does not
    "a leaf Variable that requires grad is being used",  # sibling views, of which eager's is the base
)
LOOSE = {"data", "_unsafe_view", "unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes"}  # see Gradients
AGAIN = 3  # in the place of a storage's number
_count = itertools.count()


class Written(list[bool]):
    """Which tensors' versions a write has changed: of ours at least eager's (``.data`` has a counter of its own)."""


class Gradients(list[torch.Tensor]):
    """``loose``: writes after the call may have gone, through ``.data`` and its like, unseen by version counters into
    what a backward saves; eager's gradients are then of what is there now, and say nothing."""

    loose = False


class Negated(torch.autograd.Function):
    """A user's function: the same memory, the gradient's sign turned."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return -g


def source(steps: Sequence[Step], n_inputs: int, returned: Sequence[int]) -> str:
    """The program's text."""
    names = [f"x{i}" for i in range(n_inputs)]
    lines = [f"def program({', '.join(names)}):"]
    for k, (pick, a, b) in enumerate(steps):
        text = STEPS[pick % len(STEPS)]
        first, second = names[a % len(names)], names[b % len(names)]
        if first == second and text.startswith("torch._foreach"):
            continue
        lines.append("    " + text.format(n=f"v{k}", a=first, b=second))
        if "{n} =" in text or "for {n}" in text:
            names.append(f"v{k}")
    lines.append(f"    return {', '.join(names[i % len(names)] for i in returned)},")
    return "\n".join(lines) + "\n"


def make(text: str) -> Callable[..., Any]:
    """The function, with its lines where tracebacks and code objects look for them."""
    name = f"<program {next(_count)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {"torch": torch, "braze": braze, "Negated": Negated, "__name__": "alias_programs"}
    exec(compile(text, name, "exec"), scope)
    made: Callable[..., Any] = scope["program"]
    return made


def inputs(kinds: Sequence[int], memory: Sequence[int], grad: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors of the given shapes, and the leaves that they come from. Those of equal ``memory`` are views of one
    storage; ``AGAIN`` is the first tensor once more. With ``grad`` a storage of its own requires grad, as a leaf where
    its number is even; a shared one does where its number is above 1."""
    stores: dict[int, torch.Tensor] = {}
    leaves: list[torch.Tensor] = []
    out: list[torch.Tensor] = []
    for kind, m in zip(kinds, memory):
        if m == AGAIN and out:
            out.append(out[0])
            continue
        alone = list(memory).count(m) == 1
        if m not in stores:
            stores[m] = torch.linspace(-0.9, 1.3 + m, 24).sin()
            if grad and not alone and m > 1:
                leaves.append(stores[m].requires_grad_())
                stores[m] = stores[m] * 1
        x = SHAPES[kind % len(SHAPES)](stores[m])
        if grad and alone:
            x = x.clone().requires_grad_()
            leaves.append(x)
            x = x * 1 if m % 2 else x
        out.append(x)
    return out, leaves


def observe(fn: Callable[..., Any], made: tuple[list[torch.Tensor], list[torch.Tensor]], late: bool) -> list[Any]:
    """All that a user sees of a call; with ``late`` the outputs are written to before the backward. Raises what the
    call raises."""
    xs, leaves = made
    outs = list(fn(*xs))
    everyone = [*outs, *xs]
    seen: list[Any] = [_seen(x) for x in everyone]
    seen.append([[a is b for b in everyone] for a in outs])
    heads = [o for o in everyone if o.requires_grad and o.grad_fn is not None]
    found = Gradients()
    if late:
        factor = torch.full((), 2.0, requires_grad=True)
        for o in outs:
            if _own_elements(o):
                o.mul_(factor)
                seen += [(x.detach().clone(), x.requires_grad) for x in everyone]
        found.loose = not LOOSE.isdisjoint(getattr(getattr(fn, "__code__", None), "co_names", ()))
        leaves = [*leaves, factor]
        heads = [o for o in everyone if o.requires_grad and o.grad_fn is not None]
    if heads and leaves:
        tangents = [torch.linspace(0, 1, h.numel()).view(h.shape) for h in heads]
        grads = torch.autograd.grad(heads, leaves, tangents, allow_unused=True)
        found += [torch.zeros_like(x) if g is None else g.clone() for x, g in zip(leaves, grads)]
    seen.append(found)
    for i, o in enumerate(outs):
        versions = [x._version for x in everyone]
        with torch.no_grad():
            if _own_elements(o):
                o.detach().add_(10.0 ** (i + 1))
        seen += [x.detach().clone() for x in everyone]
        seen.append(Written([x._version != v for x, v in zip(everyone, versions)]))
    return seen


def _own_elements(x: torch.Tensor) -> bool:
    """Whether a write to ``x`` is one to each element. Not of nothing: the strides of empty tensors are no layout."""
    return x.numel() > 0 and all(s != 0 or n == 1 for n, s in zip(x.shape, x.stride()))


def _seen(x: torch.Tensor) -> tuple[Any, ...]:
    extent = sum((n - 1) * s for n, s in zip(x.shape, x.stride())) + 1
    strides = tuple(s for n, s in zip(x.shape, x.stride()) if n != 1) if extent <= x.numel() else "gaps"
    return x.detach().clone(), tuple(x.shape), strides, x.requires_grad, x.dtype


def same(a: Any, b: Any) -> bool:
    """``b`` is what eager's ``a`` is; where eager leaves gaps in memory, the layout may be another."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.shape == b.shape and torch.allclose(a, b, 1e-4, 1e-5, equal_nan=True)
    if isinstance(a, Gradients) and a.loose:
        return True
    if isinstance(a, Written):
        return all(mine or not eagers for eagers, mine in zip(a, b))
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == "gaps" or bool(a == b)


def check(
    steps: Sequence[Step],
    kinds: Sequence[int],
    memories: Sequence[Sequence[int]],
    returned: Sequence[int],
    grad: bool,
    late: bool = False,
    options: dict[str, Any] | None = None,
) -> str:
    """``check_text`` of a program of these steps."""
    return check_text(source(steps, len(kinds), returned), kinds, memories, grad, late, options)


def check_text(
    text: str,
    kinds: Sequence[int],
    memories: Sequence[Sequence[int]],
    grad: bool,
    late: bool = False,
    options: dict[str, Any] | None = None,
) -> str:
    """Runs a program with each of the ``memories`` in turn. "": as in eager; "skipped": eager refuses; else what
    differs, with the program's text."""
    fn, fast = make(text), braze.compile(make(text), **options or {})
    done = "skipped"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for memory in memories:
            case = f"inputs {kinds} in {memory}, grad {grad}, late {late}, {options}"
            try:
                want = observe(fn, inputs(kinds, memory, grad), late)
            except (RuntimeError, IndexError, TypeError, ValueError, UnboundLocalError):
                continue
            done = ""
            try:
                got = observe(fast, inputs(kinds, memory, grad), late)
            except Exception as e:  # noqa: BLE001
                log = log_of(fast)
                if (late or log and log.breaks) and any(text in str(e) for text in LOUD):
                    continue
                return f"{type(e).__name__}: {e}\n{text}{case}"
            if not same(want, got):
                at = next(i for i, (a, b) in enumerate(zip(want, got)) if not same(a, b))
                return f"observation {at}:\n{got[at]}\ninstead of\n{want[at]}\n{text}{case}"
    log = log_of(fast)
    broken = [g.fallback for g in log.graphs if g.fallback.startswith(BUGS)] if log else []
    return f"{broken}\n{text}{case}" if broken else done
