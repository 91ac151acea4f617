"""A kernel as a module of LLVM IR: ``@work`` for a range of its units, and how the runtime is to call it."""

from __future__ import annotations

from dataclasses import replace

from braze.inductor.loops import Kernel, canonical
from braze.ir import IntLike, product
from braze.runtime.cpu import Source, Target, host_target

from . import llvm_index as ix
from .llvm_builder import Builder, V
from .llvm_kernel import Writer
from .llvm_past import resident, stored_past_caches, suited
from .llvm_plan import OWNED_UNITS, Plan, arguments, cost_ns, make_plan

LONG_NS = 50_000.0  # kernels estimated longer than this release the interpreter lock


def emit_llvm(kernel: Kernel, target: Target | None = None) -> str:
    """The module's text. Unsupported when the kernel has something that the CPU generator lacks."""
    return emit_source(kernel, target).text


def emit_source(kernel: Kernel, target: Target | None = None) -> Source:
    """The module and its calling convention, ready to load."""
    target = target or host_target()
    kernel = canonical(kernel).kernel
    plan = make_plan(kernel, target)
    plan = replace(plan, past=stored_past_caches(plan, target))
    buffers, sizes = arguments(kernel)
    works = _works(plan, target, len(buffers), len(sizes))
    parts = [
        f"; {kernel.name}: {', '.join(dict.fromkeys(name for name, _ in kernel.origin))}",
        f'target triple = "{target.triple}"',
        *(text for text, _ in works),
    ]
    units = units_of(plan)
    if not isinstance(units, int):
        parts.append(units_text("units", plan, len(buffers)))
    helpers = {name: text for _, b in works for name, text in b.helpers.items()}
    declares = {name: text for _, b in works for name, text in b.declares.items()}
    parts += [*helpers.values(), *(declares[k] for k in sorted(declares))]
    return Source(
        name=kernel.name,
        text="\n".join(parts) + "\n",
        tensors=len(buffers),
        sizes=len(sizes),
        units=units if isinstance(units, int) else -1,
        parallel=plan.parallel,
        long=cost_ns(plan.nest) > LONG_NS,
    )


def _works(plan: Plan, target: Target, pointers: int, sizes: int) -> list[tuple[str, Builder]]:
    """``@work``, with what it takes. Where kept values have room for rows up to a limit, a second function computes
    them again and ``@work`` looks at the row's size."""
    if plan.past:
        return _past_caches(plan, target, pointers, sizes)
    if not plan.row_limit:
        return [work_text("work", plan, target, pointers, sizes)]
    assert plan.vector is not None
    short = work_text("work_short", plan, target, pointers, sizes)
    long = work_text("work_long", replace(plan, stash={}, row_limit=0), target, pointers, sizes)
    b, scope = Builder(), ix.Scope()
    for k, s in enumerate(arguments(plan.nest.kernel)[1]):
        scope.symbols[s] = V(f"%s{k}", "i64")
    fits = b.compare("sle", ix.scalar_index(b, plan.vector.size, scope), b.const("i64", plan.row_limit))
    lines = [
        "define void @work(ptr %args, i64 %begin, i64 %end) nounwind {\nentry:",
        *_unpack(pointers, sizes),
        *b.lines,
        f"  br {fits.typed}, label %short, label %long",
        "short:\n  call void @work_short(ptr %args, i64 %begin, i64 %end)\n  ret void",
        "long:\n  call void @work_long(ptr %args, i64 %begin, i64 %end)\n  ret void\n}",
    ]
    return [short, long, ("\n".join(lines), b)]


def _past_caches(plan: Plan, target: Target, pointers: int, sizes: int) -> list[tuple[str, Builder]]:
    """``@work`` for stores past the caches, where they are of use: see ``llvm_past``."""
    past = work_text("work_past", plan, target, pointers, sizes)
    near = work_text("work_near", replace(plan, past=frozenset()), target, pointers, sizes)
    b = Builder()
    b.declare("llvm.x86.sse.sfence", "void", [])
    b.emit("%answer = alloca i8")
    (fit,) = b.when(suited(b, plan), lambda: [resident(b, plan)], [b.const("i1", False)])
    lines = [
        "define void @work(ptr %args, i64 %begin, i64 %end) nounwind {\nentry:",
        *_unpack(pointers, sizes),
        *b.lines,
        f"  br {fit.typed}, label %past, label %near",
        "past:\n  call void @work_past(ptr %args, i64 %begin, i64 %end)",
        "  call void @llvm.x86.sse.sfence()  ; others read what was stored\n  ret void",
        "near:\n  call void @work_near(ptr %args, i64 %begin, i64 %end)\n  ret void\n}",
    ]
    return [past, near, ("\n".join(lines), b)]


def work_text(name: str, plan: Plan, target: Target, pointers: int, sizes: int) -> tuple[str, Builder]:
    """The function that runs a range of a plan's units, and what it needs of the module."""
    writer = Writer(plan, target)
    writer.write()
    b = writer.b
    kind = "" if name == "work" else "internal "
    head = f"define {kind}void @{name}(ptr %args, i64 %begin, i64 %end) nounwind {{\nentry:"
    return "\n".join([head, *_unpack(pointers, sizes), *b.lines, "  ret void\n}"]), b


def units_of(plan: Plan) -> IntLike:
    """The number of units of work."""
    if plan.owned is not None:
        return OWNED_UNITS
    units = product([a.size for a in plan.units])
    if plan.chunk and plan.vector is not None:
        units = units * (-(-plan.vector.size // plan.chunk))
    return units


def _unpack(pointers: int, integers: int) -> list[str]:
    """Loads of the argument slots: %p0.. (data pointers), %s0.. (sizes), %failed."""
    names = [("ptr", f"%p{k}") for k in range(pointers)] + [("i64", f"%s{k}") for k in range(integers)]
    lines = []
    for k, (t, name) in enumerate([*names, ("ptr", "%failed")]):
        lines.append(f"  %slot{k} = getelementptr inbounds i64, ptr %args, i64 {k}")
        lines.append(f"  {name} = load {t}, ptr %slot{k}")
    return lines


def units_text(name: str, plan: Plan, pointers: int) -> str:
    """A function of the argument slots that gives the number of units for these sizes."""
    sizes = arguments(plan.nest.kernel)[1]
    b, scope = Builder(), ix.Scope()
    for k, s in enumerate(sizes):
        scope.symbols[s] = V(f"%s{k}", "i64")
    total = ix.scalar_index(b, units_of(plan), scope)
    kind = "" if name == "units" else "internal "
    head = f"define {kind}i64 @{name}(ptr %args) nounwind {{\nentry:"
    return "\n".join([head, *_unpack(pointers, len(sizes)), *b.lines, f"  ret {total.typed}\n}}"])
