"""Functions compiled by PyTorch's own compiler and by braze call each other: both hooks stay sane."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch, braze

@torch.compile(backend="eager")
def theirs(x):
    return x.sin() + 1

def inside(x):
    y = x * 2
    y = theirs(y)
    return y * 3

@torch.compile(backend="eager")
def outer(x):
    return ours(x) - 1

@braze.compile(backend="eager")
def ours(x):
    return x.cos() * 2

x = torch.randn(4)
both = braze.compile(inside, backend="eager")
for _ in range(3):
    torch.testing.assert_close(both(x), ((x * 2).sin() + 1) * 3)
    torch.testing.assert_close(outer(x), x.cos() * 2 - 1)
    torch.testing.assert_close(ours(x), x.cos() * 2)
    torch.testing.assert_close(theirs(x), x.sin() + 1)
print("done")
"""

MODULES = """
import torch, braze
from torch import nn

init = nn.Module.__init__
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
assert nn.Module.__init__ is not init  # what makes this a test: the peer's patch is in

def f(x, t, layers):
    for layer in layers[:2]:
        x = layer(x)
    return nn.CrossEntropyLoss()(x, t), nn.ModuleList([nn.ReLU()])

x, t = torch.randn(4, 5), torch.tensor([1, 2, 3, 0])
layers = nn.ModuleList([nn.Linear(5, 5), nn.Tanh(), nn.ReLU()])
loss, made = braze.compile(f, backend="eager", fullgraph=True)(x, t, layers)
torch.testing.assert_close(loss, f(x, t, layers)[0])
assert type(made) is nn.ModuleList and type(made[0]) is nn.ReLU
torch.testing.assert_close(made[0](x), x.relu())
print("done")
"""


def _runs(program: str) -> None:
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0 and run.stdout.split() == ["done"], run.stderr[-3000:]


def test_modules_made_inside_after_the_peer_has_patched_their_init() -> None:
    _runs(MODULES)


def test_each_inside_the_other() -> None:
    _runs(PROGRAM)


STEP = """
import torch, braze
from torch import nn

torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))  # patches torch.optim
torch.manual_seed(0)
model = nn.Linear(4, 4)
opt = torch.optim.Adam(model.parameters(), lr=0.1)

@braze.compile(backend="eager", fullgraph=True)
def step(x):
    loss = model(x).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
    return loss

losses = [float(step(torch.ones(2, 4))) for _ in range(5)]
assert losses[-1] < losses[0], losses
print("done")
"""


def test_a_training_step_after_the_other_compiler_ran() -> None:
    _runs(STEP)
