"""torch's modules and optimizers through ``braze.compile`` against eager: a spread by default, all when slow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import databases  # noqa: E402

MODULES = """
nn.BatchNorm2d nn.Bilinear nn.Conv2d nn.ConvTranspose1d nn.CosineSimilarity nn.CrossEntropyLoss nn.Embedding
nn.FractionalMaxPool2d nn.GaussianNLLLoss nn.GELU nn.GRU nn.GroupNorm nn.InstanceNorm2d nn.LSTM nn.LayerNorm
nn.LazyConv2d nn.Linear nn.MultiheadAttention nn.PReLU nn.RNNCell nn.Softmax nn.TransformerEncoderLayer nn.Transformer
""".split()
# Those that look at values, or at sparse tensors.
BREAK = {"optim.LBFGS", "optim.SparseAdam"}


@pytest.mark.parametrize("variant", databases.MODES)
def test_modules(variant: str) -> None:
    known = databases.modules()
    for name in filter(known.__contains__, MODULES):
        found = databases.check(name, torch.float32, variant, 1)
        assert not found.outcomes["wrong"], (name, found.reasons)
        assert not found.outcomes["fell back"], (name, found.reasons)


@pytest.mark.parametrize("name", databases.optimizers())
def test_optimizers(name: str) -> None:
    dtype = databases.dtypes_of(name)[0]
    found = databases.check(name, dtype, "train step", 1)
    assert not found.outcomes["wrong"], found.reasons
    assert name in BREAK or not found.outcomes["fell back"], found.reasons


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("variant", [*databases.MODES, *databases.STEPS])
def test_every_entry(variant: str) -> None:
    wrong = []
    for name in (*databases.modules(), *databases.optimizers()):
        for dtype in databases.dtypes_of(name):
            if databases.applies(name, dtype, variant):
                found = databases.check(name, dtype, variant, 2)
                wrong += [(name, dtype, k, v[0]) for k, v in found.reasons.items() if k.startswith("wrong")]
    assert not wrong, wrong
