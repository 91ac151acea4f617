"""CPU kernels: eager against braze and torch.compile.

    python benchmarks/cpu_kernels.py [--threads 2] [--only gelu,softmax] [--kind norms] [--peer FILE] [--out FILE]

Figures are medians in microseconds, of calls without autograd.  How they are measured: ``cpu_measure``.
"""

from __future__ import annotations

import torch
from cpu_cases import CASES, KINDS
from cpu_measure import Entry, run


def make(name: str) -> Entry:
    torch.set_grad_enabled(False)
    fn, args = CASES[name]()

    def compiled(compiler):  # type: ignore[no-untyped-def]
        f = compiler(fn)
        return lambda: f(*args)

    return Entry(lambda: fn(*args), compiled)


if __name__ == "__main__":
    run(make, {kind: list(cases) for kind, cases in KINDS.items()}, __doc__)
