"""braze's back half under the peer's capture: ``torch.compile(model, backend="braze")``, an entry point."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from braze.config import Config
from braze.events import GraphRecord
from braze.ir import Graph, type_of
from braze.ir.pause import paused_gc

from .fx import from_fx
from .registry import Compiled, Request, lookup

logger = logging.getLogger("braze")


def torch_compile_backend(gm: torch.fx.GraphModule, example_inputs: list[Any], **options: Any) -> Compiled:
    """Compile a captured GraphModule with braze's own backend.

    ``options`` are fields of :class:`braze.Config`. Where the peer made sizes symbolic, each set of sizes is compiled
    at its first call (``recompile_limit`` of them; the graph's calls run in eager for further ones).
    """
    options = options.pop("options", None) or options
    config = replace(Config.from_env(), **options)
    if all(isinstance(x, torch.Tensor) for x in example_inputs):
        return _compile(gm, example_inputs, config)[1]
    return _by_sizes(gm, config)


def _compile(gm: torch.fx.GraphModule, inputs: list[Any], config: Config) -> tuple[Graph, Compiled]:
    graph = from_fx(gm, [type_of(x) if isinstance(x, torch.Tensor) else x for x in inputs])
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    types = tuple(type_of(x) for x in tensors)
    request = Request(graph, types, tensors, config, GraphRecord("graph_0", graph))
    with paused_gc():
        return graph, lookup("inductor")(request)


def _by_sizes(gm: torch.fx.GraphModule, config: Config) -> Callable[..., Any]:
    compiled: dict[Any, Compiled] = {}

    def run(*inputs: Any) -> Any:
        key = tuple((x.shape, x.stride(), x.requires_grad) if isinstance(x, torch.Tensor) else x for x in inputs)
        call = compiled.get(key)
        if call is None:
            if len(compiled) >= config.recompile_limit:
                logger.warning("a graph was compiled for %d sets of sizes; others run in eager", len(compiled))
                return gm(*inputs)
            call = compiled[key] = _compile(gm, list(inputs), config)[1]
        return call(*[x for x in inputs if isinstance(x, torch.Tensor)])

    return run
