import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def bz_erf_short(x):
    """erf(x) to 1e-7: 1 - 2**(t * p(t)) for t = |x| up to 4, from where it is 1."""
    t = tl.minimum(tl.abs(x), 4.0, propagate_nan=tl.PropagateNan.ALL)
    p = t * -4.535830157692544e-05 + 0.00044550522579811513
    p = p * t + -0.0014894339255988598
    p = p * t + -0.0007746419869363308
    p = p * t + 0.028253691270947456
    p = p * t + -0.14848162233829498
    p = p * t + -0.9184163808822632
    p = p * t + -1.6279085874557495
    return libdevice.copysign(1.0 - tl.exp2(p * t), x)


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
    v8 = bz_erf_short(v7)
    v9 = v8 + 1.0
    v10 = v6 * v9
    v11 = v10.to(tl.bfloat16)
    tl.store(out_ptr0 + xindex, v11)
