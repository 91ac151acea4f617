"""Philox: known answers, the documented layout, statistics."""

from __future__ import annotations

import torch

from braze.prims.rng import philox_seed, philox_uniform, philox_words

# Known answers of Random123 (kat_vectors, philox4x32 10).
KNOWN = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def test_known_answers():
    for key, counter, want in KNOWN:
        got = philox_words(key, [torch.tensor([c]) for c in counter])
        assert tuple(int(w) for w in got) == want


def test_layout():
    seed = torch.tensor([-123456789012345, 2**63 - 2])
    u = philox_uniform(seed, 5, (3, 7), torch.device("cpu"))
    key = int(seed[0]) & (2**64 - 1)
    offset = (int(seed[1]) + 5) & (2**64 - 1)  # wraps past 2**63
    for i in (0, 1, 2, 3, 4, 13, 20):
        counter = [torch.tensor([c]) for c in (i // 4, 0, offset & 0xFFFFFFFF, offset >> 32)]
        words = philox_words((key & 0xFFFFFFFF, key >> 32), counter)
        assert u.reshape(-1)[i].item() == (int(words[i % 4]) >> 8) * 2.0**-24


def test_statistics_and_streams():
    torch.manual_seed(0)
    seed = philox_seed(torch.device("cpu"))
    a = philox_uniform(seed, 0, (100003,), torch.device("cpu"))
    b = philox_uniform(seed, 1, (100003,), torch.device("cpu"))
    assert a.dtype == torch.float32 and a.min() >= 0 and a.max() < 1
    assert abs(a.mean() - 0.5) < 0.005 and abs(a.var() - 1 / 12) < 0.002
    assert abs(((a - 0.5) * (b - 0.5)).mean()) < 0.002
    assert torch.equal(a, philox_uniform(seed, 0, (100003,), torch.device("cpu")))
    torch.manual_seed(0)
    assert torch.equal(seed, philox_seed(torch.device("cpu")))
    assert not torch.equal(seed, philox_seed(torch.device("cpu")))
