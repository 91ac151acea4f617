"""The way from a Python call to a kernel's machine code, in LLVM IR: compiled once, shared by all kernels.

A kernel's module defines ``void @work(ptr args, i64 begin, i64 end)``, and ``i64 @units(ptr args)`` when the number
of its units of work is not constant.  ``args`` is an array of 64-bit slots: the tensors' data pointers, the sizes,
and the address of an i32 that the kernel sets when an index is out of range.  ``@call`` below has CPython's fast-call
signature; its ``self`` is a ``bytes`` object with a :func:`descriptor` of the kernel.  It checks the arguments
(TypeError), reads data pointers through torch's stable C interface, releases the interpreter lock for long kernels,
runs the units on the calling thread or on torch's OpenMP threads in even contiguous shares, and raises IndexError
when the kernel reported one.
"""

from __future__ import annotations

import struct

PARALLEL, LONG = 1, 2


def descriptor(
    work: int, units_function: int, units: int, tensors: int, sizes: int, flags: int, threads: int = 0
) -> bytes:
    """What ``@call`` knows of a kernel: addresses of its functions (units_function 0: ``units`` is constant), how many
    tensors and sizes it takes, PARALLEL and LONG, and the number of threads (0: torch's)."""
    return struct.pack("7q", work, units_function, units, tensors, sizes, flags, threads)


THREADS_FUNCTION = "_ZN2at15get_num_threadsEv"  # at::get_num_threads(), which also sets up a new thread's OpenMP


def entry_text(triple: str, tensor_offset: int, bytes_offset: int, openmp: bool, threads: bool) -> str:
    """The module's text. ``tensor_offset``: of the TensorImpl pointer in a tensor object; ``bytes_offset``: of the
    data in a ``bytes`` object; ``threads``: THREADS_FUNCTION can be called (else OpenMP's default counts)."""
    fork = _FORK.replace("TORCH_THREADS", f"call i32 @{THREADS_FUNCTION}()" if threads else "add i32 0, 0")
    fork = fork if openmp else "  unreachable"
    return "\n".join(
        [
            f'target triple = "{triple}"',
            _GLOBALS,
            _CALL.replace("TENSOR_OFFSET", str(tensor_offset))
            .replace("BYTES_OFFSET", str(bytes_offset))
            .replace("FORK", fork),
            _SHARE if openmp else "",
            f"declare i32 @{THREADS_FUNCTION}()" if openmp and threads else "",
        ]
    )


_FORK = """  %d6 = getelementptr inbounds i64, ptr %d, i64 6
  %asked = load i64, ptr %d6
  %asked32 = trunc i64 %asked to i32
  %torch = TORCH_THREADS
  %default = icmp eq i32 %asked32, 0
  %team = select i1 %default, i32 %torch, i32 %asked32
  call void @GOMP_parallel(ptr @share, ptr %context, i32 %team, i32 0)"""

_GLOBALS = """
@_Py_NoneStruct = external global i64
@braze_tensor_type = external global i64
@braze_parameter_type = external global i64
@PyExc_TypeError = external global ptr
@PyExc_IndexError = external global ptr
@text.call = private constant [42 x i8] c"a compiled kernel got the wrong arguments\\00"
@text.index = private constant [40 x i8] c"index out of range in a compiled kernel\\00"
declare i32 @aoti_torch_get_data_ptr(ptr, ptr)
declare void @PyErr_SetString(ptr, ptr)
declare ptr @PyErr_Occurred()
declare void @Py_IncRef(ptr)
declare i32 @PyType_IsSubtype(ptr, ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
"""

