"""Every operator of torch's own autocast lists: the dtypes that eager gives on the CPU, and the policy of CUDA."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists, AutocastTestLists
from torch.utils._pytree import tree_leaves, tree_map

import braze
from braze.errors import Unsupported
from braze.fake import FakeMode, fake_from
from braze.ir import type_of

sys.path.insert(0, str(Path(__file__).parents[1] / "fake"))
import cuda_typed  # noqa: E402

MODULES = {"torch": torch, "nn": torch._C._nn, "linalg": torch._C._linalg, "methods": torch.Tensor}
# No kernel on this machine's CPU, in eager neither.
ELSEWHERE = {"cudnn_convolution", "cudnn_convolution_transpose"}


def rows(lists: Any, which: dict[str, torch.dtype | None]) -> Iterator[tuple[str, Any, str, Any, Any, Any]]:
    """(list, function, name, args, kwargs, dtype or None) of each entry of the lists named in ``which``."""
    for title, dtype in which.items():
        for name, args, *rest in getattr(lists, title):
            function = getattr(MODULES[title.split("_")[0]], name, None)
            if function is None or name in ELSEWHERE or isinstance(args, str):  # an equation that does not fit
                continue
            kwargs = next((r for r in rest if isinstance(r, dict)), {})
            out = next((r for r in rest if isinstance(r, torch.dtype)), dtype)
            yield title, function, name, args, kwargs, out


def dtypes(out: Any) -> list[torch.dtype]:
    return [x.dtype for x in tree_leaves(out) if isinstance(x, torch.Tensor)]


CPU = dict.fromkeys("torch_16 nn_16 torch_fp32 nn_fp32 torch_need_autocast_promote".split())
CPU |= dict.fromkeys("torch_expect_builtin_promote methods_expect_builtin_promote".split())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("title", CPU)
def test_cpu(title: str, dtype: torch.dtype) -> None:
    seen = 0
    for _, function, name, args, kwargs, _ in rows(AutocastCPUTestLists(torch.device("cpu")), {title: None}):

        def program(args: Any, kwargs: Any, function: Any = function) -> Any:
            return function(*args, **kwargs)

        fast = braze.compile(program)
        with torch.autocast("cpu", dtype):
            try:
                want = function(*args, **kwargs)
            except RuntimeError:
                continue  # no such kernel for this dtype
            got = fast(args, kwargs)
        assert dtypes(got) == dtypes(want), name
        for g, w in zip(tree_leaves(got), tree_leaves(want)):
            if isinstance(w, torch.Tensor):
                torch.testing.assert_close(g, w, rtol=2e-2, atol=2e-2, msg=lambda m, name=name: f"{name}: {m}")
        seen += 1
    assert seen or dtype is torch.float16


CUDA: dict[str, torch.dtype | None] = {
    "torch_fp16": torch.float16,
    "nn_fp16": torch.float16,
    "linalg_fp16": torch.float16,
    "methods_fp16": torch.float16,
    "torch_fp32": torch.float32,
    "nn_fp32": torch.float32,
    "methods_fp32": torch.float32,
    "torch_need_autocast_promote": torch.float32,
    "torch_expect_builtin_promote": None,
    "methods_expect_builtin_promote": None,
}


@pytest.mark.parametrize("title", CUDA)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_cuda_policy(title: str, dtype: torch.dtype) -> None:
    """Traced on tensors typed "cuda", so that no card is needed: each result has the dtype that the list says."""
    cuda_typed.enable()
    seen, skipped = 0, []
    for _, function, name, args, kwargs, want in rows(AutocastTestLists(torch.device("cpu")), {title: CUDA[title]}):

        def typed(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            narrow = dtype if x.dtype is torch.float16 else x.dtype
            return fake_from(type_of(x).with_(device=torch.device("cuda", 0), dtype=narrow))

        with FakeMode(), torch.autocast("cuda", dtype):
            try:
                out = function(*tree_map(typed, args), **kwargs)
            except Unsupported as e:
                skipped.append(f"{name}: {e}")
                continue
        if want is torch.float16:
            want = dtype
        for found in dtypes(out):
            assert want is None or found == want, f"{name} gives {found}, not {want}"
        seen += 1
    assert seen and len(skipped) <= 0.15 * (seen + len(skipped)), skipped


def test_what_autocast_refuses() -> None:
    cuda_typed.enable()
    x = fake_from(type_of(torch.rand(4)).with_(device=torch.device("cuda", 0)))
    with FakeMode(), torch.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        torch._C._nn.binary_cross_entropy(x, x)
