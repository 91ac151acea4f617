"""CPU kernels that users write with llvmlite's builder: the code of one unit of work, at any sizes.

    def emit(k, out, x, rate):  # one row: out[i] = rate * out[i - 1] + x[i]
        out, x = out.row(k.unit), x.row(k.unit)
        rate, last = k.value(rate, x.type), k.variable(k.value(0.0, x.type))
        with k.loop(x.sizes[-1]) as i:
            last.set(k.b.fadd(k.b.fmul(rate, last.get()), x.load(i)))
            out.store(last.get(), i)

``UserKernel(name, emit)`` makes machine code once for each combination of dtypes and ranks: LLVM's own passes inline
and vectorise it, units are divided among threads, and the object code is cached on disk like that of other kernels.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from braze.errors import Unsupported
from braze.ir import TensorType, contiguous_strides, map_leaves

from .cpu import Kernel, Source, has_symbol, host_target, load_kernels

MANY = 1 << 15  # elements from which on units are divided among threads
_NATIVE = frozenset("sqrt fabs floor ceil trunc rint copysign fma".split())
_FLOATS = ("half", "float", "double")
_IN_MEMORY = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "half",
    torch.bfloat16: "i16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "i8",
    torch.bool: "i8",
}


def _type(name: str) -> Any:
    import llvmlite.ir as ir

    if name.startswith("i"):
        return ir.IntType(int(name[1:]))
    return {"half": ir.HalfType, "float": ir.FloatType, "double": ir.DoubleType}[name]()


class Memory:
    """A tensor in a kernel. ``sizes`` are i64 values, ``dtype`` is torch's, ``pointer`` that of its first element and
    ``type`` llvmlite's type of its values: float for 16-bit floats, i1 for bool."""

    def __init__(self, code: Code, dtype: torch.dtype, sizes: Sequence[Any], pointer: Any) -> None:
        self.code, self.dtype, self.sizes, self.pointer = code, dtype, tuple(sizes), pointer
        self._held = _type(_IN_MEMORY[dtype])
        value = "float" if dtype in (torch.float16, torch.bfloat16) else "i1" if dtype is torch.bool else ""
        self.type = _type(value) if value else self._held

    def _at(self, i: Any) -> Any:
        return self.code.b.gep(self.pointer, [self.code.index(i)], inbounds=True, source_etype=self._held)

    def row(self, r: Any) -> Memory:
        """The elements along the last dim at row ``r``, counted over all leading dims."""
        start = self.code.b.mul(self.code.index(r), self.sizes[-1])
        return Memory(self.code, self.dtype, self.sizes[-1:], self._at(start))

    def load(self, i: Any) -> Any:
        """The element at ``i``, counted in row-major order."""
        b, found = self.code.b, self.code.b.load(self._at(i), typ=self._held)
        if self.dtype is torch.bfloat16:
            return b.bitcast(b.shl(b.zext(found, _type("i32")), _type("i32")(16)), self.type)
        if self.dtype is torch.bool:
            return b.icmp_unsigned("!=", found, self._held(0))
        return self.code.value(found, self.type)

    def store(self, value: Any, i: Any) -> None:
        """Writes an element; a number or a value of another type is converted as by :meth:`Code.value`."""
        b, value = self.code.b, self.code.value(value, self.type)
        if self.dtype is torch.bfloat16:
            value = b.trunc(self._rounded(value), self._held)
        elif self.dtype is torch.bool:
            value = b.zext(value, self._held)
        else:
            value = self.code.value(value, self._held)
        b.store(value, self._at(i))

    def _rounded(self, value: Any) -> Any:
        """The upper half of a float, to nearest even, as an i32. Nan stays one."""
        b, i32 = self.code.b, _type("i32")
        bits = b.bitcast(value, i32)
        odd = b.and_(b.lshr(bits, i32(16)), i32(1))
        up = b.lshr(b.add(bits, b.add(odd, i32(0x7FFF))), i32(16))
        return b.select(b.fcmp_unordered("uno", value, value), i32(0x7FC0), up)


@dataclass(frozen=True)
class Variable:
    """A value that a kernel's code changes."""

    code: Code
    place: Any
    type: Any

    def get(self) -> Any:
        """What it is now."""
        return self.code.b.load(self.place, typ=self.type)

    def set(self, value: Any) -> None:
        """A new value, converted as by :meth:`Code.value`."""
        self.code.b.store(self.code.value(value, self.type), self.place)


