"""Backends by name: what is available and why another is not, plugins, and torch.compile(backend="braze")."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

import braze
from braze.backends import registry

ROOT = Path(__file__).parents[2]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("_BUILT_IN", "_REGISTERED", "_WHY_NOT"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))


def plugin(folder: Path, entries: dict[str, str], **modules: str) -> None:
    """A distribution with entry points (group -> lines) and modules, as pip would have left it."""
    info = folder / "braze_plugin_demo-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: braze-plugin-demo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(f"[{group}]\n{lines}" for group, lines in entries.items()))
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


@pytest.mark.parametrize("name", ["eager", "aot_eager", "inductor"])
def test_built_in_backends_train_alike(name: str) -> None:
    assert name in braze.list_backends()
    model, x = net(), torch.randn(3, 4)
    model(x).sum().backward()
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    braze.compile(model, backend=name)(x).sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], want)


def test_an_unavailable_backend_says_why(clean: None) -> None:
    registry.built_in("moonbeam", lambda: "needs a moon")(registry.eager)
    assert "moonbeam" not in braze.list_backends()
    assert registry.unavailable_backends()["moonbeam"] == "needs a moon"
    with pytest.raises(ValueError, match="'moonbeam' is not available: needs a moon. Available: aot_eager, eager, ind"):
        braze.compile(net(), backend="moonbeam")
    with pytest.raises(ValueError, match="unknown backend 'sunbeam'.*Not available here:.*moonbeam: needs a moon"):
        braze.compile(net(), backend="sunbeam")


def test_registered_backends(clean: None) -> None:
    seen = []

    @braze.register_backend(name="noisy")
    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]):
        seen.append(len(inputs))
        return gm

    assert braze.list_backends()[-1] == "noisy"
    model, x = net(), torch.randn(3, 4)
    torch.testing.assert_close(braze.compile(model, backend="noisy")(x), model(x))
    assert seen == [5]
    with pytest.raises(ValueError, match="built-in"):
        braze.register_backend(backend, name="eager")


def test_a_backend_that_returns_no_callable(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    braze.register_backend(lambda gm, inputs: None, name="empty")
    monkeypatch.setenv("BRAZE_STRICT", "1")
    with pytest.raises(TypeError, match="returned None, which is not callable"):
        braze.compile(net(), backend="empty")(torch.randn(3, 4))


def test_entry_point_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "plugged = braze_plugin_demo:make\nbroken = braze_plugin_gone:make\n"
    plugin(tmp_path, {"braze.backends": lines}, braze_plugin_demo="def make(gm, inputs):\n    return gm\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {"plugged", "broken"} <= set(braze.list_backends())
    model, x = net(), torch.randn(3, 4)
    torch.testing.assert_close(braze.compile(model, backend="plugged")(x), model(x))
    with pytest.raises(ValueError, match="'broken' .*braze-plugin-demo.* cannot be loaded: ModuleNotFoundError"):
        braze.compile(model, backend="broken")


PROGRAM = """
import copy, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 4))
plain = copy.deepcopy(model)
fast = torch.compile(model, backend="braze")
for n in (8, 8, 12, 16):
    x = torch.randn(n, 16)
    for m in (fast, plain):
        m(x).square().mean().backward()
        torch.optim.SGD(m.parameters(), 0.1).step()
    for a, b in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close((a, a.grad), (b, b.grad))
assert "braze" in torch.compiler.list_backends()
import braze.backends.interop as used
print("compiled by", used.__name__)
"""


def test_torch_compile_finds_braze_by_entry_point(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    group = "torch_dynamo_backends"
    lines = "\n".join(f"{name} = {value}" for name, value in project["entry-points"][group].items())
    plugin(tmp_path, {group: lines})
    # the same distribution name as the real one, so that an installed copy does not answer in its place
    (tmp_path / "braze_plugin_demo-1.0.dist-info").rename(tmp_path / "braze-99.dist-info")
    (tmp_path / "braze-99.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: braze\nVersion: 99\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path, "BRAZE_STRICT": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "compiled by braze.backends.interop" in done.stdout
