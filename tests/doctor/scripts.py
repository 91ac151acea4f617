"""Small scripts, each with one planted problem, by the name of the check that has to find it."""

from __future__ import annotations

HEAD = """
import torch, braze
from torch import nn
torch.manual_seed(0)
"""

CLEAN = (
    HEAD
    + """
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
fast = braze.compile(model)
opt = torch.optim.AdamW(model.parameters(), fused=True)
data = torch.utils.data.DataLoader(torch.randn(96, 16), batch_size=16, drop_last=True)
total = torch.zeros(())
for x in data:
    loss = fast(x).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
    total += loss.detach()
print(float(total))
"""
)

CLEAN_GPU = (
    HEAD
    + """
torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("high")
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)
    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))
model = Net().to(memory_format=torch.channels_last)
fast = braze.compile(model)
opt = torch.optim.AdamW(model.parameters(), fused=True)
data = torch.utils.data.DataLoader(torch.randn(80, 3, 8, 8), batch_size=16, pin_memory=True)
for x in data:
    with torch.autocast("cpu", torch.bfloat16):
        loss = fast(x.to(memory_format=torch.channels_last)).float().square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
torch.set_float32_matmul_precision("highest")
"""
)

TRAIN = (
    HEAD
    + """
{setup}
model = {model}
fast = {compile}
opt = {optimizer}
for i in range({steps}):
    x = {x}
    loss = fast(x).float().square().mean()
    loss.backward()
    opt.step()
    {zero}
    {extra}
"""
)

DEFAULTS = {
    "setup": "",
    "model": "nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))",
    "compile": "braze.compile(model)",
    "optimizer": "torch.optim.AdamW(model.parameters(), fused=True)",
    "x": "torch.randn(16, 16)",
    "steps": "6",
    "zero": "opt.zero_grad()",
    "extra": "",
}


def train(**parts: str) -> str:
    return TRAIN.format(**DEFAULTS | parts)


MODULE = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 4)
        {init}
    def forward(self, x):
        y = self.fc(x)
        {body}
        return y
"""


def module(body: str = "", init: str = "pass") -> dict[str, str]:
    return {"setup": MODULE.format(body=body, init=init), "model": "Net()"}


CONV = "nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))"
IMAGES = "torch.randn(16, 3, 8, 8)"

PLANTED: dict[str, tuple[str, str | None]] = {
    "graph-break": (train(**module('print("a line")')), None),
    "data-dependent": (train(**module("y = y[y > 0]")), None),
    "recompile": (
        train(
            **module("y = getattr(torch, self.kind)(y)", "self.kind = 'relu'"),
            extra="model.kind = ('sin', 'cos', 'tanh')[i % 3]",
        ),
        None,
    ),
    "dynamic-sizes": (train(x="torch.randn(16 + 3 * i, 16)"), None),
    "compile-in-loop": (train(extra="fast = braze.compile(model)"), None),
    "not-compiled": (train(compile="model"), None),
    "optimizer": (train(optimizer="torch.optim.AdamW(model.parameters(), foreach=False)"), None),
    "zero-grad": (train(zero="opt.zero_grad(set_to_none=False)"), None),
    "anomaly": (train(setup="torch.autograd.set_detect_anomaly(True)"), None),
    "devices": (
        train(
            **module(init='self.left = nn.Linear(2, 2, device="meta")'),
            optimizer="torch.optim.SGD(model.fc.parameters(), fused=True)",
        ),
        None,
    ),
    "data-loading": (
        HEAD
        + """
import time
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        time.sleep(0.004)
        return torch.randn(16)
model = nn.Linear(16, 4)
fast = braze.compile(model)
opt = torch.optim.SGD(model.parameters(), fused=True)
for x in torch.utils.data.DataLoader(Slow(), batch_size=8):
    fast(x).square().mean().backward()
    opt.step()
    opt.zero_grad()
""",
        None,
    ),
    "no-grad": (
        HEAD
        + """
model = nn.Linear(16, 4).eval()
fast = braze.compile(model)
for _ in range(4):
    fast(torch.randn(16, 16))
""",
        None,
    ),
    "script": (train(extra="raise RuntimeError('a bug in the script')"), None),
    "unfused": (train(compile='braze.compile(model, backend="eager")'), None),
    "host-sync": (train(extra="last = loss.item()"), "cuda"),
    "copies": (train(extra="kept = loss.detach().cpu()"), "cuda"),
    "pin-memory": (CLEAN, "cuda"),
    "autocast": (train(), "cuda"),
    "tf32": (train(), "cuda"),
    "channels-last": (train(model=CONV, x=IMAGES), "cuda"),
    "cudnn-benchmark": (train(model=CONV, x=IMAGES), "cuda"),
    "small-batch": (
        train(model="nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)))", x="torch.randn(2, 16)"),
        "cuda",
    ),
}
"""check -> (script, the device to assume)."""
