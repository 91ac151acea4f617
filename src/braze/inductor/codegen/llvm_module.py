"""A whole module of LLVM IR for one kernel: its work function, the share of a thread, and the Python entry.

``@call(self, args, nargs)`` has CPython's fast-call signature: tensors, then sizes (see ``llvm_plan.arguments``).  It
reads the data pointers through torch's stable C interface, releases the interpreter lock for long kernels, runs the
units on the calling thread or on the threads of torch's OpenMP runtime, and returns None (or raises: TypeError for a
wrong call, IndexError for an index out of range).
"""

from __future__ import annotations

from braze.inductor.loops import Kernel, canonical
from braze.ir import product
from braze.runtime.cpu import Target, host_target

from . import llvm_index as ix
from .llvm_builder import V
from .llvm_kernel import Writer
from .llvm_plan import Plan, arguments, cost_ns, make_plan

LONG_NS = 50_000.0  # kernels estimated longer than this release the interpreter lock


def emit_llvm(kernel: Kernel, target: Target | None = None) -> str:
    """The module's text. Unsupported when the kernel has something that the CPU generator lacks."""
    target = target or host_target()
    kernel = canonical(kernel).kernel
    plan = make_plan(kernel, target)
    buffers, sizes = arguments(kernel)
    pointers, integers = len(buffers), len(sizes)
    writer = Writer(plan, target)
    writer.write()
    params = [f"ptr %p{k}" for k in range(pointers)] + [f"i64 %s{k}" for k in range(integers)]
    work = [f"define internal void @work({', '.join([*params, 'i64 %begin', 'i64 %end'])}) nounwind {{", "entry:"]
    work += [*writer.b.lines, "  ret void", "}"]
    declares = dict(writer.b.declares)
    parts = [
        f"; {kernel.name}: {', '.join(name for name, _ in kernel.origin)}",
        f'target triple = "{target.triple}"',
        "@failed = internal global i32 0, align 4",
        "\n".join(work),
    ]
    if plan.parallel:
        parts.append(_thread_share(pointers, integers))
        for name, result, types in (
            ("GOMP_parallel", "void", "ptr, ptr, i32, i32"),
            ("omp_get_thread_num", "i32", ""),
            ("omp_get_num_threads", "i32", ""),
        ):
            declares[name] = f"declare {result} @{name}({types})"
    parts.append(_run(writer, plan, pointers, integers))
    checks = any(getattr(i, "fn", "") == "check_index" for i in plan.nest.body)
    parts.append(_entry(pointers, integers, target, cost_ns(plan.nest) > LONG_NS, checks, declares))
    parts += [*writer.b.helpers.values(), *(declares[k] for k in sorted(declares))]
    return "\n".join(parts) + "\n"


def _names(pointers: int, integers: int, prefix: str = "%") -> list[str]:
    return [f"ptr {prefix}p{k}" for k in range(pointers)] + [f"i64 {prefix}s{k}" for k in range(integers)]


def _context(pointers: int, integers: int) -> str:
    return "{ " + ", ".join(["i64"] + ["ptr"] * pointers + ["i64"] * integers) + " }"


def _fields(pointers: int, integers: int) -> list[tuple[str, str]]:
    return [(f"p{k}", "ptr") for k in range(pointers)] + [(f"s{k}", "i64") for k in range(integers)]


