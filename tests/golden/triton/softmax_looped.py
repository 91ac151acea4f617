import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def bz_max_nan(a, b):
    """The larger; NaN wins."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def looped_max_sum_sub_exp_div(in_ptr0, out_ptr0, RBLOCK: tl.constexpr):
    """looped: r < 50000, x < 64"""
    xindex = tl.program_id(0)
    v0 = tl.full([RBLOCK], float('-inf'), tl.float32)
    for roffset in range(0, 50000, RBLOCK):
        rindex = roffset + tl.arange(0, RBLOCK)
        rmask = rindex < 50000
        v1 = tl.load(in_ptr0 + (50000*xindex + rindex), mask=rmask, eviction_policy='evict_last')
        v2 = v1.to(tl.float32)
        v0 = bz_max_nan(v0, tl.where(rmask, v2, float('-inf')))
    v3 = tl.reduce(v0, 0, bz_max_nan)
    v4 = tl.full([RBLOCK], 0.0, tl.float32)
    for roffset in range(0, 50000, RBLOCK):
        rindex = roffset + tl.arange(0, RBLOCK)
        rmask = rindex < 50000
        v5 = tl.load(in_ptr0 + (50000*xindex + rindex), mask=rmask, eviction_policy='evict_last')
        v6 = v5.to(tl.float32)
        v7 = v6 - v3
        v8 = libdevice.fast_expf(v7)
        v4 = v4 + tl.where(rmask, v8, 0.0)
    v9 = tl.sum(v4, 0)
    for roffset in range(0, 50000, RBLOCK):
        rindex = roffset + tl.arange(0, RBLOCK)
        rmask = rindex < 50000
        v10 = tl.load(in_ptr0 + (50000*xindex + rindex), mask=rmask, eviction_policy='evict_first')
        v11 = v10.to(tl.float32)
        v12 = v11 - v3
        v13 = libdevice.fast_expf(v12)
        v14 = v13 / v9
        v15 = v14.to(tl.bfloat16)
        tl.store(out_ptr0 + (50000*xindex + rindex), v15, mask=rmask)
