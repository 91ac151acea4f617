"""Updates in place: the new value of an input that the program overwrites is written into the input itself.

    new_p = p - lr * g; return loss, new_p      ->      new_p = p (one memory); new_p = p - lr * g; return loss, None

``Program.overwrites`` says which outputs those are. It is legal where one kernel writes the new value, each point of it
reads the old one only at the element that it then writes, and nobody reads the old value afterwards. ``last`` moves
kernels that only make such values to the end, so that the last condition mostly holds.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from braze.inductor.loops import Buffer, Kernel, Program, Step, Strided
from braze.inductor.loops.interpret import buffers_in
from braze.ir import IntLike, TensorType

from .schedule import reads_of, writes_of


def candidates(program: Program) -> dict[Buffer, tuple[Buffer, int]]:
    """New value -> (input, output position), where their layouts agree and neither is handed out otherwise."""
    out: dict[Buffer, tuple[Buffer, int]] = {}
    if not program.overwrites:
        return out
    handed = Counter(buffers_in(program.outputs))
    inputs = Counter(b for b in program.inputs if isinstance(b, Buffer))
    for position, index in program.overwrites:
        new, old = program.outputs[position], program.inputs[index]
        if not isinstance(new, Strided) or not new.is_whole or not isinstance(old, Buffer):
            continue
        b, t, u = new.buffer, new.buffer.type, old.type
        same = (t.sizes, _steps(t), t.dtype, t.device) == (u.sizes, _steps(u), u.dtype, u.device)
        if same and handed[b] == 1 and not handed[old] and b not in inputs and inputs[old] == 1:
            out[b] = (old, position)
    return out


def _steps(t: TensorType) -> list[IntLike]:
    """The strides that matter: a dim of one element (a 1x1 convolution's weight) has any."""
    return [s for n, s in zip(t.sizes, t.strides) if n != 1]


def last(steps: list[tuple[int, Step]], program: Program) -> list[tuple[int, Step]]:
    """The (position, step) pairs with the kernels that only make new values of inputs behind all others."""
    new = candidates(program)
    if not new:
        return steps
    read = {b for _, s in steps for b in reads_of(s) if b not in writes_of(s)}
    end = 1 + max(p for p, _ in steps)
    return [(p + end if _only(s, new, read) else p, s) for p, s in steps]


def _only(step: Step, new: dict[Buffer, Any], read: set[Buffer]) -> bool:
    return isinstance(step, Kernel) and all(b in new and b not in read for b in step.writes)


def written_inputs(program: Program, in_place: Any) -> dict[Buffer, Buffer]:
    """New value -> the input whose memory it takes. ``in_place(kernel, new, [old])`` tells whether each point reads the
    old value only where it writes the new one (None if not)."""
    new = candidates(program)
    if not new:
        return {}
    writers: dict[Buffer, list[int]] = {}
    readers: dict[Buffer, list[int]] = {}
    for k, s in enumerate(program.steps):
        for b in writes_of(s):
            writers.setdefault(b, []).append(k)
        for b in reads_of(s):
            readers.setdefault(b, []).append(k)
    out: dict[Buffer, Buffer] = {}
    for b, (old, _) in new.items():
        where = writers.get(b, [])
        if len(where) != 1 or any(k > where[0] for k in readers.get(old, ())):
            continue
        kernel = program.steps[where[0]]
        if isinstance(kernel, Kernel) and in_place(kernel, b, [old]) is old:
            out[b] = old
    return out


def returned(program: Program, taken: dict[Buffer, Buffer]) -> Any:
    """The program's outputs without the new values that need not be returned."""
    gone = {position for b, (_, position) in candidates(program).items() if b in taken}
    return tuple([None if k in gone else x for k, x in enumerate(program.outputs)]) if gone else program.outputs