_CALL = """
define ptr @call(ptr %self, ptr %args, i64 %count) nounwind {
entry:
  %d = getelementptr inbounds i8, ptr %self, i64 BYTES_OFFSET
  %d1 = getelementptr inbounds i64, ptr %d, i64 1
  %d2 = getelementptr inbounds i64, ptr %d, i64 2
  %d3 = getelementptr inbounds i64, ptr %d, i64 3
  %d5 = getelementptr inbounds i64, ptr %d, i64 5
  %d4 = getelementptr inbounds i64, ptr %d, i64 4
  %work = load ptr, ptr %d
  %tensors = load i64, ptr %d3
  %sizes = load i64, ptr %d4
  %flags = load i64, ptr %d5
  %want = add i64 %tensors, %sizes
  %failed = alloca i32
  %context = alloca { ptr, ptr, i64 }
  %room = add i64 %want, 1
  %slots = alloca i64, i64 %room
  store i32 0, ptr %failed
  %last = getelementptr inbounds i64, ptr %slots, i64 %want
  store ptr %failed, ptr %last
  %right = icmp eq i64 %count, %want
  br i1 %right, label %tensor, label %wrong
tensor:
  %k = phi i64 [ 0, %entry ], [ %k1, %good ]
  %more = icmp slt i64 %k, %tensors
  br i1 %more, label %one, label %size
one:
  %at = getelementptr inbounds ptr, ptr %args, i64 %k
  %o = load ptr, ptr %at
  %typeat = getelementptr inbounds i8, ptr %o, i64 8
  %type = load ptr, ptr %typeat
  %plain = icmp eq ptr %type, @braze_tensor_type
  %parameter = icmp eq ptr %type, @braze_parameter_type
  %known = or i1 %plain, %parameter
  br i1 %known, label %good, label %look
look:
  %sub = call i32 @PyType_IsSubtype(ptr %type, ptr @braze_tensor_type)
  %is = icmp ne i32 %sub, 0
  br i1 %is, label %good, label %wrong
good:
  %handle = getelementptr inbounds i8, ptr %o, i64 TENSOR_OFFSET
  %slot = getelementptr inbounds i64, ptr %slots, i64 %k
  %status = call i32 @aoti_torch_get_data_ptr(ptr %handle, ptr %slot)
  %k1 = add i64 %k, 1
  br label %tensor
size:
  %j = phi i64 [ %tensors, %tensor ], [ %j1, %onesize ]
  %moresizes = icmp slt i64 %j, %want
  br i1 %moresizes, label %onesize, label %ready
onesize:
  %sizeat = getelementptr inbounds ptr, ptr %args, i64 %j
  %number = load ptr, ptr %sizeat
  %n = call i64 @PyLong_AsLongLong(ptr %number)
  %sizeslot = getelementptr inbounds i64, ptr %slots, i64 %j
  store i64 %n, ptr %sizeslot
  %j1 = add i64 %j, 1
  br label %size
ready:
  %unitsof = load ptr, ptr %d1
  %fixed = icmp eq ptr %unitsof, null
  br i1 %fixed, label %constant, label %computed
constant:
  %units0 = load i64, ptr %d2
  br label %counted
computed:
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %compute, label %fail
compute:
  %units1 = call i64 %unitsof(ptr %slots)
  br label %counted
counted:
  %units = phi i64 [ %units0, %constant ], [ %units1, %compute ]
  %some = icmp sgt i64 %units, 0
  br i1 %some, label %run, label %done
run:
  %longbit = and i64 %flags, 2
  %short = icmp eq i64 %longbit, 0
  %parallelbit = and i64 %flags, 1
  %serial = icmp eq i64 %parallelbit, 0
  br i1 %short, label %start, label %release
release:
  %saved = call ptr @PyEval_SaveThread()
  br label %start
start:
  %state = phi ptr [ null, %run ], [ %saved, %release ]
  br i1 %serial, label %here, label %threads
here:
  call void %work(ptr %slots, i64 0, i64 %units)
  br label %ran
threads:
  store ptr %work, ptr %context
  %c1 = getelementptr inbounds { ptr, ptr, i64 }, ptr %context, i32 0, i32 1
  store ptr %slots, ptr %c1
  %c2 = getelementptr inbounds { ptr, ptr, i64 }, ptr %context, i32 0, i32 2
  store i64 %units, ptr %c2
FORK
  br label %ran
ran:
  br i1 %short, label %check, label %acquire
acquire:
  call void @PyEval_RestoreThread(ptr %state)
  br label %check
check:
  %bad = load i32, ptr %failed
  %clean = icmp eq i32 %bad, 0
  br i1 %clean, label %done, label %index
done:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
index:
  %indexerror = load ptr, ptr @PyExc_IndexError
  call void @PyErr_SetString(ptr %indexerror, ptr @text.index)
  ret ptr null
wrong:
  %typeerror = load ptr, ptr @PyExc_TypeError
  call void @PyErr_SetString(ptr %typeerror, ptr @text.call)
  ret ptr null
fail:
  ret ptr null
}
"""

_SHARE = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
define internal void @share(ptr %context) nounwind {
  %work = load ptr, ptr %context
  %c1 = getelementptr inbounds { ptr, ptr, i64 }, ptr %context, i32 0, i32 1
  %slots = load ptr, ptr %c1
  %c2 = getelementptr inbounds { ptr, ptr, i64 }, ptr %context, i32 0, i32 2
  %units = load i64, ptr %c2
  %t32 = call i32 @omp_get_thread_num()
  %n32 = call i32 @omp_get_num_threads()
  %t = zext i32 %t32 to i64
  %n = zext i32 %n32 to i64
  %t1 = add i64 %t, 1
  %low = mul i64 %units, %t
  %high = mul i64 %units, %t1
  %begin = udiv i64 %low, %n
  %end = udiv i64 %high, %n
  %some = icmp ult i64 %begin, %end
  br i1 %some, label %go, label %done
go:
  call void %work(ptr %slots, i64 %begin, i64 %end)
  br label %done
done:
  ret void
}
"""