class Code:
    """What a kernel's function is given first: ``b``, llvmlite's ``IRBuilder`` inside of the code of one unit of work,
    and ``unit``, the unit's number, an i64 value."""

    def __init__(self, builder: Any, unit: Any) -> None:
        self.b, self.unit = builder, unit

    def index(self, i: Any) -> Any:
        """An int or an integer value as an i64 value."""
        return self.value(i, _type("i64"))

    def value(self, x: Any, type: Any) -> Any:  # noqa: A002
        """A Python number as a constant of llvmlite's ``type``, or a value converted to it (integers are signed)."""
        if isinstance(x, (bool, int, float)):
            return type(float(x) if str(type) in _FLOATS else int(x))
        have, want = str(x.type), str(type)
        if have == want:
            return x
        if have in _FLOATS and want in _FLOATS:
            wider = _FLOATS.index(have) < _FLOATS.index(want)
            return self.b.fpext(x, type) if wider else self.b.fptrunc(x, type)
        if have in _FLOATS:
            return self.b.fptosi(x, type)
        if want in _FLOATS:
            return self.b.uitofp(x, type) if have == "i1" else self.b.sitofp(x, type)
        if x.type.width > type.width:
            return self.b.trunc(x, type)
        return self.b.zext(x, type) if have == "i1" else self.b.sext(x, type)

    def variable(self, initial: Any) -> Variable:
        """A variable of the type of the value ``initial``."""
        with self.b.goto_entry_block():
            place = self.b.alloca(initial.type)
        made = Variable(self, place, initial.type)
        made.set(initial)
        return made

    @contextmanager
    def loop(self, n: Any) -> Iterator[Any]:
        """``with k.loop(n) as i:`` for each i from 0 to n - 1, an i64 value."""
        b, n = self.b, self.index(n)
        head, body, after = (b.append_basic_block(x) for x in ("head", "body", "after"))
        before = b.block
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(n.type)
        i.add_incoming(n.type(0), before)
        b.cbranch(b.icmp_signed("<", i, n), body, after)
        b.position_at_end(body)
        yield i
        i.add_incoming(b.add(i, n.type(1)), b.block)
        b.branch(head)
        b.position_at_end(after)

    def call(self, name: str, *values: Any) -> Any:
        """A function of C's mathematical library, of values that are all float or all double: ``k.call("exp", x)``.
        ValueError for one that is not there."""
        import llvmlite.ir as ir

        kind = values[0].type
        function = ir.FunctionType(kind, [kind] * len(values))
        if name in _NATIVE:
            return self.b.call(self.b.module.declare_intrinsic(f"llvm.{name}", [kind], function), values)
        symbol = name + ("f" if str(kind) == "float" else "")
        if str(kind) not in ("float", "double") or not has_symbol(symbol):
            raise ValueError(f"no function {symbol} of {kind}")
        found = self.b.module.globals.get(symbol)
        return self.b.call(found or ir.Function(self.b.module, function, symbol), values)


Form = tuple[Any, ...]  # of an argument: ("tensor", dtype, rank), ("number", int or float), or ("constant", value)


class UserKernel:
    """``UserKernel(name, emit)(units, results, args)`` runs ``emit``'s code for each of the units on CPU tensors.

    ``results`` and the tensors among ``args`` are contiguous. Numbers are arguments of the code (double and i64), other
    arguments are constants of it. Unsupported where ``emit`` raises it or for dtypes that kernels cannot hold;
    ValueError where LLVM refuses what ``emit`` wrote.
    """

    def __init__(self, name: str, emit: Callable[..., None]) -> None:
        self.name, self.emit = name, emit
        self._made: dict[tuple[Form, Form, bool], Kernel | Unsupported] = {}

    def __call__(self, units: int, results: Sequence[torch.Tensor], args: Sequence[Any]) -> None:
        parallel = units > 1 and sum(x.numel() for x in (*results, *args) if isinstance(x, torch.Tensor)) >= MANY
        key = (tuple(map(_form, results)), tuple(map(_form, args)), parallel)
        made = self._made.get(key)
        if made is None:
            try:
                made = self._make(*key)
            except Unsupported as e:
                made = e
            self._made[key] = made
        if isinstance(made, Unsupported):
            raise made
        tensors = [x for x in (*results, *args) if isinstance(x, torch.Tensor)]
        sizes = [n for x in tensors for n in x.shape]
        made(*tensors, units, *sizes, *[_bits(x) for x in args if _is_number(x)])

    def _make(self, results: Form, args: Form, parallel: bool) -> Kernel:
        text = _optimised(self.name, str(_module(self.emit, results, args)))
        forms = [*results, *args]
        ranks = [f[2] for f in forms if f[0] == "tensor"]
        numbers = sum(f[0] == "number" for f in forms)
        name = self.name.replace("::", "_")
        (kernel,) = load_kernels(
            [Source(name, text, len(ranks), 1 + sum(ranks) + numbers, units=-1, parallel=parallel, long=parallel)]
        )
        return kernel


def _is_number(x: Any) -> bool:
    return type(x) in (int, float)


def _bits(x: Any) -> int:
    return x if type(x) is int else struct.unpack("q", struct.pack("d", x))[0]


def _form(x: Any) -> Form:
    if isinstance(x, torch.Tensor):
        if x.dtype not in _IN_MEMORY:
            raise Unsupported(f"a kernel over {x.dtype}")
        return ("tensor", x.dtype, x.ndim)
    if _is_number(x):
        return ("number", type(x))
    constant = tuple(x) if isinstance(x, list) else x
    if isinstance(constant, tuple) and any(isinstance(y, torch.Tensor) for y in constant):
        raise Unsupported("a kernel over a list of tensors")
    return ("constant", constant)


