"""In-place collectives of ``torch.distributed`` as functional ones and a copy: what capture inlines in their place.

``group`` is the group's name, ``size`` its number of ranks.  Results are copied into the caller's tensors, as the
in-place forms do; a graph holds the functional call.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def all_reduce(tensor: Tensor, op: str, group: str, size: int) -> None:
    """``torch.distributed.all_reduce``."""
    tensor.copy_(torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(tensor, op, group)))


def broadcast(tensor: Tensor, src: int, group: str, size: int) -> None:
    """``torch.distributed.broadcast``; ``src`` counts within the group."""
    tensor.copy_(torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.broadcast(tensor, src, group)))


def all_gather_into_tensor(output_tensor: Tensor, input_tensor: Tensor, group: str, size: int) -> None:
    """``torch.distributed.all_gather_into_tensor``: a concatenation or a stack, by the output's sizes."""
    flat = torch.ops._c10d_functional.all_gather_into_tensor(input_tensor.reshape(-1), size, group)
    output_tensor.copy_(torch.ops._c10d_functional.wait_tensor(flat).view(output_tensor.shape))


def all_gather(tensor_list: list[Tensor], tensor: Tensor, group: str, size: int) -> None:
    """``torch.distributed.all_gather`` of equal sizes."""
    flat = torch.ops._c10d_functional.all_gather_into_tensor(tensor.reshape(-1), size, group)
    parts = torch.ops._c10d_functional.wait_tensor(flat).view(size, -1)
    for i in range(size):
        tensor_list[i].copy_(parts[i].view(tensor_list[i].shape))


def reduce_scatter_tensor(output: Tensor, input: Tensor, op: str, group: str, size: int) -> None:
    """``torch.distributed.reduce_scatter_tensor``."""
    part = torch.ops._c10d_functional.reduce_scatter_tensor(input.reshape(-1), op, size, group)
    output.copy_(torch.ops._c10d_functional.wait_tensor(part).view(output.shape))


def reduce_scatter(output: Tensor, input_list: list[Tensor], op: str, group: str, size: int) -> None:
    """``torch.distributed.reduce_scatter`` of equal sizes."""
    whole = torch.cat([x.reshape(-1) for x in input_list])
    part = torch.ops._c10d_functional.reduce_scatter_tensor(whole, op, size, group)
    output.copy_(torch.ops._c10d_functional.wait_tensor(part).view(output.shape))


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | None,
    input_split_sizes: list[int] | None,
    group: str,
    size: int,
) -> None:
    """``torch.distributed.all_to_all_single``."""
    received = output_split_sizes or [output.shape[0] // size] * size
    sent = input_split_sizes or [input.shape[0] // size] * size
    got = torch.ops._c10d_functional.all_to_all_single(input, received, sent, group)
    output.copy_(torch.ops._c10d_functional.wait_tensor(got))
