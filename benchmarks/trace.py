"""Time to trace a 12-layer transformer's loss and gradients: the dispatch mode alone, and the whole joint graph.

    python benchmarks/trace.py [--check] [--dynamic]

One thread, garbage collection off; the minimum of the rounds counts. ``--check`` fails above the gates. ``--dynamic``
adds the joint graph with a symbolic batch, and with a symbolic batch and length.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from braze.autograd import trace_joint
from braze.fake import FakeMode, fake_from
from braze.ir import IntLike, TensorType, evaluate, symbol, tensor_type, type_of
from braze.ir.decisions import Decisions

GATE_MODE_MS, GATE_JOINT_MS, GATE_DYNAMIC_MS = 70.0, 200.0, 400.0


class Block(nn.Module):
    """Pre-norm attention and MLP with dropout, attention written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, 2)
        )
        scores = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
        y = (F.dropout(scores.softmax(-1), 0.1) @ v).transpose(1, 2).contiguous().view(b, t, c)
        x = x + F.dropout(self.out(y), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1)


class Transformer(nn.Module):
    """12 blocks of width 256 over a vocabulary of 1000; gives the loss of its own input."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(1000, 256), nn.Embedding(64, 256)
        self.blocks = nn.Sequential(*(Block(256, 4) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, 1000, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), ids.view(-1))


def functional(model: nn.Module) -> tuple[Callable[..., torch.Tensor], list[TensorType]]:
    """The model as a function of (ids, *parameters), and the parameters' types."""
    slots = [(m, k) for m in model.modules() for k, p in m._parameters.items() if p is not None]
    types = [type_of(m._parameters[k]) for m, k in slots]  # type: ignore[arg-type]

    def run(ids: Any, *params: Any) -> Any:
        for (m, k), p in zip(slots, params):
            m._parameters[k] = p
        return model(ids)

    return run, types


def hinted(op: str, a: IntLike, b: IntLike) -> bool:
    """Answers a question about symbolic sizes by their hints."""
    x, y = evaluate(a), evaluate(b)
    return {"==": x == y, "!=": x != y, "<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y}[op]


def best(f: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """(first, minimum) time of a call, ms."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        f()
        times.append((time.perf_counter() - start) * 1e3)
    return times[0], min(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help=f"fail above {GATE_MODE_MS} and {GATE_JOINT_MS} ms")
    parser.add_argument("--dynamic", action="store_true", help=f"also with symbolic sizes (gate {GATE_DYNAMIC_MS} ms)")
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with torch.device("meta"):
        model = Transformer()
    fn, types = functional(model)
    types = [t.with_(device=torch.device("cpu")) for t in types]
    inputs = [tensor_type((2, 64), torch.int64), *types]
    gc.disable()

    def mode(batch: IntLike) -> Callable[[], None]:
        def run() -> None:
            params = [fake_from(t) for t in types]
            with FakeMode(lambda *_: None, decide=hinted):
                torch.autograd.grad(
                    fn(fake_from(tensor_type((batch, 64), torch.int64), decide=hinted), *params), params
                )

        return run

    def joint(names: str) -> Callable[[], None]:
        """The joint trace with the named sizes as inputs of the graph."""

        def run() -> None:
            decisions = Decisions()
            shape: dict[str, IntLike] = {"b": 2, "t": 64}
            symbols = [decisions.new(n, int(str(shape[n])), 2, 2**40) for n in names]
            ids = tensor_type([*(shape | dict(zip(names, symbols))).values()], torch.int64)
            trace_joint(lambda *xs: fn(*xs[len(names) :]), [*symbols, ids, *types], decide=decisions)

        return run

    gates = {"mode": GATE_MODE_MS, "joint": GATE_JOINT_MS, "joint, symbolic batch": GATE_DYNAMIC_MS}
    rows = {
        "mode": mode(2),
        "mode, symbolic batch": mode(symbol("b", 2, 64, hint=2)),
        "joint": lambda: trace_joint(fn, inputs),
    }
    if args.dynamic:
        rows |= {"joint, symbolic batch": joint("b"), "joint, batch, length": joint("bt")}
    failed = False
    for name, run in rows.items():
        first, least = best(run, args.rounds)
        over = least > gates.get(name, float("inf"))
        failed |= over
        gate = f", gate {gates[name]:.0f}" if name in gates else ""
        print(f"{name:22} first {first:7.1f} ms, min {least:7.1f} ms{gate}{' EXCEEDED' if over else ''}")
    return int(failed and args.check)


if __name__ == "__main__":
    sys.exit(main())
