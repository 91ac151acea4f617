"""More kernels of ``cpu_kernels.py``: backward passes of pooling, resampling and losses, quantisation, accumulating
stores, optimizers over lists of parameters, data movement between odd shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten
Case = tuple[Callable[..., Any], tuple[Any, ...]]
BF16 = torch.bfloat16


def r(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes).to(dtype)


def ids(high: int, *sizes: int) -> torch.Tensor:
    return torch.randint(0, high, sizes)


# -- indices that repeat

INDEXING: dict[str, Callable[[], Case]] = {
    "scatter add flat": lambda: (
        lambda x, i, y: x.scatter_add(0, i, y),
        (r(100_000), ids(100_000, 1 << 20), r(1 << 20)),
    ),
    "scatter add few": lambda: (lambda x, i, y: x.scatter_add(0, i, y), (r(64), ids(64, 1 << 18), r(1 << 18))),
    "scatter flat": lambda: (lambda x, i, y: x.scatter(0, i, y), (r(100_000), ids(100_000, 1 << 18), r(1 << 18))),
    "index put sum": lambda: (
        lambda x, i, j, y: x.index_put((i, j), y, accumulate=True),
        (r(512, 512), ids(512, 100_000), ids(512, 100_000), r(100_000)),
    ),
    "index put sum rows": lambda: (
        lambda x, i, y: x.index_put((i,), y, accumulate=True),
        (r(4096, 256), ids(4096, 2048), r(2048, 256)),
    ),
    "embedding backward narrow": lambda: (
        lambda g, i: aten.embedding_dense_backward(g, i, 10_000, -1, False),
        (r(16, 512, 32), ids(10_000, 16, 512)),
    ),
    "segment mean": lambda: (
        lambda x, i: (
            torch.zeros(1000, 64).index_add(0, i, x)
            / torch.zeros(1000).index_add(0, i, torch.ones(8192)).clamp(min=1)[:, None]
        ),
        (r(8192, 64), ids(1000, 8192)),
    ),
    "take along": lambda: (
        lambda x, i: torch.take_along_dim(x, i, 1),
        (r(256, 512, 64), ids(512, 256, 32, 1).expand(256, 32, 64)),
    ),
    "topk+softmax": lambda: (
        lambda x: [torch.softmax(v, -1) for v in x.topk(8, -1)[:1]][0],
        (r(512, 1024),),
    ),
    "flip+cumsum": lambda: (lambda x: x.flip(-1).cumsum(-1).flip(-1), (r(1024, 512),)),
    "cumsum bf16": lambda: (lambda x: x.cumsum(-1), (r(512, 1024, dtype=BF16),)),
    "logcumsumexp": lambda: (lambda x: x.logcumsumexp(-1), (r(256, 512),)),
}

# -- losses with their gradients


def bce_step(x: Any, y: Any) -> Any:
    loss = F.binary_cross_entropy_with_logits(x, y)
    return loss, (x.sigmoid() - y) / x.numel()


def smooth_l1_step(x: Any, y: Any) -> Any:
    loss = F.smooth_l1_loss(x, y)
    return loss, aten.smooth_l1_loss_backward(torch.ones(()), x, y, 1, 1.0)


def log_softmax_backward_case(*sizes: int) -> Case:
    y = torch.log_softmax(r(*sizes), -1)
    return lambda g, y: aten._log_softmax_backward_data(g, y, -1, torch.float32), (r(*sizes), y)


def label_smoothing(x: Any, y: Any) -> Any:
    return F.cross_entropy(x, y, label_smoothing=0.1)


LOSSES: dict[str, Callable[[], Case]] = {
    "bce step": lambda: (bce_step, (r(1024, 1024), torch.rand(1024, 1024))),
    "smooth l1 step": lambda: (smooth_l1_step, (r(1024, 1024), r(1024, 1024))),
    "kl div": lambda: (
        lambda x, y: F.kl_div(torch.log_softmax(x, -1), torch.softmax(y, -1), reduction="batchmean"),
        (r(512, 2048), r(512, 2048)),
    ),
    "log softmax backward": lambda: log_softmax_backward_case(128, 30522),
    "label smoothing": lambda: (label_smoothing, (r(512, 4096), ids(4096, 512))),
    "cosine similarity": lambda: (lambda x, y: F.cosine_similarity(x, y), (r(4096, 256), r(4096, 256))),
    "distillation": lambda: (
        lambda x, y: F.mse_loss(torch.softmax(x / 2, -1), torch.softmax(y / 2, -1)),
        (r(1024, 1000), r(1024, 1000)),
    ),
}

# -- reductions and rows


REDUCTIONS: dict[str, Callable[[], Case]] = {
    "sum transposed 3d": lambda: (lambda x: x.transpose(1, 2).sum(-1), (r(32, 128, 512),)),
    "amax columns": lambda: (lambda x: x.amax(0), (r(2048, 1024),)),
    "max middle with index": lambda: (lambda x: x.max(1), (r(64, 128, 256),)),
    "std columns": lambda: (lambda x: x.std(0), (r(4096, 256),)),
    "norm rows": lambda: (lambda x: x.norm(dim=-1), (r(8192, 128),)),
    "mean bf16 rows": lambda: (lambda x: x.mean(-1), (r(4096, 768, dtype=BF16),)),
    "all": lambda: (lambda x: (x > -9).all(), (r(1 << 21),)),
    "sum ints": lambda: (lambda x: x.sum(-1), (ids(1000, 2048, 512),)),
    "sum f64": lambda: (lambda x: x.sum(-1), (r(2048, 512, dtype=torch.float64),)),
    "min max": lambda: (lambda x: torch.aminmax(x, dim=-1), (r(4096, 512),)),
}

# -- data movement


def slice_assign(x: Any, y: Any) -> Any:
    out = x.clone()
    out[:, 16:48] = y
    return out


def patches(x: Any) -> Any:
    return x.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).reshape(x.shape[0], -1, x.shape[1] * 64)


MOVES: dict[str, Callable[[], Case]] = {
    "pixels to channels last": lambda: (
        lambda x: x.contiguous(memory_format=torch.channels_last),
        (r(16, 3, 224, 224),),
    ),
    "pixels from channels last": lambda: (
        lambda x: x.permute(0, 3, 1, 2).float().div(255.0).contiguous(),
        (ids(255, 16, 224, 224, 3).to(torch.uint8),),
    ),
    "interleaved rope": lambda: (
        lambda x, c, s: torch.stack(
            (x[..., ::2] * c - x[..., 1::2] * s, x[..., 1::2] * c + x[..., ::2] * s), -1
        ).flatten(-2),
        (r(4, 12, 512, 64), r(512, 32), r(512, 32)),
    ),
    "cat 8": lambda: (lambda *x: torch.cat(x, 1), tuple(r(16, 32, 28, 28) for _ in range(8))),
    "slice assign": lambda: (slice_assign, (r(4096, 128), r(4096, 32))),
    "patches": lambda: (patches, (r(16, 3, 224, 224),)),
    "window partition": lambda: (
        lambda x: x.view(8, 8, 7, 8, 7, 96).transpose(2, 3).reshape(-1, 49, 96),
        (r(8, 56, 56, 96),),
    ),
    "repeat last": lambda: (lambda x: x.repeat_interleave(2, -1), (r(512, 1024),)),
    "pad rows": lambda: (lambda x: F.pad(x, (0, 0, 0, 16)), (r(64, 112, 256),)),
    "transpose ints": lambda: (lambda x: x.t().contiguous(), (ids(99, 1024, 1024),)),
    "transpose+gelu": lambda: (lambda x: F.gelu(x.transpose(1, 2)), (r(16, 256, 384),)),
}

# -- pooling and resampling, both ways


def max_pool_backward_case(*sizes: int) -> Case:
    x = r(*sizes)
    y, i = aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
    g = torch.randn_like(y)
    fn = aten.max_pool2d_with_indices_backward
    return lambda g, x, i: fn(g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, i), (g, x, i)


LAYERS: dict[str, Callable[[], Case]] = {
    "max pool backward": lambda: max_pool_backward_case(8, 64, 56, 56),
    "avg pool backward": lambda: (
        lambda g, x: aten.avg_pool2d_backward(g, x, [2, 2], [2, 2], [0, 0], False, True, None),
        (r(16, 64, 28, 28), r(16, 64, 56, 56)),
    ),
    "avg pool padded": lambda: (lambda x: F.avg_pool2d(x, 3, 1, 1), (r(16, 64, 28, 28),)),
    "adaptive pool backward": lambda: (
        lambda g, x: aten._adaptive_avg_pool2d_backward(g, x),
        (r(16, 64, 7, 7), r(16, 64, 28, 28)),
    ),
    "max pool 1d": lambda: (lambda x: F.max_pool1d(x, 2), (r(32, 128, 1024),)),
    "upsample nearest backward": lambda: (
        lambda g: aten.upsample_nearest2d_backward(g, [56, 56], [8, 64, 28, 28]),
        (r(8, 64, 56, 56),),
    ),
    "upsample bilinear backward": lambda: (
        lambda g: aten.upsample_bilinear2d_backward(g, [56, 56], [8, 32, 28, 28], False),
        (r(8, 32, 56, 56),),
    ),
    "upsample bicubic": lambda: (
        lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        (r(4, 16, 32, 32),),
    ),
    "swiglu": lambda: (
        lambda x, w, v: F.silu(x @ w) * (x @ v),
        (r(256, 256), r(256, 512), r(256, 512)),
    ),
    "bmm+scale+mask": lambda: (
        lambda q, k, m: (q @ k.transpose(-1, -2)) * 0.125 + m,
        (r(64, 64, 64), r(64, 64, 64), r(64, 1, 64)),
    ),
    "attention scores": lambda: (
        lambda s, m: F.dropout(torch.softmax(s.masked_fill(m, float("-inf")), -1), 0.0),
        (r(8, 12, 256, 256), torch.rand(8, 1, 1, 256) > 0.9),
    ),
    "alibi softmax": lambda: (
        lambda s, a: torch.softmax(s + a[:, None, None, None] * torch.arange(256), -1),
        (r(12, 8, 256, 256), r(12)),
    ),
}

# -- quantisation


def quantize_tokens(x: Any) -> Any:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().clamp(-128, 127).to(torch.int8), scale


QUANTISED: dict[str, Callable[[], Case]] = {
    "quantize tokens": lambda: (quantize_tokens, (r(4096, 768),)),
    "quantize channels": lambda: (
        lambda x, s: (x / s).round().clamp(-128, 127).to(torch.int8),
        (r(2048, 1024), torch.rand(1024) + 0.1),
    ),
    "fake quantize": lambda: (
        lambda x, s: (x / s).round().clamp(-128, 127) * s,
        (r(2048, 1024), torch.rand(2048, 1) + 0.1),
    ),
    "dequantize bf16": lambda: (
        lambda x, s: (x.float() * s).to(BF16),
        (ids(127, 2048, 1024).to(torch.int8), torch.rand(2048, 1)),
    ),
    "unpack int4": lambda: (
        lambda x: torch.stack(((x & 15) - 8, (x >> 4) - 8), -1).flatten(-2).float(),
        (ids(255, 1024, 512).to(torch.uint8).to(torch.int32),),
    ),
    "int8 add+relu": lambda: (
        lambda x, y: ((x.to(torch.int32) + y) // 2).clamp(0, 127).to(torch.int8),
        (ids(100, 2048, 1024).to(torch.int8), ids(100, 2048, 1024).to(torch.int8)),
    ),
}

# -- optimizers over lists


def parameters(count: int) -> tuple[list[torch.Tensor], ...]:
    sizes = [(256, 256), (256,), (1024, 256), (1024,)]
    return tuple([r(*sizes[k % 4]).abs() for k in range(count)] for _ in range(4))


def sgd_list(p: Any, g: Any, m: Any) -> Any:
    m2 = torch._foreach_add(torch._foreach_mul(m, 0.9), g)
    return torch._foreach_add(p, m2, alpha=-0.01), m2


def adam_list(p: Any, g: Any, m: Any, v: Any) -> Any:
    m2 = torch._foreach_lerp(m, g, 0.1)
    v2 = torch._foreach_addcmul(torch._foreach_mul(v, 0.999), g, g, 0.001)
    return torch._foreach_addcdiv(p, m2, torch._foreach_add(torch._foreach_sqrt(v2), 1e-8), -1e-3), m2, v2


OPTIMIZERS: dict[str, Callable[[], Case]] = {
    "sgd list": lambda: (sgd_list, parameters(16)[:3]),
    "adam list": lambda: (adam_list, parameters(16)),
    "clip norms": lambda: (
        lambda g: torch._foreach_mul(g, (1.0 / (torch.stack(torch._foreach_norm(g)).norm() + 1e-6)).clamp(max=1.0)),
        parameters(16)[:1],
    ),
    "ema": lambda: (lambda a, b: torch._foreach_lerp(a, b, 0.001), parameters(16)[:2]),
}

MORE: dict[str, dict[str, Callable[[], Case]]] = {
    "losses": LOSSES,
    "reductions": REDUCTIONS,
    "moves": MOVES,
    "indexing": INDEXING,
    "layers": LAYERS,
    "quantised": QUANTISED,
    "optimizers": OPTIMIZERS,
}
