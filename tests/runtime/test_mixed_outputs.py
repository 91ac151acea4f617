"""Programs of a host and a device part: outputs are a tuple, as autograd takes several gradients."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from braze.runtime.mixed import joined


def test_outputs_are_a_tuple() -> None:
    split = SimpleNamespace(
        host_inputs=(1,), device_inputs=(0,), packs=(), moved=1, host_outputs=(1,), target=torch.device("cpu")
    )
    call = joined(lambda y: (y + 1, y + 2), lambda x, y: [x * y, None], split)
    out = call(torch.tensor(2.0), torch.tensor(3.0))
    assert isinstance(out, tuple) and [v.item() for v in out] == [8.0, 5.0]
