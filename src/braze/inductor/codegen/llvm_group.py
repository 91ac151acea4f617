"""One launch for many kernels of one form (``Program.groups``): the table of an optimizer's parameters.

The arguments are each member's tensors, member after member, then each member's number of points.  ``@one`` is the
members' kernel for any number of points; ``@work`` finds the members whose units lie in its range, and calls it for
each with a table of that member's pointers.  ``@units`` is the sum of the members' units.  So threads share the points
of all members evenly, in one parallel region, and machine code is made once for all sizes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from braze.inductor.loops import Axis, Buffer, Compute, Instr, Kernel, Load, Store, canonical
from braze.ir import TensorType, symbol, symbol_of, symbols
from braze.runtime.cpu import Source, Target, host_target

from .llvm_module import LONG_NS, units_text, work_text
from .llvm_plan import GRAIN_NS, arguments, cost_ns, make_plan, program_arguments

POINTS, MOST = 1024, 1 << 48  # of a member: for estimates, at most
_DRIVER = """
define i64 @units(ptr %args) nounwind {
entry:
  %own = alloca i64, i64 SLOTS
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %member ]
  %total = phi i64 [ 0, %entry ], [ %sum, %member ]
  %more = icmp slt i64 %k, MEMBERS
  br i1 %more, label %member, label %done
member:
  call void @gather(ptr %args, ptr %own, i64 %k)
  %n = call i64 @units_one(ptr %own)
  %sum = add i64 %total, %n
  %k1 = add i64 %k, 1
  br label %head
done:
  ret i64 %total
}

define void @work(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %own = alloca i64, i64 SLOTS
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %base = phi i64 [ 0, %entry ], [ %top, %next ]
  %inside = icmp slt i64 %base, %end
  %left = icmp slt i64 %k, MEMBERS
  %more = and i1 %inside, %left
  br i1 %more, label %member, label %done
member:
  call void @gather(ptr %args, ptr %own, i64 %k)
  %n = call i64 @units_one(ptr %own)
  %top = add i64 %base, %n
  %late = icmp sgt i64 %begin, %base
  %low = select i1 %late, i64 %begin, i64 %base
  %early = icmp slt i64 %end, %top
  %high = select i1 %early, i64 %end, i64 %top
  %some = icmp slt i64 %low, %high
  br i1 %some, label %run, label %next
run:
  %from = sub i64 %low, %base
  %to = sub i64 %high, %base
  call void @one(ptr %own, i64 %from, i64 %to)
  br label %next
next:
  %k1 = add i64 %k, 1
  br label %head
done:
  ret void
}

define internal void @gather(ptr %args, ptr %own, i64 %k) nounwind {
entry:
  %bytes = shl i64 %k, 3
  %first = mul i64 %bytes, TENSORS
  %from = getelementptr inbounds i8, ptr %args, i64 %first
  br label %head
head:
  %j = phi i64 [ 0, %entry ], [ %j1, %copy ]
  %more = icmp slt i64 %j, TENSORS
  br i1 %more, label %copy, label %sizes
copy:
  %a = getelementptr inbounds i64, ptr %from, i64 %j
  %v = load i64, ptr %a
  %b = getelementptr inbounds i64, ptr %own, i64 %j
  store i64 %v, ptr %b
  %j1 = add i64 %j, 1
  br label %head
sizes:
  %place = add i64 %k, POINTERS
  %c = getelementptr inbounds i64, ptr %args, i64 %place
  %size = load i64, ptr %c
  %d = getelementptr inbounds i64, ptr %own, i64 TENSORS
  store i64 %size, ptr %d
  %e = getelementptr inbounds i64, ptr %args, i64 LAST
  %failed = load i64, ptr %e
  %f = getelementptr inbounds i64, ptr %own, i64 FAILED
  store i64 %failed, ptr %f
  ret void
}
"""


def group_key(kernels: Sequence[Kernel]) -> str:
    """The content key of a group's launch."""
    found = canonical(_form(kernels[0]))
    return hashlib.sha256(f"group of {len(kernels)} {found.key}".encode()).hexdigest()[:32]


def group_arguments(kernels: Sequence[Kernel]) -> tuple[list[Buffer], list[int]]:
    """The launch's tensors and numbers of points."""
    return [b for k in kernels for b in program_arguments(canonical(k))[0]], [_points(k) for k in kernels]


def emit_group(kernels: Sequence[Kernel], target: Target | None = None) -> Source:
    """The module that runs all members, and its calling convention."""
    target = target or host_target()
    form = canonical(_form(kernels[0])).kernel
    plan = make_plan(form, target)
    buffers, sizes = arguments(form)
    tensors, members = len(buffers), len(kernels)
    one, b = work_text("one", plan, target, tensors, len(sizes))
    numbers = {
        "SLOTS": tensors + 2,
        "MEMBERS": members,
        "TENSORS": tensors,
        "POINTERS": members * tensors,
        "LAST": members * (tensors + 1),
        "FAILED": tensors + len(sizes),
    }
    driver = _DRIVER
    for word, n in numbers.items():
        driver = driver.replace(word, str(n))
    cost = cost_ns(plan.nest) * sum(map(_points, kernels)) / (POINTS if form.x else 1)
    parts = [
        f"; {members} of {kernels[0].name}: {', '.join(dict.fromkeys(name for name, _ in kernels[0].origin))}",
        f'target triple = "{target.triple}"',
        one,
        units_text("units_one", plan, tensors),
        driver,
        *b.helpers.values(),
        *(b.declares[k] for k in sorted(b.declares)),
    ]
    parallel = target.openmp and cost > GRAIN_NS
    text = "\n".join(parts) + "\n"
    return Source(form.name, text, members * tensors, members, -1, parallel, cost > LONG_NS)


def _points(k: Kernel) -> int:
    axes = canonical(k).kernel.x
    size = axes[0].size if axes else 1
    assert isinstance(size, int)
    return size


def _form(kernel: Kernel) -> Kernel:
    """The member's kernel for any number of points."""
    k = canonical(kernel).kernel
    size = symbol("points", 2, MOST, POINTS)
    axis = symbol("x0", 0, MOST - 1, below=size)
    new: dict[Any, Any] = {}
    flat: dict[Buffer, Buffer] = {}
    body: list[Instr] = []
    for i in k.body:
        made: Any = i
        if isinstance(i, (Load, Store)):
            walks = bool(symbols(*i.index))
            if i.buffer not in flat:
                t = TensorType((size,) if walks else (), (1,) if walks else (), i.buffer.type.dtype, k.device)
                flat[i.buffer] = Buffer(i.buffer.name, t)
            index = (axis,) if walks else ()
            place = flat[i.buffer]
            made = Load(place, index) if isinstance(i, Load) else Store(place, index, new[i.value])
        elif isinstance(i, Compute):
            made = Compute(i.fn, tuple([new[a] for a in i.args]), i.dtype, i.attrs)
        body.append(made)
        new[i] = made
    loop = symbol_of(axis)
    assert loop is not None
    return Kernel("group", (Axis(loop, size),) if k.x else (), (), body, k.device, kernel.origin)
