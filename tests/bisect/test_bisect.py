"""bisect names the stage of a planted wrong row, shrinks to it, and its repro runs alone, wrong and right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from plants import PLANTS
from torch import nn
from typer.testing import CliRunner

from braze.autograd import norms
from braze.bisect import bisect
from braze.bisect.shrink import extract
from braze.bisect.stages import difference, spread
from braze.capture.vm.registry import HANDLERS
from braze.cli.main import app
from braze.inductor.codegen import llvm_ops, program
from braze.inductor.loops.rules import RULES
from braze.prims import registry

TARGETS = {"autograd": "softmax", "prims": "gelu", "loops": "amax", "codegen": "tanh"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 24), nn.Linear(24, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.b(nn.functional.gelu(self.a(x))))
        return h * h.amax(-1, keepdim=True) + h.sum() + torch.softmax(h, -1)


@pytest.fixture
def planted(request: pytest.FixtureRequest):
    tables = (registry.DECOMPOSITIONS, RULES, llvm_ops.OPS, HANDLERS, norms.ROWS)
    kept = [dict(t) for t in tables]
    PLANTS[request.param]()
    yield request.param
    for table, old in zip(tables, kept):
        table.clear()
        table.update(old)
    registry._FOUND.clear()
    program._EMITTED.clear()


def runs_alone(path: Path, plant: str) -> None:
    """The repro fails with the wrong row in place and not without it, in processes of its own."""
    plants = Path(__file__).parent / "plants.py"
    wrong = subprocess.run([sys.executable, plants, plant, path], capture_output=True, text=True)
    assert wrong.returncode == 1 and f"{plant} differs" in wrong.stdout, wrong.stderr
    right = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert right.returncode == 0 and f"{plant} agrees" in right.stdout, right.stderr


@pytest.mark.parametrize("planted", ["autograd", "prims", "loops", "codegen"], indirect=True)
def test_planted(planted: str, tmp_path: Path) -> None:
    path = tmp_path / "repro.py"
    found = bisect(Net(), path)(torch.randn(5, 12))
    assert found.stage == planted and "graph_0" in found.side, str(found)
    calls = [n for n in found.graph.nodes if n.op == "call"]
    assert len(calls) == 1 and TARGETS[planted] in str(calls[0].target)
    assert str(path) in str(found)
    runs_alone(path, planted)


def alone(x: torch.Tensor) -> torch.Tensor:
    y = torch.cos(x)
    return torch.tanh(y) + 1


@pytest.mark.parametrize("planted", ["capture"], indirect=True)
@pytest.mark.parametrize("fn", [Net(), alone], ids=["module", "function"])
def test_a_wrong_capture(planted: str, fn: Any, tmp_path: Path) -> None:
    """The repro has the function and its arguments; the line is the one whose value the function never computes."""
    path = tmp_path / "repro.py"
    found = bisect(fn, path)(torch.randn(5, 12))
    assert found.stage == "capture" and found.loc is not None and "torch.tanh" in found.loc.text, str(found)
    runs_alone(path, planted)


@pytest.mark.parametrize("planted", ["capture"], indirect=True)
def test_what_cannot_be_stored_has_no_repro(planted: str, tmp_path: Path) -> None:
    """A function inside of a function: its source where that says all, else only the diagnosis."""
    scale = 2.0

    def plain(x):
        return torch.tanh(x)

    def reads(x):
        return torch.tanh(x) * scale

    found = bisect(plain, tmp_path / "a.py")(torch.randn(4))
    runs_alone(tmp_path / "a.py", planted)
    found = bisect(reads, tmp_path / "b.py")(torch.randn(4))
    assert found.stage == "capture" and found.path is None and not (tmp_path / "b.py").exists()


def test_all_agree_forward_and_backward(tmp_path: Path) -> None:
    model, x = Net(), torch.randn(5, 12, requires_grad=True)
    found = bisect(model, tmp_path / "r.py")(x)
    assert not found.stage and not (tmp_path / "r.py").exists()
    assert set(found.compared) == {"capture", "autograd", "prims", "loops", "fuse", "plan", "codegen"}
    assert x.grad is None and all(p.grad is None for p in model.parameters())


def test_a_wrong_backward_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = registry.DECOMPOSITIONS["gelu_backward"].fn
    monkeypatch.setitem(
        registry.DECOMPOSITIONS, "gelu_backward", registry.Row(lambda b, *a, **k: b.neg(old(b, *a, **k)))
    )
    registry._FOUND.clear()
    found = bisect(nn.Sequential(nn.Linear(12, 4), nn.GELU()), tmp_path / "r.py")(torch.randn(5, 12))
    registry._FOUND.clear()
    assert found.stage == "prims" and "backward" in found.side


def test_models_with_batch_norm_and_dropout(tmp_path: Path) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 2)
    )
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = bisect(model, tmp_path / "r.py")(torch.randn(4, 3, 8, 8))
    assert not found.stage, str(found)
    for k, v in model.state_dict().items():
        torch.testing.assert_close(v, before[k])


def test_rounding_that_the_inputs_own_would_give_is_no_difference() -> None:
    """The sum of what is left without its mean is zero but for rounding: any rounding will do."""
    from braze.ir import Graph, tensor_type

    g = Graph()
    x = g.input("x", tensor_type((1000,)))
    mean = g.call(torch.mean, (x,), val=tensor_type(()))
    total = g.call(torch.sum, (g.call(torch.sub, (x, mean), val=x.val),), val=tensor_type(()))
    g.outputs = (total,)
    torch.manual_seed(1)
    value = 100 * torch.randn(1000)
    want = ((value - value.mean()).sum(),)
    got = ((value.double() - value.double().mean()).sum().float(),)
    assert difference(got, want) and not difference(got, want, spread(g, [value]))


def test_difference() -> None:
    x = torch.randn(100)
    assert difference(x, x) == "" and difference((x, None), (x, None)) == ""
    assert difference(x + 1e-6, x) == ""
    assert "an error of" in difference(x + 0.1, x)
    assert "NaN" in difference(x / 0 * 0, x)
    assert "instead of" in difference(x[:3], x) and "outputs" in difference((x,), (x, x))
    assert "elements differ" in difference(x > 0, x <= 0)
    assert difference(x + 0.1, x, lambda k: 0.2) == ""


def test_extract_keeps_what_is_read_outside() -> None:
    from braze.ir import Graph, interpret, tensor_type

    g = Graph()
    x = g.input("x", tensor_type((3,)))
    a = g.call(torch.sin, (x,), val=x.val)
    b = g.call(torch.cos, (a,), val=x.val)
    g.outputs = (b, a)
    value = torch.randn(3)
    part, inputs = extract(g, [a, b], {x: value})
    got = interpret(part, inputs)
    assert [n.name for n in part.inputs] == ["x"]
    torch.testing.assert_close(got[0], value.sin().cos())
    torch.testing.assert_close(got[1], value.sin())


@pytest.mark.parametrize("planted", ["codegen"], indirect=True)
def test_the_command(planted: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())\n"
    )
    spec, out = f"{tmp_path}/net.py:make", tmp_path / "r.py"
    result = CliRunner().invoke(app, ["bisect", spec, "--out", str(out)])
    assert result.exit_code == 1 and "codegen is the first stage that differs" in result.output and out.exists()