def _thread_share(pointers: int, integers: int) -> str:
    """The function that each OpenMP thread runs: an even, contiguous share of the units."""
    context = _context(pointers, integers)
    lines = ["define internal void @share(ptr %context) nounwind {", "  %total = load i64, ptr %context"]
    for k, (name, t) in enumerate(_fields(pointers, integers)):
        lines += [
            f"  %a.{name} = getelementptr inbounds {context}, ptr %context, i32 0, i32 {k + 1}",
            f"  %{name} = load {t}, ptr %a.{name}",
        ]
    call = ", ".join([*_names(pointers, integers), "i64 %begin", "i64 %end"])
    lines += [
        "  %t32 = call i32 @omp_get_thread_num()",
        "  %n32 = call i32 @omp_get_num_threads()",
        "  %t = zext i32 %t32 to i64",
        "  %n = zext i32 %n32 to i64",
        "  %t1 = add i64 %t, 1",
        "  %low = mul i64 %total, %t",
        "  %high = mul i64 %total, %t1",
        "  %begin = udiv i64 %low, %n",
        "  %end = udiv i64 %high, %n",
        "  %some = icmp ult i64 %begin, %end",
        "  br i1 %some, label %go, label %done",
        "go:",
        f"  call void @work({call})",
        "  br label %done",
        "done:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


def _run(writer: Writer, plan: Plan, pointers: int, integers: int) -> str:
    """``@run(buffers, sizes)``: all units, here or on the threads."""
    b = writer.b
    b.lines, b.block = [], "entry"
    scope = ix.Scope()
    for k, s in enumerate(arguments(plan.nest.kernel)[1]):
        scope.symbols[s] = V(f"%s{k}", "i64")
    units = product([a.size for a in plan.units])
    if plan.chunk and plan.vector is not None:
        units = units * (-(-plan.vector.size // plan.chunk))
    total = ix.scalar_index(b, units, scope)
    some = b.compare("sgt", total, b.const("i64", 0))
    b.emit(f"br {some.typed}, label %some, label %none")
    b.label("some")
    call = ", ".join([*_names(pointers, integers), "i64 0", total.typed])
    if plan.parallel:
        context = _context(pointers, integers)
        b.emit(f"%context = alloca {context}")
        b.emit(f"store {total.typed}, ptr %context")
        for k, (name, t) in enumerate(_fields(pointers, integers)):
            field = b.let("ptr", 1, f"getelementptr inbounds {context}, ptr %context, i32 0, i32 {k + 1}")
            b.emit(f"store {t} %{name}, {field.typed}")
        b.emit("call void @GOMP_parallel(ptr @share, ptr %context, i32 0, i32 0)")
    else:
        b.emit(f"call void @work({call})")
    b.branch("none")
    b.label("none")
    head = f"define internal void @run({', '.join(_names(pointers, integers))}) nounwind {{"
    return "\n".join([head, "entry:", *b.lines, "  ret void", "}"])


def _entry(pointers: int, integers: int, target: Target, long: bool, checks: bool, declares: dict[str, str]) -> str:
    """``@call``: from Python objects to pointers and integers, and back."""

    def declare(name: str, result: str, types: str) -> None:
        declares[name] = f"declare {result} @{name}({types})"

    declare("aoti_torch_get_data_ptr", "i32", "ptr, ptr")
    declare("PyErr_SetString", "void", "ptr, ptr")
    declare("Py_IncRef", "void", "ptr")
    text = _padded(f"a kernel takes {pointers} tensors, {integers} ints", 40)
    lines = [
        "@_Py_NoneStruct = external global i64",
        "@braze_tensor_type = external global i64",
        "@braze_parameter_type = external global i64",
        "@PyExc_TypeError = external global ptr",
        f'@text.call = private constant [40 x i8] c"{text}"',
        "define ptr @call(ptr %self, ptr %args, i64 %count) nounwind {",
        "entry:",
        "  %slot = alloca ptr",
        f"  %right = icmp eq i64 %count, {pointers + integers}",
        "  br i1 %right, label %t0, label %wrong",
    ]
    for k in range(pointers):
        lines += [
            f"t{k}:",
            f"  %g{k} = getelementptr inbounds ptr, ptr %args, i64 {k}",
            f"  %o{k} = load ptr, ptr %g{k}",
            f"  %y{k} = getelementptr inbounds i8, ptr %o{k}, i64 8",
            f"  %type{k} = load ptr, ptr %y{k}",
            f"  %tensor{k} = icmp eq ptr %type{k}, @braze_tensor_type",
            f"  %parameter{k} = icmp eq ptr %type{k}, @braze_parameter_type",
            f"  %ok{k} = or i1 %tensor{k}, %parameter{k}",
            f"  br i1 %ok{k}, label %u{k}, label %v{k}",
            f"v{k}:",
            f"  %sub{k} = call i32 @PyType_IsSubtype(ptr %type{k}, ptr @braze_tensor_type)",
            f"  %is{k} = icmp ne i32 %sub{k}, 0",
            f"  br i1 %is{k}, label %u{k}, label %wrong",
            f"u{k}:",
            f"  %h{k} = getelementptr inbounds i8, ptr %o{k}, i64 {target.tensor_offset}",
            f"  %r{k} = call i32 @aoti_torch_get_data_ptr(ptr %h{k}, ptr %slot)",
            f"  %p{k} = load ptr, ptr %slot",
            f"  br label %t{k + 1}",
        ]
    declare("PyType_IsSubtype", "i32", "ptr, ptr")
    lines.append(f"t{pointers}:")
    for k in range(integers):
        declare("PyLong_AsLongLong", "i64", "ptr")
        lines += [
            f"  %i{k} = getelementptr inbounds ptr, ptr %args, i64 {pointers + k}",
            f"  %n{k} = load ptr, ptr %i{k}",
            f"  %s{k} = call i64 @PyLong_AsLongLong(ptr %n{k})",
        ]
    run = f"  call void @run({', '.join(_names(pointers, integers))})"
    if long:
        declare("PyEval_SaveThread", "ptr", "")
        declare("PyEval_RestoreThread", "void", "ptr")
        lines += ["  %state = call ptr @PyEval_SaveThread()", run, "  call void @PyEval_RestoreThread(ptr %state)"]
    else:
        lines.append(run)
    lines += _checks() if checks else []
    lines += _returns()
    head = []
    if checks:
        head = [
            "@PyExc_IndexError = external global ptr",
            f'@text.index = private constant [40 x i8] c"{_padded("index out of range in a compiled kernel", 40)}"',
        ]
    return "\n".join(head + lines)


def _checks() -> list[str]:
    return [
        "  %bad = atomicrmw xchg ptr @failed, i32 0 monotonic",
        "  %fine = icmp eq i32 %bad, 0",
        "  br i1 %fine, label %good, label %index",
        "index:",
        "  %ie = load ptr, ptr @PyExc_IndexError",
        "  call void @PyErr_SetString(ptr %ie, ptr @text.index)",
        "  ret ptr null",
        "good:",
    ]


def _returns() -> list[str]:
    return [
        "  call void @Py_IncRef(ptr @_Py_NoneStruct)",
        "  ret ptr @_Py_NoneStruct",
        "wrong:",
        "  %te = load ptr, ptr @PyExc_TypeError",
        "  call void @PyErr_SetString(ptr %te, ptr @text.call)",
        "  ret ptr null",
        "}",
    ]


def _padded(text: str, size: int) -> str:
    return text[: size - 1] + "\\00" * (size - len(text[: size - 1]))
