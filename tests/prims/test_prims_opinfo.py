"""Decompositions against eager on torch's operator samples: a few samples by default, many with --runslow."""

from __future__ import annotations

import opinfo
import pytest
import torch

# Not functions of their inputs: drawn with torch's generator in a way that no tag shows, or unique up to a sign only.
RANDOM = (
    "bernoulli",
    "fractional_max_pool",
    "svd_lowrank",
    "pca_lowrank",
    "multinomial",
    "normal",
    "rand",
    "to_sparse",
)
DTYPES = {
    "f32": (torch.float32, 3, True),
    "bf16": (torch.bfloat16, 3, False),
    "i64": (torch.int64, 4, False),
    "b8": (torch.bool, 3, False),
}
SLOW = {
    **{k: (d, 40, b) for k, (d, _, b) in DTYPES.items()},
    "f32 forward": (torch.float32, 100, False),
    "f64": (torch.float64, 20, True),
    "f16": (torch.float16, 20, False),
    "bf16 backward": (torch.bfloat16, 10, True),
    "i32": (torch.int32, 20, False),
    "u8": (torch.uint8, 20, False),
    "c64": (torch.complex64, 20, False),
}


@pytest.fixture(autouse=True)
def cheap_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeding formats a traceback for a CUDA that was never started: most of the time, under pytest's deep stack."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: None)


def supported(name: str, dtype: torch.dtype) -> bool:
    op = opinfo.TABLE[name]
    return dtype in op.supported_dtypes("cpu") and not any(r in name for r in RANDOM)


def run(dtype: torch.dtype, limit: int, backward: bool) -> None:
    """All operators in one test: an item apiece would spend most of its time in pytest."""
    failures, checked = [], 0
    for name, op in opinfo.TABLE.items():
        if not supported(name, dtype):
            continue
        try:
            checked += opinfo.check(name, dtype, limit, backward and op.supports_autograd)["ok"]
        except NotImplementedError:  # eager itself cannot
            continue
        except AssertionError as e:
            failures.append(str(e))
    assert not failures, "\n".join(failures)
    assert checked > 300


@pytest.mark.parametrize("kind", DTYPES)
def test_operators(kind: str) -> None:
    run(*DTYPES[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", SLOW)
def test_more_samples(kind: str) -> None:
    run(*SLOW[kind])
