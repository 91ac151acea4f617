"""Random programs of views, writes and arithmetic, compared with eager in all that a user can see."""

from __future__ import annotations

import random

import pytest
import torch
from autograd_harness import check_program

from braze.errors import Unsupported

VIEWS = [
    lambda r, x: x.t() if x.dim() == 2 else x.unsqueeze(0),
    lambda r, x: x.reshape(-1),
    lambda r, x: x.view(-1) if x.is_contiguous() else x.detach(),
    lambda r, x: x[r.randrange(x.shape[0])] if x.dim() else x.view(1),
    lambda r, x: x[1:] if x.dim() and x.shape[0] > 1 else x.alias() if hasattr(x, "alias") else x.view_as(x),
    lambda r, x: x[..., ::2] if x.dim() else x.detach(),
    lambda r, x: x.unsqueeze(r.randrange(x.dim() + 1)),
    lambda r, x: x.squeeze(),
    lambda r, x: x.transpose(0, -1) if x.dim() else x.view_as(x),
    lambda r, x: x.diagonal() if x.dim() >= 2 else x.view_as(x),
    lambda r, x: x.split(2, -1)[0] if x.dim() else x.view_as(x),
    lambda r, x: x.chunk(2, 0)[-1] if x.dim() else x.view_as(x),
    lambda r, x: x.expand(3, *x.shape),
    lambda r, x: x.detach(),
    lambda r, x: x.flatten(),
    lambda r, x: x.movedim(0, -1) if x.dim() else x.view_as(x),
]
WRITES = [
    lambda r, x, y: x.add_(1),
    lambda r, x, y: x.mul_(2),
    lambda r, x, y: x.add_(y.sum()),
    lambda r, x, y: x.copy_(y.mean()),
    lambda r, x, y: x.zero_(),
    lambda r, x, y: x.fill_(3),
    lambda r, x, y: x.clamp_(-1, 1),
    lambda r, x, y: x.copy_(torch.arange(x.numel()).view(x.shape) * 0.1),
    lambda r, x, y: x.masked_fill_(torch.arange(x.numel()).view(x.shape) % 3 == 0, 0.5),
    lambda r, x, y: torch.add(x.detach(), 1, out=x.detach()),
]
CALLS = [
    lambda r, x, y: x * 2,
    lambda r, x, y: x + y.sum(),
    lambda r, x, y: x.clone(),
    lambda r, x, y: x.sin(),
    lambda r, x, y: x.contiguous(),
    lambda r, x, y: x.to(torch.float32),
    lambda r, x, y: x.sum(0) if x.dim() else x + 1,
]


def make_program(seed):
    """A program of up to twelve steps over two inputs; the same choices each time it runs."""

    def program(*inputs):
        r = random.Random(seed)
        values = list(inputs)
        for _ in range(r.randint(2, 12)):
            kind, x, y = r.random(), r.choice(values), r.choice(values)
            pick = r.randrange(1000)
            if kind < 0.4:
                values.append(VIEWS[pick % len(VIEWS)](r, x))
            elif kind < 0.7:
                WRITES[pick % len(WRITES)](r, x, y)
            else:
                values.append(CALLS[pick % len(CALLS)](r, x, y))
        return tuple(r.sample(values, min(len(values), r.randint(1, 4))))

    return program


def inputs(seed, grad):
    gen = torch.Generator().manual_seed(seed)
    shapes = [(4, 6), (3,), (2, 3, 4), (4, 4)]
    out = [torch.randn(shapes[(seed + i) % 4], generator=gen) for i in range(2)]
    if seed % 5 == 0:
        out[0] = out[0].transpose(0, -1)
    return [x.requires_grad_(grad and i != 1) for i, x in enumerate(out)]


def run(seed, grad):
    fn = make_program(seed)
    try:  # is it a program that eager takes?
        probe = [x.clone() for x in inputs(seed, grad)]
        outs = [o for o in [*fn(*probe), *probe] if o.requires_grad]
        if outs:
            torch.autograd.backward([o.sum() for o in outs])
    except RuntimeError:
        return False
    try:
        check_program(fn, inputs(seed, grad), tol=1e-5)
    except Unsupported:
        return False
    return True


@pytest.mark.parametrize("grad", [False, True])
def test_random_programs(grad):
    done = sum(run(seed, grad) for seed in range(120))
    assert done > 40


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_random_programs(block):
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        run(seed, seed % 3 != 0)
