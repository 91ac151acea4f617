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
_count = itertools.count()


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
        if text.startswith("{n}"):
            names.append(f"v{k}")
    lines.append(f"    return {', '.join(names[i % len(names)] for i in returned)},")
    return "\n".join(lines) + "\n"


def make(text: str) -> Callable[..., Any]:
    """The function, with its lines where tracebacks and code objects look for them."""
    name = f"<program {next(_count)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {"torch": torch, "__name__": "alias_programs"}
    exec(compile(text, name, "exec"), scope)
    made: Callable[..., Any] = scope["program"]
    return made


def inputs(kinds: Sequence[int], memory: Sequence[int], grad: bool) -> list[torch.Tensor]:
    """Tensors of the given shapes; those of equal ``memory`` are views of one storage."""
    stores: dict[int, torch.Tensor] = {}
    out = []
    for kind, m in zip(kinds, memory):
        if m not in stores:
            stores[m] = torch.linspace(-0.9, 1.3 + m, 24).sin()
        x = SHAPES[kind % len(SHAPES)](stores[m])
        if grad and list(memory).count(m) == 1:
            x = x.clone().requires_grad_()
        out.append(x)
    return out


def observe(fn: Callable[..., Any], xs: list[torch.Tensor]) -> list[Any]:
    """All that a user sees of a call. Raises what the call raises."""
    outs = list(fn(*xs))
    seen: list[Any] = [_seen(x) for x in (*outs, *xs)]
    seen.append([[a is b for b in (*outs, *xs)] for a in outs])
    heads = [o for o in outs if o.requires_grad]
    wanted = [x for x in xs if x.requires_grad and x.is_leaf]
    if heads and wanted:
        tangents = [torch.linspace(0, 1, h.numel()).view(h.shape) for h in heads]
        grads = torch.autograd.grad(heads, wanted, tangents, allow_unused=True)
        seen += [None if g is None else g.clone() for g in grads]
    for i, o in enumerate(outs):
        with torch.no_grad():
            if all(s != 0 or n == 1 for n, s in zip(o.shape, o.stride())):
                o.detach().add_(10.0 ** (i + 1))
        seen += [x.detach().clone() for x in (*outs, *xs)]
    return seen


def _seen(x: torch.Tensor) -> tuple[Any, ...]:
    extent = sum((n - 1) * s for n, s in zip(x.shape, x.stride())) + 1
    strides = tuple(s for n, s in zip(x.shape, x.stride()) if n != 1) if extent <= x.numel() else "gaps"
    return x.detach().clone(), tuple(x.shape), strides, x.requires_grad, x.dtype


def same(a: Any, b: Any) -> bool:
    """``b`` is what eager's ``a`` is; where eager leaves gaps in memory, the layout may be another."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.shape == b.shape and torch.allclose(a, b, 1e-4, 1e-5, equal_nan=True)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == "gaps" or bool(a == b)


def check(
    steps: Sequence[Step], kinds: Sequence[int], memories: Sequence[Sequence[int]], returned: Sequence[int], grad: bool
) -> str:
    """Runs a program with each of the ``memories`` in turn. "": as in eager; "skipped": eager refuses; else what
    differs, with the program's text."""
    text = source(steps, len(kinds), returned)
    fn, fast = make(text), braze.compile(make(text))
    done = "skipped"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for memory in memories:
            case = f"inputs {kinds} in {memory}, grad {grad}"
            try:
                want = observe(fn, inputs(kinds, memory, grad))
            except (RuntimeError, IndexError):
                continue
            done = ""
            try:
                got = observe(fast, inputs(kinds, memory, grad))
            except Exception as e:  # noqa: BLE001
                return f"{type(e).__name__}: {e}\n{text}{case}"
            if not same(want, got):
                at = next(i for i, (a, b) in enumerate(zip(want, got)) if not same(a, b))
                return f"observation {at}:\n{got[at]}\ninstead of\n{want[at]}\n{text}{case}"
    return done
