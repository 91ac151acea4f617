"""Kernels to code: LLVM IR for the CPU, Triton for the GPU, and the host program that runs the steps.

Takes a ``Program`` (fused kernels, vendor calls, a buffer plan), gives a callable.  Its text can be read and run again.

* ``compile_program(program, config)``: everything: kernels generated, compiled or fetched from the cache, host bound;
  ``start_program`` is its first half, after which kernels are compiled in other threads and processes.
* ``emit_llvm(kernel)``: the LLVM IR module of one kernel; ``emit_host(program)``: the host function's Python text.

The running example at this stage (one fused row kernel between the matrix product and the final sum)::

    def call(args):  # forward
        x, w = args
        with below_autograd():
            mm = torch.mm(x, w)
            del x, w
            softmax = empty_strided((64, 256), (256, 1), dtype=torch.float32)
            k_softmax(mm, softmax)  # prims.maximum, prims.amax, prims.sub, prims.exp, prims.sum, prims.div
            ...

Invariants: distinct kernels are compiled once (by canonical form); a kernel's tensors and sizes are passed by position;
sizes and strides are compiled in, so that only pointers and symbolic sizes travel.
"""

from .host import HostWriter
from .llvm_module import emit_llvm
from .program import CompiledProgram, compile_program, emit_host, start_program

__all__ = ["CompiledProgram", "HostWriter", "compile_program", "emit_host", "emit_llvm", "start_program"]
