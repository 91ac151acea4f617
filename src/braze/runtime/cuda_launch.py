"""Launching kernels with little host time: one machine-code function serves all of them.

A loaded kernel is a Python function ``f(*tensors, *integers)`` whose ``self`` is a bytes object, the launch record.
The code behind it (LLVM IR, made once by llvmlite) reads the tensors' data pointers through torch's stable C shim,
computes the grid, and calls the driver.  Whatever is not plain (an argument that is no torch.Tensor, an unaligned
pointer, another context current, a driver error) it hands to the kernel's slow path, which is Python.

The record: ``HEAD`` (8-byte integers), then ``GRID`` triples (argument or -1, numel, block).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from braze.config import Config

from .cache import DiskCache, content_key
from .cpu import compile_text, host_target
from .cuda_kernel import TritonKernel

HEAD = (
    "function",
    "context",
    "threads",
    "shared",
    "device",
    "pointers",
    "integers",
    "alignment",
    "grid",
    "slow",
    "launch",
    "current",
    "stream",
)
GRID = ("argument", "numel", "block")
MOST_ARGUMENTS = 480  # 8 bytes each, of the 4096 that a launch may have

_TEXT = """
declare i32 @aoti_torch_get_data_ptr(ptr, ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare void @Py_IncRef(ptr)
@_Py_NoneStruct = external global i8
@braze_tensor_type = external global i8
@braze_parameter_type = external global i8
@zero = internal constant i64 0

define ptr @call(ptr %self, ptr %args, i64 %nargs) {{
entry:
  %head = getelementptr i8, ptr %self, i64 {bytes}
  %storage = alloca i64, i64 {most}
  %params = alloca ptr, i64 {most}
  %context = alloca ptr
  %stream = alloca ptr
{fields}
  %total = add i64 %pointers, %integers
  %counted = icmp eq i64 %total, %nargs
  br i1 %counted, label %tensors, label %slow_path
tensors:
  %i = phi i64 [0, %entry], [%i1, %tensor_done]
  %bits = phi i64 [0, %entry], [%bits1, %tensor_done]
  %more = icmp slt i64 %i, %pointers
  br i1 %more, label %tensor, label %aligned_check
tensor:
  %at = getelementptr ptr, ptr %args, i64 %i
  %o = load ptr, ptr %at
  %typeat = getelementptr i8, ptr %o, i64 8
  %type = load ptr, ptr %typeat
  %plain = icmp eq ptr %type, @braze_tensor_type
  %param = icmp eq ptr %type, @braze_parameter_type
  %known = or i1 %plain, %param
  br i1 %known, label %read, label %slow_path
read:
  %handle = getelementptr i8, ptr %o, i64 {offset}
  %slot = getelementptr i64, ptr %storage, i64 %i
  %got = call i32 @aoti_torch_get_data_ptr(ptr %handle, ptr %slot)
  %bad = icmp ne i32 %got, 0
  br i1 %bad, label %slow_path, label %tensor_done
tensor_done:
  %p = load i64, ptr %slot
  %bits1 = or i64 %bits, %p
  %pat = getelementptr ptr, ptr %params, i64 %i
  store ptr %slot, ptr %pat
  %i1 = add i64 %i, 1
  br label %tensors
aligned_check:
  %low = and i64 %bits, %alignment
  %aligned = icmp eq i64 %low, 0
  br i1 %aligned, label %numbers, label %slow_path
numbers:
  %j = phi i64 [%pointers, %aligned_check], [%j1, %number]
  %morej = icmp slt i64 %j, %nargs
  br i1 %morej, label %number, label %scratch
number:
  %nat = getelementptr ptr, ptr %args, i64 %j
  %n = load ptr, ptr %nat
  %v = call i64 @PyLong_AsLongLong(ptr %n)
  %nslot = getelementptr i64, ptr %storage, i64 %j
  store i64 %v, ptr %nslot
  %npat = getelementptr ptr, ptr %params, i64 %j
  store ptr %nslot, ptr %npat
  %j1 = add i64 %j, 1
  br label %numbers
scratch:
  %s0 = getelementptr ptr, ptr %params, i64 %nargs
  store ptr @zero, ptr %s0
  %next = add i64 %nargs, 1
  %s1 = getelementptr ptr, ptr %params, i64 %next
  store ptr @zero, ptr %s1
  %rows = getelementptr i8, ptr %head, i64 {grid_at}
  br label %dims
dims:
  %g = phi i64 [0, %scratch], [%g1, %dim_done]
  %programs = phi i64 [1, %scratch], [%programs1, %dim_done]
  %moreg = icmp slt i64 %g, %grid
  br i1 %moreg, label %dim, label %sized
dim:
  %goff = mul i64 %g, 24
  %row = getelementptr i8, ptr %rows, i64 %goff
  %arg = load i64, ptr %row, align 1
  %cat = getelementptr i8, ptr %row, i64 8
  %const = load i64, ptr %cat, align 1
  %bat = getelementptr i8, ptr %row, i64 16
  %block = load i64, ptr %bat, align 1
  %fixed = icmp slt i64 %arg, 0
  br i1 %fixed, label %dim_done, label %dim_arg
dim_arg:
  %garg = getelementptr i64, ptr %storage, i64 %arg
  %given = load i64, ptr %garg
  br label %dim_done
dim_done:
  %size = phi i64 [%const, %dim], [%given, %dim_arg]
  %up = add i64 %size, %block
  %up1 = sub i64 %up, 1
  %count = sdiv i64 %up1, %block
  %programs1 = mul i64 %programs, %count
  %g1 = add i64 %g, 1
  br label %dims
sized:
  %empty = icmp sle i64 %programs, 0
  br i1 %empty, label %done, label %check_limit
check_limit:
  %large = icmp sgt i64 %programs, 2147483647
  br i1 %large, label %slow_path, label %ready
ready:
  %currentp = inttoptr i64 %current to ptr
  %c0 = call i32 %currentp(ptr %context)
  %here = load i64, ptr %context
  %same = icmp eq i64 %here, %context_wanted
  br i1 %same, label %with_stream, label %slow_path
with_stream:
  %device32 = trunc i64 %device to i32
  %streamp = inttoptr i64 %stream_get to ptr
  %c1 = call i32 %streamp(i32 %device32, ptr %stream)
  %st = load ptr, ptr %stream
  %fn = inttoptr i64 %function to ptr
  %gx = trunc i64 %programs to i32
  %tx = trunc i64 %threads to i32
  %sh = trunc i64 %shared to i32
  %launchp = inttoptr i64 %launch to ptr
  %rc = call i32 %launchp(ptr %fn, i32 %gx, i32 1, i32 1, i32 %tx, i32 1, i32 1, i32 %sh, ptr %st, ptr %params,
                          ptr null)
  %ok = icmp eq i32 %rc, 0
  br i1 %ok, label %done, label %slow_path
done:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
slow_path:
  %slowp = inttoptr i64 %slow to ptr
  %answer = call ptr @PyObject_Vectorcall(ptr %slowp, ptr %args, i64 %nargs, ptr null)
  ret ptr %answer
}}
"""
_RENAMED = {"context": "context_wanted", "stream": "stream_get"}  # names taken by the function's own variables
_BYTES_AT = bytes.__basicsize__ - 1  # where a bytes object keeps its bytes


def text(tensor_offset: int) -> str:
    """The launcher's LLVM IR for a torch whose tensors keep their TensorImpl at this byte offset."""
    lines = []
    for k, name in enumerate(HEAD):
        name = _RENAMED.get(name, name)
        lines.append(f"  %{name}_at = getelementptr i8, ptr %head, i64 {8 * k}")
        lines.append(f"  %{name} = load i64, ptr %{name}_at, align 1")
    return _TEXT.format(
        bytes=_BYTES_AT,
        most=MOST_ARGUMENTS + 2,
        offset=tensor_offset,
        grid_at=8 * len(HEAD),
        fields="\n".join(lines),
    )


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


_FASTCALL = 0x80
_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


def _symbols() -> dict[str, int]:
    """Addresses of what the text declares."""
    torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    functions = {
        "aoti_torch_get_data_ptr": torch_cpu.aoti_torch_get_data_ptr,
        "PyLong_AsLongLong": ctypes.pythonapi.PyLong_AsLongLong,
        "PyObject_Vectorcall": ctypes.pythonapi.PyObject_Vectorcall,
        "Py_IncRef": ctypes.pythonapi.Py_IncRef,
    }
    out = {n: ctypes.cast(f, ctypes.c_void_p).value or 0 for n, f in functions.items()}
    objects = {"_Py_NoneStruct": None, "braze_tensor_type": torch.Tensor, "braze_parameter_type": torch.nn.Parameter}
    return {**out, **{n: id(x) for n, x in objects.items()}}


@lru_cache(maxsize=1)
def entry() -> tuple[int, Any] | None:
    """(address of the machine code, what keeps it alive); None where tensors cannot be read so."""
    import llvmlite
    import llvmlite.binding as llvm

    target = host_target()
    if not target.tensor_offset:
        return None
    source = text(target.tensor_offset)
    config = Config.from_env()
    cache = DiskCache(config.cache_path / "cuda-launch" if config.disk_cache else None)
    key = content_key(source, target.key, llvmlite.__version__)
    code = cache.get(key)
    if code is None:
        code = compile_text(source, target)
        cache.put(key, code)
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=1, jit=True, reloc="pic", codemodel="small"
    )
    jit = llvm.create_lljit_compiler(machine, use_jit_link=True)
    builder = llvm.JITLibraryBuilder().add_object_img(code).export_symbol("call")
    for name, address in _symbols().items():
        builder.import_symbol(name, address)
    linked = builder.link(jit, "braze_cuda_launch")
    return linked["call"], (jit, linked)


