"""User models by name: files, import paths, what they may return, inputs made from the first layer, clear errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from braze.bench.target import load, tensor, to_case

FILE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)
    def forward(self, x, scale=1.0):
        return {"y": self.fc(x) * scale, "n": 3}

def bare(): return Net()
def pair(): return Net(), (torch.randn(5, 6),)
def named(): return Net(), {"x": torch.randn(5, 6), "scale": 2.0}
def triple(batch=7): return Net(), torch.randn(batch, 6), lambda out: out["y"].sum()
def wrong(): return 3
net = Net()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "user_models.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize(
    "name, batch", [("bare", 4), ("pair", 5), ("named", 5), ("triple", 7), ("net", 4)], ids=lambda v: str(v)
)
def test_what_a_function_may_return(file: Path, name: str, batch: int) -> None:
    case = load(f"{file}:{name}")
    loss = case.loss(case.model(*case.inputs, **case.kwargs), case.target)
    loss.backward()
    assert case.batch == batch and loss.isfinite()


def test_batch_is_passed_or_made(file: Path) -> None:
    for name in ("triple", "pair", "named", "bare"):
        case = load(f"{file}:{name}", batch=11)
        assert case.batch == 11
        assert next(t for t in (*case.inputs, *case.kwargs.values()) if torch.is_tensor(t)).shape == (11, 6)


def test_import_path_with_guessed_inputs() -> None:
    pytest.importorskip("torchvision")
    case = load("torchvision.models.resnet18", batch=1)
    assert case.inputs[0].shape == (1, 3, 224, 224)


def test_timm_says_its_own_size() -> None:
    pytest.importorskip("timm")
    case = load("timm.models.resnet18", batch=2)
    assert case.inputs[0].shape == (2, 3, 224, 224)


def test_shapes_given(file: Path) -> None:
    assert load(f"{file}:bare", shapes=("3x2x6",)).inputs[0].shape == (3, 2, 6)
    assert tensor("2x3:int64").dtype == torch.int64
    for bad in ("2y3", "", "2x3:nope"):
        with pytest.raises(ValueError, match="8x3x224x224"):
            tensor(bad)


def test_errors_say_what_is_wrong(file: Path) -> None:
    for spec, said in [
        ("no/such.py:f", "there is no file"),
        (str(file), "say what to take"),
        (f"{file}:nope", "there is no 'nope' there; there are"),
        ("no_such_package.model", "is no model: give path.py:make_model"),
        (f"{file}:wrong", "not a module"),
        ("torch.nothing", "there is no 'nothing'"),
    ]:
        with pytest.raises(ValueError, match=said):
            load(spec)
    with pytest.raises(ValueError, match="does not say what its inputs are"):
        to_case(nn.ReLU())
