"""Random numbers as pure functions of a seed: Philox4x32-10, the same bits on every device and in every generator.

``philox_seed(device)`` is the one draw a graph makes from torch's generator; ``philox_uniform(seed, stream, ...)`` is a
pure function of it, so a backward graph that was given the seed draws the same numbers again.

Layout, binding for every code generator.  For the element with logical (row-major) linear index ``i`` of stream ``s``::

    key     k0, k1 = low, high 32 bits of seed[0]
    offset         = seed[1] + s                        (64-bit, wrapping)
    counter c0, c1 = low, high 32 bits of i // 4
            c2, c3 = low, high 32 bits of offset
    words   w0..w3 = Philox4x32-10(counter, key)        (10 rounds; constants of Salmon et al., SC 2011)
    uniform        = (w[i % 4] >> 8) * 2**-24           (f32, in [0, 1), exact)

All four words are used so that a generator that handles four neighbours at once pays one Philox for them.
One round maps (c0, c1, c2, c3) to (hi(M1*c2) ^ c1 ^ k0, lo(M1*c2), hi(M0*c0) ^ c3 ^ k1, lo(M0*c0)), and the key grows
by (W0, W1) between rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.ir import IntLike, TensorType, product, tensor_type

from .prim import Prim

M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
_LOW = 0xFFFFFFFF


def philox_words(
    key: tuple[int, int] | tuple[torch.Tensor, torch.Tensor], counter: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The four words of Philox4x32-10 for int64 tensors that hold 32-bit words (0 to 2**32 - 1)."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(ROUNDS):
        # The int64 product wraps, yet its bits are those of the unsigned one.
        a, b = c0 * M0, c2 * M1
        c0, c1, c2, c3 = ((b >> 32) & _LOW) ^ c1 ^ k0, b & _LOW, ((a >> 32) & _LOW) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + W0) & _LOW, (k1 + W1) & _LOW
    return c0, c1, c2, c3


def _seed_shape(device: torch.device) -> TensorType:
    return tensor_type((2,), torch.int64, device)


def _seed_reference(device: torch.device) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=device)


def _uniform_shape(seed: TensorType, stream: int, sizes: Sequence[IntLike], device: torch.device) -> TensorType:
    return tensor_type(tuple(sizes), torch.float32, device)


def _uniform_reference(seed: torch.Tensor, stream: int, sizes: Sequence[int], device: torch.device) -> torch.Tensor:
    n = product(tuple(sizes))
    assert isinstance(n, int)
    index = torch.arange((n + 3) // 4, dtype=torch.int64, device=device)
    offset = seed[1] + stream
    ones = torch.ones_like(index)
    counter = (index & _LOW, index >> 32, ones * (offset & _LOW), ones * ((offset >> 32) & _LOW))
    words = torch.stack(philox_words((seed[0] & _LOW, (seed[0] >> 32) & _LOW), counter), 1)
    return ((words >> 8).to(torch.float32) * 2.0**-24).reshape(-1)[:n].reshape(tuple(sizes))


philox_seed = Prim(
    "philox_seed",
    "rng",
    _seed_shape,
    _seed_reference,
    "philox_seed(device) -> i64[2]: seed and offset, drawn from torch's default generator of the device.",
)
philox_uniform = Prim(
    "philox_uniform",
    "rng",
    _uniform_shape,
    _uniform_reference,
    "philox_uniform(seed, stream, sizes, device) -> f32[sizes] in [0, 1), a pure function of seed and stream.",
)
