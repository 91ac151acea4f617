"""Constant tensors as text and back: how printed programs carry their data."""

from __future__ import annotations

import base64
import zlib

import torch

MOST_BYTES = 1 << 20  # larger constants are not spelled out


def spelled(text: str, dtype: torch.dtype, sizes: tuple[int, ...]) -> torch.Tensor:
    """A constant tensor from its printed bytes."""
    data = bytearray(zlib.decompress(base64.b85decode(text)))
    return torch.frombuffer(data, dtype=dtype).reshape(sizes) if data else torch.empty(sizes, dtype=dtype)


def spell(t: torch.Tensor) -> str | None:
    """A call of ``spelled`` that gives the tensor's values; None for one that is too large or not plain."""
    if t.device.type != "cpu" or t.layout != torch.strided or t.numel() * t.element_size() > MOST_BYTES:
        return None
    flat = t.detach().contiguous().reshape(-1)
    data = bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""
    return f"spelled({base64.b85encode(zlib.compress(data)).decode()!r}, {t.dtype}, {tuple(t.shape)})"
