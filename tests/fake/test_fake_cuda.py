"""CUDA: traces of tensors typed "cuda" anywhere, and on a GPU the same calls and types as eager."""

from __future__ import annotations

from collections import Counter
from typing import Any

import cuda_typed
import pytest
import test_fake_models as test_models
import torch
import torch.nn.functional as F
from aten_record import Call, eager_calls, fake_calls, functional, outputs
from torch import nn

from braze import ir
from braze.fake import FakeMode, FakeTensor, fake_from

CUDA = torch.device("cuda", 0)
MODELS = [test_models.mlp, test_models.encoder, test_models.convnet, test_models.convnet_last]


def typed_cuda(x: torch.Tensor) -> FakeTensor:
    return fake_from(ir.type_of(x).with_(device=CUDA), isinstance(x, nn.Parameter))


def trace(build: Any, dtype: torch.dtype | None = None) -> list[Call]:
    cuda_typed.enable()
    model, inputs, loss = build()
    fn, tensors = functional(model, loss)
    calls: list[Call] = []
    with FakeMode(lambda op, args, kwargs, out: calls.append((str(op), outputs(out))), lift=typed_cuda):
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            fn(*[typed_cuda(x) for x in [*tensors, *inputs]])
    return calls


@pytest.mark.parametrize("build", MODELS)
def test_without_gpu(build: Any) -> None:
    calls = trace(build)
    assert all("cuda:0" in t for _, types in calls for t in types if t.startswith("torch."))
    assert any("backward" in name for name, _ in calls)


def test_dropout_is_the_cuda_operator() -> None:
    names = Counter(name for name, _ in trace(test_models.mlp))
    assert names["aten.native_dropout.default"] == 1 and "aten.bernoulli_.float" not in names


def test_autocast() -> None:
    calls = trace(test_models.mlp, torch.bfloat16)
    assert all(types[0].startswith("torch.bfloat16") for name, types in calls if name == "aten.addmm.default")
    assert all(types[0].startswith("torch.float32") for name, types in calls if name == "aten._softmax.default")


@pytest.mark.gpu
@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_as_eager(build: Any, dtype: torch.dtype | None) -> None:
    model, inputs, loss = build()
    model, inputs = model.cuda(), [x.cuda() for x in inputs]
    fn, tensors = functional(model, loss)

    def run(*args: Any) -> Any:
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            fn(*args)

    with torch.device("cuda"):
        want = eager_calls(run, [*tensors, *inputs])
        got = fake_calls(run, [*tensors, *inputs])
    for i, (a, b) in enumerate(zip(want, got)):
        assert strip(a) == strip(b), f"call {i}: eager {a}, traced {b}"
    assert len(want) == len(got)


def strip(call: Call) -> Call:
    """Without the cuDNN workspace that batch norm keeps, whose size only cuDNN knows."""
    name, types = call
    return (
        (name, types[:3]) if name in ("aten.cudnn_batch_norm.default", "aten._batch_norm_with_update.default") else call
    )


def _qkv(form: str, dtype: torch.dtype) -> list[torch.Tensor]:
    b, h, t, d = 2, 4, 40, 64
    if form == "packed":
        x = torch.randn(b, t, 3, h, d, device="cuda", dtype=dtype)
        return [x[:, :, i].transpose(1, 2).detach().requires_grad_() for i in range(3)]
    if form == "heads inside":
        return [torch.randn(b, t, h, d, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3)]
    return [torch.randn(b, h, t, d, device="cuda", dtype=dtype).requires_grad_() for _ in range(3)]


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["plain", "heads inside", "packed"])
@pytest.mark.parametrize("backend", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH", ""])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_as_eager(form: str, backend: str, dtype: torch.dtype) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    every = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]

    def run(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel([getattr(SDPBackend, backend)] if backend else every):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            torch.autograd.grad(out.sum(), (q, k, v))

    inputs = _qkv(form, dtype)
    try:
        want = eager_calls(run, inputs)
    except RuntimeError as e:
        pytest.skip(f"eager has no such kernel: {e}")
    got = fake_calls(run, inputs)
    assert [c[0] for c in want] == [c[0] for c in got]
    for a, b in zip(want, got):
        assert a == b
