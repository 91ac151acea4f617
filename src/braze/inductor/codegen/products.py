"""Matrix products with epilogues (``fuse.contract``) as callables: the vendor's way and templates; timing picks.

Each way is a host function like any other program's: the vendor's has the product's call and the kernel after it, a
template's has one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from braze.config import Config
from braze.errors import Unsupported
from braze.inductor.fuse import Product, plan
from braze.inductor.loops import Extern, Kernel, Program, Reduce, Store, canonical, flattened
from braze.ir import to_str
from braze.runtime.cache import content_key
from braze.runtime.cuda import budget_of, load_later, start_kernels_cuda
from braze.runtime.cuda_choice import Choice, Parts, Run, Way

from .host import HostWriter, scope
from .product_tiles import Shape, Tile, tiles_for
from .triton_emit import Emitted, emit_triton
from .triton_layout import hint
from .triton_product import emit_product
from .triton_tiling import Card, card_of

Made = dict[str, Any]
CompileProgram = Callable[[Program, Config], Any]


@dataclass(frozen=True)
class Template:
    """A tiling of a product and its code."""

    tile: Tile
    emitted: Emitted

    @property
    def name(self) -> str:
        """Names the choice on disk and to the reader."""
        t = self.tile
        extra = f" persistent x{t.resident}" * t.persistent + " descriptors" * t.descriptors
        return f"{t.m}x{t.n}x{t.k} w{t.warps} s{t.stages} e{t.slices} g{t.group}{extra}"


def bind_products(program: Program, config: Config, compile_program: CompileProgram) -> tuple[Program, Made]:
    """The program with runtime choices in the place of its products, and by name the kernels of each choice's first two
    ways, to show."""
    products = [s for s in program.steps if isinstance(s, Extern) and isinstance(s.target, Product)]
    if not products:
        return program, {}
    distinct = {flattened(s.target.kernel).key: s.target for s in products}
    device = products[0].target.kernel.device
    waiting = [emit_triton(k).code for p in distinct.values() for k in p.vendor.steps if isinstance(k, Kernel)]
    start_kernels_cuda(waiting, device, config)
    made: Made = {}
    names: set[str] = set()
    choices = {}
    for key, product in distinct.items():
        name = product.kernel.name
        while name in names:
            name += "_"
        names.add(name)
        choices[key] = choice(product, name, config, compile_program)
        shown = ["", *[w.name for w in choices[key].others[:1]]]
        made |= {f"{name}_{n}": code for way in shown for n, code in choices[key].parts[way].kernels.items()}
    steps = [
        replace(s, target=choices[flattened(s.target.kernel).key])
        if isinstance(s, Extern) and isinstance(s.target, Product)
        else s
        for s in program.steps
    ]
    return replace(program, steps=steps), made


def choice(product: Product, name: str, config: Config, compile_program: CompileProgram) -> Choice:
    """The product's ways on its device."""
    device = product.kernel.device
    found = templates(product.kernel, card_of(device))
    host = TemplateHost(product.fused(), found[0].emitted) if found else None
    cache, budget = budget_of(config)
    card = torch.cuda.get_device_name(device)
    key = content_key("product", flattened(product.kernel).key, card, repr([t.name for t in found]))
    known = cache.get(key)
    wanted = [t for t in found if known is None or t.name == known.decode()]
    ways = []
    for t in wanted:
        assert host is not None
        ways.append(Way(t.name, _later(host, load_later(t.emitted.code, device, config))))
    vendor = compile_program(plan(product.vendor), config)
    parts = {"": Parts(vendor.source, vendor.made)}
    if host is not None:
        parts |= {t.name: Parts(host.text, {host.kernel: t.emitted.code}) for t in wanted}
    exact = factor_dtype(product.kernel) is torch.float32
    return Choice(name, _positional(vendor.call), ways, key, cache, budget, exact, parts=parts)


def _positional(call: Callable[[list[Any]], Any]) -> Run:
    return lambda *args: call(list(args))


def _later(host: TemplateHost, wait: Callable[[float], Any]) -> Callable[[float], Run | None]:
    def ready(seconds: float) -> Run | None:
        kernel = wait(seconds)
        return None if kernel is None else host.bind(kernel)

    return ready


class TemplateHost:
    """The host function around a product's one kernel, whichever of its tilings."""

    def __init__(self, program: Program, emitted: Emitted) -> None:
        (kernel,) = [s for s in program.steps if isinstance(s, Kernel)]
        self.key = canonical(kernel).key
        order = list(emitted.buffers), [to_str(s) for s in emitted.sizes]
        self.writer = HostWriter(program, lambda _: order)
        self.text = self.writer.write()
        self.kernel = self.writer.kernels[self.key]
        self.code = compile(self.text, f"<braze host {program.name}>", "exec")

    def bind(self, kernel: Callable[..., None]) -> Run:
        """The function with a loaded kernel."""
        names = scope(self.writer, {self.key: kernel})
        exec(self.code, names)  # noqa: S102
        return _positional(names["call"])


def templates(kernel: Kernel, card: Card) -> list[Template]:
    """The product's tilings that are worth timing, those that fit it."""
    out = []
    for tile in tiles_for(shape_of(kernel), card, tile_rows(kernel)):
        try:
            out.append(Template(tile, emit_product(kernel, tile, card)))
        except Unsupported:
            continue
    order = [t.emitted.code.signature for t in out]
    return [t for t, s in zip(out, order) if s == order[0]]


def tile_rows(kernel: Kernel) -> int:
    """The rows that a tile must have to make the kernel's partial sums of columns; 0: any."""
    rows, n = kernel.x[-2].size, kernel.x[-1].size
    for i in kernel.body:
        if isinstance(i, Store) and i.mode == "sum":
            partial = i.buffer.type.numel
            assert isinstance(rows, int)
            return int(hint(rows * n) // hint(partial))
    return 0


def shape_of(kernel: Kernel) -> Shape:
    """Sizes as the cost model sees them."""
    *batch, m, n = [hint(a.size) for a in kernel.x]
    (k,) = kernel.r
    dtype = factor_dtype(kernel)
    return Shape(batch[0] if batch else 1, m, n, hint(k.size), dtype.itemsize)


def factor_dtype(kernel: Kernel) -> torch.dtype:
    """The dtype that the tensor cores multiply."""
    (total,) = [i for i in kernel.body if isinstance(i, Reduce)]
    left = total.value.args[0]  # type: ignore[attr-defined]
    return left.args[0].dtype if getattr(left, "fn", "") == "convert" else left.dtype  # type: ignore[no-any-return]
