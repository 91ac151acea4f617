"""Runs generated Triton source in Triton's interpreter, in a process of its own (TRITON_INTERPRET must be set before
triton is imported, and other tests in this process compile).

As a program it serves pickled requests ``(name, source, blocks, programs, arguments)`` on its input: numpy arrays are
tensors, changed in place and sent back.  bf16 tensors travel as ("bf16", f32 array), exactly.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

import torch

from braze.inductor.codegen.triton_emit import Emitted
from braze.runtime.cuda_group import TritonGroup
from braze.runtime.cuda_kernel import TritonKernel


class Interpreter:
    """The client."""

    def __init__(self) -> None:
        env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
        )

    def run(self, made: Emitted, tensors: dict[Any, torch.Tensor], sizes: list[int] | None = None) -> None:
        """Run on CPU tensors by buffer, in place; ``sizes`` are the values of ``made.sizes``."""
        self.call(made.code, [tensors[b] for b in made.buffers], sizes or [])

    def call(self, code: TritonKernel, given: list[torch.Tensor], sizes: list[int]) -> None:
        """Run on the arguments that a host program passes, in place."""
        names = [n for n, _ in code.signature][code.pointers :]
        programs = code.programs(dict(zip(names, sizes)))
        memory = [_memory(t) for t in given]
        places = [next(k for k, m in enumerate(memory) if _same(m, t)) for t in memory]
        packed = [_pack(t) for t in memory]
        request = (code.name, code.source, dict(code.launch.blocks), programs, packed, places, sizes)
        assert self.process.stdin and self.process.stdout
        pickle.dump(request, self.process.stdin)
        self.process.stdin.flush()
        answer = pickle.load(self.process.stdout)
        if isinstance(answer, str):
            raise RuntimeError(f"{answer}\n{code.source}")
        for (name, _), t, place in zip(code.signature, memory, places):
            if not name.startswith("in_ptr"):
                t.copy_(_unpack(answer[place]))

    def group(self, group: TritonGroup, given: list[torch.Tensor]) -> None:
        """Run a group's launches on its tensors, in place: tensors of one storage keep their distances, since the table
        of pointers holds addresses of the process that runs it."""
        stores = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in given}
        memory = [torch.empty(0, dtype=torch.uint8).set_(s) for s in stores.values()]
        number = {at: n for n, at in enumerate(stores)}
        views = [(number[t.untyped_storage().data_ptr()], t.storage_offset() * t.itemsize, str(t.dtype)) for t in given]
        takes = [numbers for _, numbers in group.fillers] + list(group.shared)
        launches = [
            (k.name, k.source, dict(k.launch.blocks), k.programs(), numbers) for k, numbers in zip(group.kernels, takes)
        ]
        assert self.process.stdin and self.process.stdout
        pickle.dump(("group", group.entries, [m.numpy() for m in memory], views, launches), self.process.stdin)
        self.process.stdin.flush()
        answer = pickle.load(self.process.stdout)
        if isinstance(answer, str):
            raise RuntimeError(f"{answer}\n{group.source}")
        for m, data in zip(memory, answer):
            m.copy_(torch.from_numpy(data))

    def close(self) -> None:
        self.process.kill()  # it holds nothing, and its own end takes seconds on a busy machine
        self.process.wait()


def _memory(t: torch.Tensor) -> torch.Tensor:
    """All elements from the tensor's first on, whatever its strides."""
    n = 1 + sum((s - 1) * d for s, d in zip(t.shape, t.stride())) if t.numel() else 0
    return t.as_strided((n,), (1,))


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two arguments are the same memory."""
    return a.data_ptr() == b.data_ptr() and a.dtype == b.dtype and a.shape == b.shape


def _pack(flat: torch.Tensor) -> Any:
    return ("bf16", flat.float().numpy()) if flat.dtype is torch.bfloat16 else flat.numpy()


def _unpack(data: Any) -> torch.Tensor:
    if isinstance(data, tuple):
        return torch.from_numpy(data[1]).to(torch.bfloat16)
    return torch.from_numpy(data)


def _stand_in(name: str) -> Any:
    """A libdevice function on the interpreter's values, by torch."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    exact = {
        "nearbyint": torch.round,
        "fast_expf": torch.exp,
        "fmod": lambda a, b: torch.from_numpy(np.fmod(a.numpy(), b.numpy())),
    }
    fn = exact.get(name) or getattr(torch, name)

    def call(*args: Any) -> Any:
        first = next(a for a in args if hasattr(a, "handle"))
        data = [torch.from_numpy(a.handle.data) if hasattr(a, "handle") else torch.tensor(a) for a in args]
        out = fn(*data).numpy().astype(first.handle.data.dtype)
        return tl.core.tensor(TensorHandle(out, first.handle.dtype), first.type)

    return call


