"""Fusions made, cached and run; the ``nvfuser`` backend."""

from __future__ import annotations

import importlib
import logging
from collections import OrderedDict
from functools import cache, partial
from typing import Any

import torch

from braze.autograd import channels_last
from braze.config import Config
from braze.ir import Graph, load_python, verify
from braze.prims.decompose import decompose

from ..aot import compile_joint
from ..inductor import compile_primitives, policy_of
from ..registry import Compiled, Request, Started, built_in
from .regions import Region, split
from .translate import definition, storage_order

logger = logging.getLogger("braze")
DEVICE = "cuda"
MOST_CACHED = 1024
_fusions: OrderedDict[str, Any] = OrderedDict()  # text of the definition -> FusionDefinition


@cache
def _import_error() -> str:
    try:
        importlib.import_module("nvfuser_direct")
    except ImportError as e:
        return (
            f"nvfuser_direct cannot be imported ({e}); install the nvFuser wheel that was built for torch "
            f"{torch.__version__.split('+')[0]} and CUDA {torch.version.cuda}, e.g. nvfuser-cu130-torch210"
        )
    return ""


def why_not() -> str:
    """Why nvFuser cannot run here, "" if it can."""
    if not torch.cuda.is_available():
        return "nvFuser needs a CUDA device, and torch finds none"
    major, minor = torch.cuda.get_device_capability()
    if major < 7:
        return f"nvFuser needs compute capability 7.0 (Volta) or later; this device has {major}.{minor}"
    return _import_error()


def fusion_of(text: str) -> Any:
    """The FusionDefinition of a definition's text, made at its first use."""
    if text in _fusions:
        _fusions.move_to_end(text)
        return _fusions[text]
    nvfuser = importlib.import_module("nvfuser_direct")
    scope: dict[str, Any] = {"DataType": nvfuser.DataType}
    exec(compile(text, "<braze nvfuser>", "exec"), scope)  # noqa: S102
    with nvfuser.FusionDefinition() as fd:
        scope["fusion"](fd)
    _fusions[text] = fd
    if len(_fusions) > MOST_CACHED:
        _fusions.popitem(last=False)
    return fd


class Fusion:
    """One region as a callable of its inputs: a tensor, or a tuple of several.

    ``text`` is its definition. A fusion that nvFuser cannot compile or run warns once and runs its primitives in eager.
    """

    def __init__(self, region: Region, number: int, strict: bool) -> None:
        graph = region.graph(f"nvfuser_{number}")
        self.__name__ = graph.name
        self.text = definition(graph)
        self._fd = fusion_of(self.text)
        orders = [storage_order(n.val) for n in region.outputs]
        self._back = [_inverse(o) if o != tuple(range(len(o))) else None for o in orders]
        self._eager = partial(_run_eager, graph)
        self._strict = strict
        self._failed = False

    def __call__(self, *inputs: Any) -> Any:
        outs = self._eager(*inputs) if self._failed else self._run(inputs)
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _run(self, inputs: tuple[Any, ...]) -> Any:
        try:
            outs = self._fd.execute(list(inputs))
        except Exception as e:
            if self._strict:
                raise
            self._failed = True
            logger.warning("nvFuser cannot run %s, which runs in eager: %s\n%s", self.__name__, e, self.text)
            return self._eager(*inputs)
        return [x if back is None else x.permute(back) for x, back in zip(outs, self._back)]

    def reproducer(self) -> str:
        """nvFuser's own text of the fusion; run it with ``nvfuser_direct``."""
        return repr(self._fd)


def _run_eager(graph: Graph, *inputs: Any) -> Any:
    return load_python(graph)(*inputs)


def _inverse(order: tuple[int, ...]) -> list[int]:
    return [order.index(d) for d in range(len(order))]


def compile_side(graph: Graph, request: Request, side: str) -> Started:
    """One functional ATen graph: its fusible regions by nvFuser, the rest as the inductor backend compiles it."""
    record, config = request.record, request.config
    with record.stage("prims"):
        graph = decompose(graph, policy_of(graph))
    record.add_level(f"{side}: prims", graph)
    fusions: list[Fusion] = []
    with record.stage("nvfuser"):
        graph, _ = split(graph, partial(_make, fusions, config), DEVICE)
    record.add_level(f"{side}: nvfuser", "\n".join(f"# {f.__name__}\n{f.text}" for f in fusions))
    record.kernels += [f.__name__ for f in fusions]
    if config.debug >= 3:
        for f in fusions:
            logger.info("%s, reproducer:\n%s", f.__name__, f.reproducer())
    if config.verify:
        verify(graph)
    return compile_primitives(graph, request, side)


def _make(fusions: list[Fusion], config: Config, region: Region) -> Fusion:
    fusions.append(Fusion(region, len(fusions), config.strict))
    return fusions[-1]


@built_in("nvfuser", why_not)
def nvfuser(request: Request) -> Compiled:
    """nvFuser fusions for what nvFuser takes, kernels and vendor calls for the rest."""
    return compile_joint(request, compile_side, channels_last)
