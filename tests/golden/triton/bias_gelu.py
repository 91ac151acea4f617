import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def flat_add_mul_erf(in_ptr0, in_ptr1, out_ptr0, XBLOCK: tl.constexpr):
    """flat: x < 4194304"""
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)
    v0 = tl.load(in_ptr0 + xindex)
    v1 = v0.to(tl.float32)
    x2 = xindex % 1024
    v3 = tl.load(in_ptr1 + x2)
    v4 = v3.to(tl.float32)
    v5 = v1 + v4
    v6 = v5 * 0.5
    v7 = v5 * 0.7071067811865476
    v8 = libdevice.erf(v7)
    v9 = v8 + 1.0
    v10 = v6 * v9
    v11 = v10.to(tl.bfloat16)
    tl.store(out_ptr0 + xindex, v11)
