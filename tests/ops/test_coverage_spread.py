"""Operators through ``braze.compile``, forward and gradients, against eager: a spread by default, all when slow."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import coverage_run  # noqa: E402
import samples  # noqa: E402

# A few of each family, and those that were wrong once.
SPREAD = """
add sub.rsub_with_no_alpha addmm all amax arange argmax as_strided as_strided_copy as_strided.partial_views baddbmm cat
conj conj_physical cumsum diagonal_copy div.floor_rounding einsum eye fft.ifft fft.ihfft fill gather index_add
index_put index_fill kron linalg.lstsq linalg.matrix_rank linalg.solve log_softmax logsumexp masked.sum masked_fill
matmul max.reduction_with_dim mean mul nn.functional.batch_norm nn.functional.conv2d nn.functional.cross_entropy
nn.functional.dropout nn.functional.embedding nn.functional.gelu nn.functional.interpolate nn.functional.layer_norm
nn.functional.logsigmoid nn.functional.scaled_dot_product_attention nn.functional.unfold nonzero_static normal pow
repeat resize_ scatter_add select_scatter slice_scatter softmax sort split squeeze std sum t topk transpose unbind
unsafe_split unsqueeze var_mean view where
""".split()
INSIDE = ("compiled", "opaque", "drawn", "reads data")


def run(dtype: torch.dtype, variants: tuple[str, ...], limit: int) -> Counter[str]:
    """Outcomes of the spread. AssertionError shows the first wrong samples."""
    table = samples.operators()
    missing = [n for n in SPREAD if n not in table]
    assert len(missing) < 4, missing
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for name in SPREAD:
        for variant in variants:
            if name in table and samples.applies(table[name], dtype, variant):
                found = samples.check(name, table[name], dtype, variant, limit)
                outcomes += found.outcomes
                wrong += [f"{name} {variant}: {k} {v[0]}" for k, v in found.reasons.items() if k.startswith("wrong")]
    assert not wrong, "\n".join(wrong)
    return outcomes


@pytest.mark.parametrize("variant", samples.VARIANTS)
def test_float32(variant: str) -> None:
    outcomes = run(torch.float32, (variant,), 3)
    inside = sum(outcomes[k] for k in INSIDE)
    assert inside > 40 and outcomes["fell back"] <= 0.1 * inside, outcomes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    outcomes = run(dtype, ("function",), 2)
    assert sum(outcomes[k] for k in INSIDE) > 30, outcomes


def test_a_wrong_answer_is_seen() -> None:
    """The comparison tells values, layouts, types and aliasing apart."""
    x = torch.randn(3, 4)
    want = samples.Result([x.clone()], None, [], [x])

    def differs(y: torch.Tensor) -> str:
        got = samples.Result([y], None, [], [x])
        return samples.compare(got, want, lambda: want, lambda t: (1e-6, 1e-6))

    assert differs(x.clone()) == ""
    assert "elements" in differs(x + 1e-3)
    assert "strides" in differs(x.t().contiguous().t())
    assert "dtype" in differs(x.double())
    assert "share memory" in differs(x.view(3, 4))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("dtype", coverage_run.DTYPES)
def test_every_operator(dtype: str, tmp_path: Path) -> None:
    arguments = ["--dtypes", dtype, "--samples", "4", "--folder", str(tmp_path), "--report", str(tmp_path / "page.md")]
    assert coverage_run.main([*arguments, "--quiet"]) == 0, (tmp_path / "page.md").read_text()