def _module(emit: Callable[..., None], results: Form, args: Form) -> Any:
    """llvmlite's module with ``@work`` and ``@units`` (see ``cpu_entry``) around ``emit``'s code."""
    import llvmlite.ir as ir

    i64, pointer, void = _type("i64"), ir.PointerType(), ir.VoidType()
    module = ir.Module()
    forms = [*results, *args]
    ranks = [f[2] for f in forms if f[0] == "tensor"]
    integers = sum(ranks) + sum(f[0] == "number" for f in forms)
    kinds = [i64, *[pointer] * len(ranks), *[i64] * integers]
    one = ir.Function(module, ir.FunctionType(void, kinds), "one")
    one.linkage = "internal"
    one.attributes.add("alwaysinline")
    for a in one.args[1 : 1 + len(results)]:
        a.add_attribute("noalias")
    b = ir.IRBuilder(one.append_basic_block("entry"))
    code = Code(b, one.args[0])
    pointers, numbers = iter(one.args[1 : 1 + len(ranks)]), iter(one.args[1 + len(ranks) :])
    sizes = {p: [next(numbers) for _ in range(r)] for p, r in zip(one.args[1:], ranks)}
    given = []
    for f in forms:
        if f[0] == "tensor":
            p = next(pointers)
            given.append(Memory(code, f[1], sizes[p], p))
        elif f[0] == "number":
            bits = next(numbers)
            given.append(b.bitcast(bits, _type("double")) if f[1] is float else bits)
        else:
            given.append(f[1])
    emit(code, *given)
    code.b.ret_void()
    _drivers(module, one, len(ranks), integers)
    return module


def _drivers(module: Any, one: Any, tensors: int, integers: int) -> None:
    """``@units``, the first integer, and ``@work``, which calls ``one`` for each unit of a range."""
    import llvmlite.ir as ir

    i64, pointer = _type("i64"), ir.PointerType()
    units = ir.Function(module, ir.FunctionType(i64, [pointer]), "units")
    b = ir.IRBuilder(units.append_basic_block("entry"))
    b.ret(b.load(b.gep(units.args[0], [i64(tensors)], source_etype=i64), typ=i64))
    work = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer, i64, i64]), "work")
    b = ir.IRBuilder(work.append_basic_block("entry"))
    slots, begin, end = work.args
    kinds = [pointer] * tensors + [i64] * (integers + 1)
    loaded = [b.load(b.gep(slots, [i64(k)], source_etype=i64), typ=t) for k, t in enumerate(kinds)]
    del loaded[tensors]
    code = Code(b, None)
    with code.loop(b.sub(end, begin)) as i:
        b.call(one, [b.add(begin, i), *loaded])
    b.ret_void()


def _optimised(name: str, text: str) -> str:
    """The module after LLVM's passes for this machine. ValueError with LLVM's message when it is not valid."""
    import llvmlite.binding as llvm

    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
    except RuntimeError as e:
        raise ValueError(f"the LLVM kernel of {name} is not valid: {e}") from None
    machine = _machine()
    module.triple, module.data_layout = host_target().triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)  # made anew: running one leaves it empty
    done = str(module)
    module.close()
    return done


@lru_cache(maxsize=1)
def _machine() -> Any:
    import llvmlite.binding as llvm

    target = host_target()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, jit=True, reloc="pic", codemodel="small"
    )


def implementation(
    kernel: UserKernel,
    shape: Callable[..., Any],
    units: Callable[..., int] | None,
    otherwise: Callable[..., Any],
) -> Callable[..., Any]:
    """An operator's function for CPU tensors: its kernel, and ``otherwise`` where the kernel is Unsupported.

    ``shape(*args)`` and ``units(*args)`` get TensorTypes in the place of tensors; without ``units`` there is one for
    each row along the first tensor's last dim.
    """

    def run(*args: Any) -> Any:
        types = map_leaves(list(args), lambda x: _type_of(x) if isinstance(x, torch.Tensor) else x)
        declared = shape(*types)
        several = isinstance(declared, (tuple, list))
        wanted: Sequence[TensorType] = declared if several else [declared]
        results = [torch.empty(t.sizes, dtype=t.dtype) for t in wanted]  # type: ignore[arg-type]
        plain = [x.resolve_neg().contiguous() if isinstance(x, torch.Tensor) else x for x in args]
        try:
            kernel((units or _rows)(*types), results, plain)
        except Unsupported:
            return otherwise(*args)
        done = [_laid_out(x, t) for x, t in zip(results, wanted)]
        return tuple(done) if several else done[0]

    return run


def _type_of(x: torch.Tensor) -> TensorType:
    return TensorType(tuple(x.shape), tuple(x.stride()), x.dtype, x.device)


def _rows(*types: Any) -> int:
    first = next(t for t in types if isinstance(t, TensorType))
    n = 1
    for size in first.sizes[:-1]:
        n *= int(size)  # type: ignore[arg-type]
    return n


def _laid_out(x: torch.Tensor, t: TensorType) -> torch.Tensor:
    if tuple(t.strides) == contiguous_strides(t.sizes):
        return x
    return torch.empty_strided(t.sizes, t.strides, dtype=t.dtype).copy_(x)  # type: ignore[arg-type]