_KEPT: dict[int, tuple[Any, ...]] = {}  # function id -> what it points to; kernels live as long as the process


def record(kernel: TritonKernel, fields: dict[str, int]) -> bytes:
    """The launch record of a kernel."""
    names = [n for n, _ in kernel.signature]
    rows: list[int] = []
    for g in kernel.grid:
        block = kernel.launch.block(g.block) if g.block else 1
        rows += [-1, g.numel, block] if isinstance(g.numel, int) else [names.index(g.numel), 0, block]
    own = {"pointers": kernel.pointers, "integers": len(names) - kernel.pointers, "grid": len(kernel.grid)}
    values = [{**fields, **own}[n] for n in HEAD] + rows
    return struct.pack(f"<{len(values)}q", *values)


def fast_function(kernel: TritonKernel, fields: dict[str, int], slow: Callable[..., None]) -> Callable[..., None]:
    """The kernel as a builtin function. ``fields``: the record's entries but those that follow from the kernel."""
    code = entry()
    if code is None or len(kernel.signature) > MOST_ARGUMENTS:
        return slow
    address, keep = code
    data = record(kernel, {**fields, "slow": id(slow)})
    method = _MethodDef(kernel.name.encode(), address, _FASTCALL, None)
    function: Callable[..., None] = _new_function(ctypes.addressof(method), data, "braze")
    _KEPT[id(function)] = (function, method, data, slow, keep)
    return function


def arguments(kernel: TritonKernel, args: Sequence[Any]) -> tuple[list[int], dict[str, int]]:
    """(pointers and integers in order, integers by name) of a call, in Python. TypeError for a wrong call."""
    names = [n for n, _ in kernel.signature]
    if len(args) != len(names):
        raise TypeError(f"{kernel.name} takes {len(names)} arguments, got {len(args)}")
    values = [a.data_ptr() if isinstance(a, torch.Tensor) else int(a) for a in args]
    return values, dict(zip(names[kernel.pointers :], values[kernel.pointers :]))