def _patch() -> None:
    from triton.language.extra import libdevice

    names = """
    rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc
    fast_expf erfinv lgamma floor ceil nearbyint trunc fmod pow atan2 copysign nextafter""".split()
    for n in names:
        setattr(libdevice, n, _stand_in(n))
    _round_as_hardware_does()
    _multiply_as_hardware_does()


def _multiply_as_hardware_does() -> None:
    """Products of bfloat16 by their values; the interpreter multiplies their bits."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain = InterpreterBuilder.create_dot

    def wide(x: Any) -> Any:
        if x.dtype.scalar != tl.bfloat16:
            return x
        return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return plain(self, wide(a), wide(b), *rest)

    InterpreterBuilder.create_dot = dot


def _round_as_hardware_does() -> None:
    """float32 to bfloat16 to nearest even, as a card does; the interpreter cuts off."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain = InterpreterBuilder.cast_impl

    def cast(self: Any, src: Any, dst_type: Any) -> Any:
        if (src.dtype.scalar, dst_type.scalar) != (tl.float32, tl.bfloat16):
            return plain(self, src, dst_type)
        exact = torch.from_numpy(np.ascontiguousarray(src.data)).to(torch.bfloat16)
        return TensorHandle(exact.view(torch.int16).numpy().view(np.uint16).reshape(src.data.shape), tl.bfloat16)

    InterpreterBuilder.cast_impl = cast
    for name in ("create_fp_trunc", "create_fp_ext"):
        setattr(InterpreterBuilder, name, lambda self, src, dst_type: self.cast_impl(src, dst_type))
    InterpreterBuilder.create_fp_to_fp = lambda self, src, dst_type, mode: self.cast_impl(src, dst_type)


def _grouped(entries: int, packed: list[Any], views: list[tuple[int, int, str]], launches: list[Any]) -> list[Any]:
    """Launches over one table; the memory after them."""
    from braze.runtime.cuda_worker import load_function

    room = [torch.zeros(p.size + 256, dtype=torch.uint8) for p in packed]  # at addresses like a card's
    memory = [r[-r.data_ptr() % 256 :][: p.size].copy_(torch.from_numpy(p)) for r, p in zip(room, packed)]
    tensors = [memory[n][at:] for n, at, _ in views]
    tensors = [
        t[: t.numel() // s * s].view(d)
        for t, d, s in ((t, _dtype(v), _dtype(v).itemsize) for t, v in zip(tensors, views))
    ]
    table = torch.zeros(entries, dtype=torch.int64)
    for name, text, blocks, programs, numbers in launches:
        load_function(name, text)[(programs,)](table, *(tensors[n] for n in numbers), **blocks)
    return [m.numpy() for m in memory]


def _dtype(view: tuple[int, int, str]) -> torch.dtype:
    return getattr(torch, view[2].removeprefix("torch."))  # type: ignore[no-any-return]


def _serve() -> None:
    from braze.runtime.cuda_worker import load_function

    _patch()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            asked = pickle.load(source)
        except EOFError:
            return
        try:
            if asked[0] == "group":
                pickle.dump(_grouped(*asked[1:]), sink)
                sink.flush()
                continue
            name, text, blocks, programs, packed, places, sizes = asked
            tensors = [_unpack(p) for p in packed]
            load_function(name, text)[(programs,)](*(tensors[k] for k in places), *sizes, **blocks)
            answer: Any = [_pack(t) for t in tensors]
        except BaseException as e:  # noqa: BLE001
            import traceback

            answer = "".join(traceback.format_exception(e))
        pickle.dump(answer, sink)
        sink.flush()


if __name__ == "__main__":
    _serve()
