import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def tiled(in_ptr0, out_ptr0, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    """tiled: y < 1024, x < 4096, z0 < 4"""
    pid = tl.program_id(0)
    pid_0 = pid // tl.cdiv(4096, XBLOCK)
    xoffset = (pid % tl.cdiv(4096, XBLOCK)) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)
    pid_1 = pid_0 // tl.cdiv(1024, YBLOCK)
    yoffset = (pid_0 % tl.cdiv(1024, YBLOCK)) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)
    z0index = pid_1
    v0 = tl.load(in_ptr0 + (4194304*z0index + yindex[:, None] + 1024*xindex[None, :]))
    tl.store(out_ptr0 + (4194304*z0index + 4096*yindex[:, None] + xindex[None, :]), v0)
