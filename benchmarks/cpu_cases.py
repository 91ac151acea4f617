"""The kernels of ``cpu_kernels.py``: name -> case, by kind. A case is made when it is measured: few tensors live.

Shapes are those of small training runs: rows of a transformer (4096 x 768), attention scores, images of a ResNet's
first stages.  "column", "outer", "mixed" say which axes of a row-major tensor a reduction folds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from cpu_more_cases import MORE

aten = torch.ops.aten
Case = tuple[Callable[..., Any], tuple[Any, ...]]
BF16 = torch.bfloat16


def r(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes).to(dtype)


def ids(high: int, *sizes: int) -> torch.Tensor:
    return torch.randint(0, high, sizes)


# -- pointwise


def adamw(p: Any, g: Any, m: Any, v: Any) -> Any:
    m2 = m * 0.9 + g * 0.1
    v2 = v * 0.999 + g * g * 0.001
    return p * 0.9999 - 1e-3 * m2 / (v2.sqrt() + 1e-8), m2, v2


def rope(q: Any, cos: Any, sin: Any) -> Any:
    half = q.shape[-1] // 2
    turned = torch.cat((-q[..., half:], q[..., :half]), -1)
    return q * cos + turned * sin


POINTWISE: dict[str, Callable[[], Case]] = {
    "gelu": lambda: (lambda x: F.gelu(x), (r(2048, 3072),)),
    "gelu tanh": lambda: (lambda x: F.gelu(x, approximate="tanh"), (r(2048, 3072),)),
    "bias+gelu": lambda: (lambda x, b: F.gelu(x + b), (r(2048, 3072), r(3072))),
    "gelu backward": lambda: (lambda g, x: aten.gelu_backward(g, x), (r(2048, 3072), r(2048, 3072))),
    "silu*up": lambda: (lambda x, y: F.silu(x) * y, (r(2048, 3072), r(2048, 3072))),
    "relu": lambda: (lambda x: F.relu(x), (r(16, 64, 56, 56),)),
    "add+relu": lambda: (lambda x, y: F.relu(x + y), (r(16, 64, 56, 56), r(16, 64, 56, 56))),
    "sigmoid+tanh": lambda: (lambda x, y: x.sigmoid() * y.tanh(), (r(2048, 1024), r(2048, 1024))),
    "mish": lambda: (lambda x: F.mish(x), (r(2048, 1024),)),
    "hardswish": lambda: (lambda x: F.hardswish(x), (r(16, 64, 56, 56),)),
    "polynomial": lambda: (lambda x: ((x * 0.1 + 0.5) * x + 1.5) * x - 2.0, (r(1 << 22),)),
    "sin+cos": lambda: (lambda x: x.sin() + x.cos(), (r(1 << 20),)),
    "pow": lambda: (lambda x: x.abs() ** 1.7, (r(1 << 20),)),
    "where": lambda: (lambda x, y: torch.where(x > y, x * 2, y), (r(1 << 22), r(1 << 22))),
    "dropout": lambda: (lambda x: F.dropout(x, 0.1, True), (r(2048, 3072),)),
    "adamw": lambda: (adamw, tuple(r(1 << 22).abs() for _ in range(4))),
    "rope": lambda: (rope, (r(4, 12, 512, 64), r(512, 64), r(512, 64))),
    "outer product": lambda: (lambda x, y: x[:, None] * y[None, :], (r(2048), r(2048))),
    "small add": lambda: (lambda x, y: x + y, (r(64), r(64))),
    "small chain": lambda: (lambda x, y: ((x + y) * x).relu(), (r(32, 32), r(32, 32))),
    "int remainder": lambda: (lambda x: x % 7 + x // 3, (ids(1 << 20, 1 << 20),)),
    "clamp+round": lambda: (lambda x: (x * 16).round().clamp(-128, 127).to(torch.int8), (r(1 << 22),)),
    "dequantize": lambda: (lambda x, s: x.float() * s, (ids(127, 1024, 1024).to(torch.int8), r(1024, 1))),
    "gelu bf16": lambda: (lambda x: F.gelu(x), (r(2048, 3072, dtype=BF16),)),
    "add+relu bf16": lambda: (
        lambda x, y: F.relu(x + y),
        (r(16, 64, 56, 56, dtype=BF16), r(16, 64, 56, 56, dtype=BF16)),
    ),
    "cast to bf16": lambda: (lambda x: x.to(BF16), (r(1 << 22),)),
}

# -- normalisations

ROWS, COLUMNS = 4096, 768


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    return aten.native_layer_norm(x, (x.shape[-1],), w, b, 1e-5)


def layer_norm_backward(g: Any, x: Any, m: Any, rstd: Any, w: Any, b: Any) -> Any:
    return aten.native_layer_norm_backward(g, x, (x.shape[-1],), m, rstd, w, b, [True, True, True])


def rms_norm(x: Any, w: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def layer_norm_backward_case(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Case:
    x, w, b = r(rows, columns, dtype=dtype), r(columns, dtype=dtype), r(columns, dtype=dtype)
    _, mean, rstd = layer_norm(x, w, b)
    return layer_norm_backward, (r(rows, columns, dtype=dtype), x, mean, rstd, w, b)


def batch_norm_train(x: Any, w: Any, b: Any, m: Any, v: Any) -> Any:
    return aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)


def batch_norm_backward(g: Any, x: Any, w: Any, m: Any, rstd: Any) -> Any:
    return aten.native_batch_norm_backward(g, x, w, None, None, m, rstd, True, 1e-5, [True, True, True])


def channels(c: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.rand(c) + 0.5 for _ in range(4))


def batch_norm_backward_case(*sizes: int, last: bool = False) -> Case:
    x, g = r(*sizes), r(*sizes)
    if last:
        x, g = (t.contiguous(memory_format=torch.channels_last) for t in (x, g))
    w, _, m, rstd = channels(sizes[1])
    return batch_norm_backward, (g, x, w, m, rstd)


def group_norm_backward(g: Any, x: Any, w: Any, b: Any) -> Any:
    n, c = x.shape[:2]
    _, mean, rstd = aten.native_group_norm(x, w, b, n, c, x[0, 0].numel(), 8, 1e-5)
    return aten.native_group_norm_backward(g, x, mean, rstd, w, n, c, x[0, 0].numel(), 8, [True, True, True])


NORMS: dict[str, Callable[[], Case]] = {
    "layer norm": lambda: (layer_norm, (r(ROWS, COLUMNS), r(COLUMNS), r(COLUMNS))),
    "residual+layer norm": lambda: (
        lambda x, y, w, b: layer_norm(x + y, w, b),
        (r(ROWS, COLUMNS), r(ROWS, COLUMNS), r(COLUMNS), r(COLUMNS)),
    ),
    "layer norm long": lambda: (layer_norm, (r(64, 65536), r(65536), r(65536))),
    "layer norm bf16": lambda: (layer_norm, tuple(r(*s, dtype=BF16) for s in ((ROWS, COLUMNS), (768,), (768,)))),
    "layer norm backward": lambda: layer_norm_backward_case(ROWS, COLUMNS),
    "layer norm backward small": lambda: layer_norm_backward_case(128, COLUMNS),
    "layer norm backward bf16": lambda: layer_norm_backward_case(ROWS, COLUMNS, BF16),
    "rms norm": lambda: (rms_norm, (r(ROWS, COLUMNS), r(COLUMNS))),
    "batch norm stats": lambda: (lambda x: torch.var_mean(x, (0, 2, 3), correction=0), (r(16, 64, 56, 56),)),
    "batch norm train": lambda: (batch_norm_train, (r(16, 64, 56, 56), *channels(64))),
    "batch norm train small": lambda: (batch_norm_train, (r(4, 512, 4, 4), *channels(512))),
    "batch norm train last": lambda: (
        batch_norm_train,
        (r(16, 64, 56, 56).contiguous(memory_format=torch.channels_last), *channels(64)),
    ),
    "batch norm+relu": lambda: (
        lambda x, w, b, m, v: F.relu(F.batch_norm(x, m, v, w, b, training=False)),
        (r(16, 64, 56, 56), *channels(64)),
    ),
    "batch norm backward": lambda: batch_norm_backward_case(16, 64, 56, 56),
    "batch norm backward small": lambda: batch_norm_backward_case(4, 512, 4, 4),
    "batch norm backward last": lambda: batch_norm_backward_case(16, 64, 56, 56, last=True),
    "group norm": lambda: (lambda x, w, b: F.group_norm(x, 8, w, b), (r(16, 64, 32, 32), r(64), r(64))),
    "group norm backward": lambda: (group_norm_backward, (r(16, 64, 32, 32), r(16, 64, 32, 32), r(64), r(64))),
    "normalize": lambda: (lambda x: F.normalize(x, dim=-1), (r(ROWS, COLUMNS),)),
}

# -- softmax and losses


def cross_entropy_step(x: Any, y: Any) -> Any:
    """Loss and its gradient."""
    p = torch.log_softmax(x, -1)
    loss = F.nll_loss(p, y)
    return loss, (p.exp() - F.one_hot(y, x.shape[-1])) / x.shape[0]


def softmax_backward_case(*sizes: int) -> Case:
    y = torch.softmax(r(*sizes), -1)
    return lambda g, y: aten._softmax_backward_data(g, y, -1, torch.float32), (r(*sizes), y)


LOSSES: dict[str, Callable[[], Case]] = {
    "softmax": lambda: (lambda x: torch.softmax(x, -1), (r(16, 12, 128, 128),)),
    "softmax long": lambda: (lambda x: torch.softmax(x, -1), (r(128, 30522),)),
    "softmax columns": lambda: (lambda x: torch.softmax(x, 1), (r(64, 128, 768),)),
    "softmax bf16": lambda: (lambda x: torch.softmax(x, -1), (r(16, 12, 128, 128, dtype=BF16),)),
    "scale+mask+softmax": lambda: (
        lambda x, m: torch.softmax(x * 0.125 + m, -1),
        (r(16, 12, 128, 128), r(16, 1, 1, 128)),
    ),
    "softmax backward": lambda: softmax_backward_case(16, 12, 128, 128),
    "log softmax": lambda: (lambda x: torch.log_softmax(x, -1), (r(128, 30522),)),
    "cross entropy": lambda: (lambda x, y: F.cross_entropy(x, y), (r(512, 8192), ids(8192, 512))),
    "cross entropy step": lambda: (cross_entropy_step, (r(512, 1000), ids(1000, 512))),
    "mse": lambda: (lambda x, y: F.mse_loss(x, y), (r(2048, 1024), r(2048, 1024))),
    "bce with logits": lambda: (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y),
        (r(1024, 1024), torch.rand(1024, 1024)),
    ),
    "logsumexp": lambda: (lambda x: x.logsumexp(-1), (r(2048, 1024),)),
}

# -- reductions by shape and stride

REDUCTIONS: dict[str, Callable[[], Case]] = {
    "sum full": lambda: (lambda x: x.sum(), (r(2048, 3072),)),
    "sum rows": lambda: (lambda x: x.sum(-1), (r(4096, 768),)),
    "sum short rows": lambda: (lambda x: x.sum(-1), (r(1 << 17, 32),)),
    "sum tiny rows": lambda: (lambda x: x.sum(-1), (r(1 << 19, 5),)),
    "sum long rows": lambda: (lambda x: x.sum(-1), (r(4, 1 << 20),)),
    "sum columns": lambda: (lambda x: x.sum(0), (r(4096, 768),)),
    "sum many columns": lambda: (lambda x: x.sum(0), (r(128, 30522),)),
    "sum few columns": lambda: (lambda x: x.sum(0), (r(1 << 18, 16),)),
    "sum 3 columns": lambda: (lambda x: x.sum(0), (r(1 << 20, 3),)),
    "sum middle": lambda: (lambda x: x.sum(1), (r(64, 128, 768),)),
    "sum mixed": lambda: (lambda x: x.sum((0, 2)), (r(64, 128, 768),)),
    "sum mixed short": lambda: (lambda x: x.sum((0, 2)), (r(512, 256, 49),)),
    "sum transposed": lambda: (lambda x: x.t().sum(-1), (r(2048, 1024),)),
    "sum bf16 columns": lambda: (lambda x: x.sum(0), (r(4096, 768, dtype=BF16),)),
    "mean pool": lambda: (lambda x: x.mean((2, 3)), (r(32, 512, 7, 7),)),
    "sum+mul columns": lambda: (lambda x, y: (x * y).sum(0), (r(4096, 768), r(4096, 768))),
    "max rows": lambda: (lambda x: x.amax(-1), (r(4096, 768),)),
    "max with index": lambda: (lambda x: x.max(-1), (r(4096, 768),)),
    "argmax": lambda: (lambda x: x.argmax(-1), (r(512, 8192),)),
    "argmax columns": lambda: (lambda x: x.argmax(0), (r(512, 2048),)),
    "var rows": lambda: (lambda x: x.var(-1), (r(4096, 768),)),
    "norm": lambda: (lambda x: x.norm(), (r(1 << 22),)),
    "any": lambda: (lambda x: (x > 5).any(-1), (r(4096, 768),)),
    "count": lambda: (lambda x: (x > 0).sum(), (r(1 << 21),)),
    "prod": lambda: (lambda x: x.prod(-1), (torch.rand(4096, 768) + 0.5,)),
}

# -- data movement


def split_heads(x: Any) -> Any:
    q, k, v = x.view(8, 128, 3, 12, 64).permute(2, 0, 3, 1, 4).unbind(0)
    return q.contiguous(), k.contiguous(), v.contiguous()


MOVES: dict[str, Callable[[], Case]] = {
    "transpose": lambda: (lambda x: x.t().contiguous(), (r(2048, 3072),)),
    "transpose bf16": lambda: (lambda x: x.t().contiguous(), (r(2048, 3072, dtype=BF16),)),
    "transpose+add": lambda: (lambda x, y: x.t() + y, (r(2048, 2048), r(2048, 2048))),
    "split heads": lambda: (lambda x: x.view(32, 128, 12, 64).transpose(1, 2).contiguous(), (r(4096, 768),)),
    "merge heads": lambda: (lambda x: x.transpose(1, 2).reshape(32, 128, 768), (r(32, 12, 128, 64),)),
    "qkv split": lambda: (split_heads, (r(8 * 128, 3 * 768),)),
    "to channels last": lambda: (
        lambda x: x.contiguous(memory_format=torch.channels_last),
        (r(16, 64, 56, 56),),
    ),
    "to channels last deep": lambda: (
        lambda x: x.contiguous(memory_format=torch.channels_last),
        (r(32, 256, 14, 14),),
    ),
    "from channels last": lambda: (
        lambda x: x.contiguous(),
        (r(16, 64, 56, 56).contiguous(memory_format=torch.channels_last),),
    ),
    "permute 4d": lambda: (lambda x: x.permute(3, 1, 0, 2).contiguous(), (r(32, 48, 40, 36),)),
    "pixel shuffle": lambda: (lambda x: F.pixel_shuffle(x, 2), (r(8, 64, 56, 56),)),
    "cat rows": lambda: (lambda x, y: torch.cat((x, y), 0), (r(2048, 768), r(1024, 768))),
    "cat columns": lambda: (lambda x, y, z: torch.cat((x, y, z), -1), tuple(r(2048, n) for n in (256, 512, 256))),
    "cat+relu": lambda: (lambda x, y: torch.cat((x, y), 1).relu(), (r(16, 64, 28, 28), r(16, 32, 28, 28))),
    "cat of relus": lambda: (
        lambda x, y: torch.cat((x.relu(), y.relu()), 1),
        (r(16, 64, 28, 28), r(16, 32, 28, 28)),
    ),
    "stack": lambda: (lambda x, y, z: torch.stack((x, y, z), -1), tuple(r(512, 1024) for _ in range(3))),
    "pad": lambda: (lambda x: F.pad(x, (1, 1, 1, 1)), (r(16, 64, 56, 56),)),
    "pad reflect": lambda: (lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"), (r(8, 32, 64, 64),)),
    "split+glu": lambda: (lambda x: F.glu(x, -1), (r(2048, 2048),)),
    "chunk+add": lambda: (lambda x: sum(x.chunk(4, 1)), (r(2048, 2048),)),
    "slice": lambda: (lambda x: x[:, 1:-1].contiguous(), (r(2048, 2048),)),
    "slice step": lambda: (lambda x: x[:, ::2].contiguous(), (r(2048, 2048),)),
    "flip": lambda: (lambda x: x.flip(-1), (r(2048, 1024),)),
    "roll": lambda: (lambda x: x.roll((3, 3), (1, 2)), (r(8, 56, 56, 96),)),
    "repeat interleave": lambda: (lambda x: x.repeat_interleave(4, 1), (r(64, 8, 4096),)),
    "expand+clone": lambda: (lambda x: x.expand(256, 64, 256).contiguous(), (r(64, 256),)),
    "tril mask": lambda: (lambda x: x.tril(), (r(64, 256, 256),)),
}

# -- indices


def index_add(x: Any, i: Any, y: Any) -> Any:
    return x.index_add(0, i, y)


INDEXING: dict[str, Callable[[], Case]] = {
    "embedding": lambda: (lambda i, w: F.embedding(i, w), (ids(30522, 16, 128), r(30522, 768))),
    "embedding sum": lambda: (
        lambda i, j, w, v: F.embedding(i, w) + F.embedding(j, v),
        (ids(30522, 16, 128), ids(512, 16, 128), r(30522, 768), r(512, 768)),
    ),
    "embedding backward": lambda: (
        lambda g, i: aten.embedding_dense_backward(g, i, 30522, -1, False),
        (r(16, 128, 768), ids(30522, 16, 128)),
    ),
    "embedding backward few": lambda: (
        lambda g, i: aten.embedding_dense_backward(g, i, 512, -1, False),
        (r(16, 128, 768), ids(512, 16, 128)),
    ),
    "index select": lambda: (lambda x, i: x.index_select(1, i), (r(256, 512, 64), ids(512, 128))),
    "gather": lambda: (lambda x, i: x.gather(-1, i), (r(1024, 1024), ids(1024, 1024, 256))),
    "gather rows": lambda: (lambda x, i: x[i], (r(8192, 256), ids(8192, 4096))),
    "scatter add": lambda: (
        lambda x, i, y: x.scatter_add(-1, i, y),
        (r(1024, 1024), ids(1024, 1024, 256), r(1024, 256)),
    ),
    "index add": lambda: (index_add, (r(2048, 256), ids(2048, 4096), r(4096, 256))),
    "index put": lambda: (
        lambda x, i, y: x.index_put((i,), y),
        (r(4096, 256), torch.randperm(4096)[:1024], r(1024, 256)),
    ),
    "masked fill": lambda: (lambda x, m: x.masked_fill(m, -1e9), (r(16, 12, 128, 128), r(16, 1, 128, 128) > 0)),
    "one hot": lambda: (lambda i: F.one_hot(i, 1000).float(), (ids(1000, 512),)),
    "topk": lambda: (lambda x: x.topk(8, -1), (r(512, 1024),)),
    "sort": lambda: (lambda x: x.sort(-1), (r(256, 1024),)),
    "cumsum": lambda: (lambda x: x.cumsum(-1), (r(1024, 1024),)),
    "cumsum columns": lambda: (lambda x: x.cumsum(0), (r(1024, 1024),)),
    "cumsum ints": lambda: (lambda x: x.cumsum(-1), (ids(9, 512, 512),)),
    "cumprod": lambda: (lambda x: x.cumprod(-1), (torch.rand(512, 512) + 0.5,)),
    "mask+cumsum": lambda: (lambda x: (x > 0).long().cumsum(-1) * 2, (r(512, 512),)),
}

# -- pooling, resampling, attention pieces, small products


def attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v)


def attention_by_hand(q: Any, k: Any, v: Any, m: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125 + m, -1) @ v


def heads(*sizes: int) -> tuple[torch.Tensor, ...]:
    return tuple(r(*sizes) for _ in range(3))


LAYERS: dict[str, Callable[[], Case]] = {
    "max pool": lambda: (lambda x: F.max_pool2d(x, 3, 2, 1), (r(8, 64, 112, 112),)),
    "avg pool": lambda: (lambda x: F.avg_pool2d(x, 2), (r(16, 64, 56, 56),)),
    "adaptive pool": lambda: (lambda x: F.adaptive_avg_pool2d(x, 7), (r(16, 64, 28, 28),)),
    "upsample nearest": lambda: (lambda x: F.interpolate(x, scale_factor=2), (r(8, 64, 28, 28),)),
    "upsample bilinear": lambda: (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        (r(8, 32, 28, 28),),
    ),
    "attention": lambda: (attention, heads(8, 12, 128, 64)),
    "attention by hand": lambda: (attention_by_hand, (*heads(8, 12, 128, 64), r(8, 1, 1, 128))),
    "linear+gelu": lambda: (lambda x, w, b: F.gelu(F.linear(x, w, b)), (r(512, 768), r(3072, 768), r(3072))),
    "linear+residual": lambda: (
        lambda x, w, b, y: F.linear(x, w, b) + y,
        (r(512, 768), r(768, 768), r(768), r(512, 768)),
    ),
    "linear small": lambda: (lambda x, w, b: F.relu(F.linear(x, w, b)), (r(16, 64), r(64, 64), r(64))),
    "matrix-vector": lambda: (lambda x, w: F.linear(x, w), (r(1, 2048), r(2048, 2048))),
    "conv+relu": lambda: (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        (r(8, 64, 28, 28), r(64, 64, 3, 3), r(64)),
    ),
    "depthwise conv": lambda: (
        lambda x, w: F.conv2d(x, w, padding=1, groups=64),
        (r(8, 64, 28, 28), r(64, 1, 3, 3)),
    ),
    "bmm small": lambda: (lambda x, y: torch.bmm(x, y), (r(256, 16, 16), r(256, 16, 16))),
}

KINDS: dict[str, dict[str, Callable[[], Case]]] = {
    "pointwise": POINTWISE,
    "norms": NORMS,
    "losses": LOSSES,
    "reductions": REDUCTIONS,
    "moves": MOVES,
    "indexing": INDEXING,
    "layers": LAYERS,
}
for _kind, _cases in MORE.items():
    KINDS.setdefault(_kind, {}).update(_cases)
CASES: dict[str, Callable[[], Case]] = {name: make for kind in KINDS.values() for name, make in kind.items()}
