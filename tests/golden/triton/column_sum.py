import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def looped_sum(in_ptr0, out_ptr0, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):
    """looped: x < 32768, r < 128"""
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)
    v0 = tl.full([XBLOCK, RBLOCK], 0.0, tl.float32)
    for roffset in range(0, 128, RBLOCK):
        rindex = roffset + tl.arange(0, RBLOCK)
        x1 = xindex // 1024
        x2 = xindex % 1024
        v3 = tl.load(in_ptr0 + (1024*rindex[None, :] + 131072*x1[:, None] + x2[:, None]))
        v4 = v3.to(tl.float32)
        v0 = v0 + v4
    v5 = tl.sum(v0, 1)
    tl.store(out_ptr0 + xindex, v5)
