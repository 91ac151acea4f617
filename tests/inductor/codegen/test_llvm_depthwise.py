"""The weight gradient of depthwise convolutions: values against float64, and which calls get the kernel."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from arm import neon
from llvm_case import restricted

import braze
from braze.api import log_of
from braze.inductor.codegen.llvm_depthwise import NAMES, _source
from braze.runtime.cpu import assembly, load_kernels

backward = torch.ops.aten.convolution_backward.default


def gradients(groups: int, stride: Any, padding: Any, dilation: Any, mask: list[bool]) -> Any:
    def fn(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        sizes = [w.shape[0]] if mask[2] else None
        got = backward(g, x, w, sizes, stride, padding, dilation, False, [0, 0], groups, mask)
        return [t for t in got if t is not None]

    return fn


def compare(x_sizes: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, mask: list[bool]) -> str:
    """The host program, after its results were found right."""
    c = x_sizes[1]
    x = torch.randn(x_sizes).to(memory_format=torch.channels_last)
    w = torch.randn(c, 1, *kernel)
    g = torch.randn_like(torch.convolution(x, w, None, stride, padding, dilation, False, [0, 0], c))
    fn = gradients(c, stride, padding, dilation, mask)
    fast = braze.compile(fn, fullgraph=True)
    for a, b in zip(fast(g, x, w), fn(g.double(), x.double(), w.double()), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))
    return str(log_of(fast).graphs[0].compiled["forward"].source)


CASES = [
    ((2, 64, 5, 5), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((3, 37, 9, 8), (5, 3), (2, 1), (2, 1), (1, 2)),  # a part of a block of channels
    ((2, 130, 4, 4), (5, 5), (1, 1), (2, 2), (1, 1)),  # whole blocks and a part
    ((1, 5, 3, 3), (7, 7), (1, 1), (3, 3), (1, 1)),  # the window is larger than the image
    ((2, 16, 6, 7), (2, 4), (3, 2), (0, 3), (1, 1)),
    ((2, 20, 1, 1), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((2, 24, 12, 12), (1, 1), (2, 2), (0, 0), (1, 1)),
    ((2, 17, 11, 4), (3, 3), (1, 1), (4, 4), (4, 4)),  # columns that only read padding
]


@pytest.mark.parametrize("case", CASES)
def test_values(case: Any) -> None:
    assert "k_depthwise_gradient(" in compare(*case, [False, True, False])


def test_images_beyond_the_cache_are_walked_once() -> None:
    text = compare((2, 48, 60, 60), (5, 5), (1, 1), (2, 2), (1, 1), [False, True, False])
    assert "k_depthwise_gradient(" in text and ", 5)" in text  # all rows of the window in a unit
    assert "k_depthwise_gradient(" not in compare((2, 48, 60, 60), (3, 3), (1, 1), (1, 1), (1, 1), [False, True, False])


@pytest.mark.parametrize("mask", [[True, True, False], [True, True, True], [False, True, True]])
def test_other_gradients_are_the_vendors(mask: list[bool]) -> None:
    text = compare((2, 40, 6, 6), (3, 3), (1, 1), (1, 1), (1, 1), mask)
    assert text.count("k_depthwise_gradient(") == 1 and text.count("convolution_backward.default(") == 1
    assert f"[{mask[0]}, False, {mask[2]}]" in text


def test_calls_that_are_not_depthwise_stay() -> None:
    x, w = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last), torch.randn(16, 1, 3, 3)  # two a channel
    g = torch.randn(2, 16, 6, 6).to(memory_format=torch.channels_last)
    fn = gradients(8, [1, 1], [1, 1], [1, 1], [False, True, False])
    fast = braze.compile(fn)
    torch.testing.assert_close(fast(g, x, w), fn(g, x, w), rtol=1e-4, atol=1e-4)
    assert "k_depthwise_gradient(" not in log_of(fast).graphs[0].compiled["forward"].source


def test_long_sums_are_as_exact_as_the_vendors() -> None:
    x = (torch.randn(4, 16, 96, 96) + 3).to(memory_format=torch.channels_last)
    g = (torch.randn(4, 16, 96, 96) + 3).to(memory_format=torch.channels_last)
    w, fn = torch.randn(16, 1, 5, 5), gradients(16, [1, 1], [2, 2], [1, 1], [False, True, False])
    (want,) = fn(g.double(), x.double(), w.double())
    ours, theirs = (float((f(g, x, w)[0] - want).abs().max()) for f in (braze.compile(fn), fn))
    assert ours <= max(theirs, 2e-6 * float(want.abs().max()))


@pytest.mark.parametrize("name", ["avx2", "plain"])
def test_shorter_vectors(name: str) -> None:
    target = restricted(name)
    (kernel,) = load_kernels([_source(target.vector_bits // 8, False, target)], target=target)
    x = torch.randn(2, 70, 6, 5).to(memory_format=torch.channels_last)
    g = torch.randn(2, 70, 6, 5).to(memory_format=torch.channels_last)
    out = torch.empty(70, 1, 3, 3)
    sizes = {"n": 2, "h": 6, "w": 5, "c": 70, "oh": 6, "ow": 5, "kh": 3, "kw": 3}
    kernel(g, x, out, *(sizes.get(name, 1) for name in NAMES))
    w = out.double()
    (want,) = gradients(70, [1, 1], [1, 1], [1, 1], [False, True, False])(g.double(), x.double(), w)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-4)


def test_vector_code_for_arm() -> None:
    text = assembly(_source(16, False, neon()).text, neon())
    assert re.search(r"fmla\s+v\d+\.4s", text)
