"""Compiles Triton source to machine code: a worker process' main program, and the function that it runs.

Imports triton and nothing of braze or torch, so that a worker is up in the time that ``import triton`` takes.  Run as a
script it compiles a small kernel for the target in its argument, if there is one, and serves requests on its standard
input, one at a time, until the input closes: each message is a length (8 bytes, little-endian), JSON of that length,
and for an answer the binary after it.

A request: ``{"name", "source", "signature": [[argument, type]...], "constants": {name: int}, "num_warps", "num_stages",
"aligned", "divisible", "assertions", "target": "cuda:90"}``; the answer's JSON is the metadata (``shared``, ``name``,
``num_warps``, ...) or ``{"error": text}``.  With ``"until": "ptx"`` (or another of Triton's stages) the binary is that
stage's text.
"""

from __future__ import annotations

import json
import linecache
import signal
import struct
import sys
from contextlib import suppress
from typing import Any, BinaryIO

METADATA = ("name", "shared", "num_warps", "num_ctas", "global_scratch_size", "profile_scratch_size")


def load_function(name: str, source: str) -> Any:
    """The ``@triton.jit`` function of a module text. The text is registered under a file name of its own, because
    Triton reads a function's source through ``inspect``."""
    filename = f"<braze {name} {hash(source) & 0xFFFFFFFF:08x}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    scope: dict[str, Any] = {"__name__": filename, "__file__": filename}
    exec(compile(source, filename, "exec"), scope)  # noqa: S102
    return scope[name]


def gpu_target(target: str) -> Any:
    """ "cuda:90" or "hip:gfx942" as Triton's target."""
    from triton.backends.compiler import GPUTarget

    backend, arch = target.split(":")
    if backend == "cuda":
        return GPUTarget("cuda", int(arch), 32)
    return GPUTarget(backend, arch, 64 if arch.startswith("gfx9") else 32)


def compile_source(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """(metadata, binary) of one kernel. Drives the backend's stages itself: ``triton.compile`` would first hash the
    whole Triton installation and write every stage to its own cache."""
    from triton._C.libtriton import ir
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    target = gpu_target(request["target"])
    fn = load_function(request["name"], request["source"])
    signature = {k: t for k, t in request["signature"]}
    constants = dict(request["constants"])
    facts = dict(request["divisible"])
    if request["aligned"]:
        facts.update((k, 16) for k, t in request["signature"] if t[0] == "*")
    attrs = {(n,): [["tt.divisibility", facts[k]]] for n, (k, _) in enumerate(request["signature"]) if k in facts}
    signature.update(dict.fromkeys(constants, "constexpr"))
    src = ASTSource(fn, signature, constants, attrs)
    backend = make_backend(target)
    asked: dict[str, Any] = {"num_warps": request["num_warps"], "num_stages": request["num_stages"]}
    if request["assertions"]:
        asked.update(debug=True, sanitize_overflow=False)
    options = backend.parse_options(asked)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, src.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    metadata: dict[str, Any] = {"target": target, **options.__dict__}
    module = src.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    for name, stage in stages.items():
        module = stage(module, metadata)
        if name == request.get("until"):
            return {}, str(module).encode()
    return {k: metadata.get(k, 0) for k in METADATA}, bytes(module)


def configure() -> None:
    """No line tables in the machine code: three times smaller, and nobody steps through generated text."""
    from triton import knobs

    knobs.compilation.disable_line_info = True


def read_message(stream: BinaryIO) -> dict[str, Any] | None:
    """The next JSON message, None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    (n,) = struct.unpack("<q", head)
    message: dict[str, Any] = json.loads(stream.read(n))
    return message


def write_message(stream: BinaryIO, message: dict[str, Any], binary: bytes = b"") -> None:
    """A JSON message, with its binary."""
    text = json.dumps({**message, "size": len(binary)}).encode()
    stream.write(struct.pack("<q", len(text)) + text + binary)
    stream.flush()


def describe(error: BaseException | None) -> str:
    """An error and its causes, the innermost first: Triton's own message is about the caller."""
    lines = []
    while error is not None:
        lines.append(f"{type(error).__name__}: {error}")
        error = error.__cause__
    return "\n".join(reversed(lines))


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests until the input closes."""
    configure()
    while (request := read_message(source)) is not None:
        try:
            answer, binary = compile_source(request)
        except BaseException as e:  # noqa: BLE001 (any failure is the request's answer)
            answer, binary = {"error": describe(e)}, b""
        write_message(sink, answer, binary)


FIRST = """import triton
import triton.language as tl
from triton.language.extra import libdevice

@triton.jit
def first(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = libdevice.exp(tl.load(x + at))
    tl.store(y + at, v / tl.sum(v, 0))
"""


def first_request(target: str) -> dict[str, Any]:
    """A small kernel's."""
    kernel = {"name": "first", "source": FIRST, "signature": [["x", "*fp32"], ["y", "*fp32"]]}
    launch = {"constants": {"BLOCK": 1024}, "num_warps": 4, "num_stages": 1}
    return {**kernel, **launch, "aligned": True, "divisible": [], "assertions": False, "target": target}


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business; the closed input ends this one
    out = sys.stdout.buffer
    sys.stdout = sys.stderr  # what triton prints must not end up among the answers
    if len(sys.argv) > 1:
        configure()
        with suppress(Exception):  # what is wrong, the answers will say
            compile_source(first_request(sys.argv[1]))  # a process' first kernel takes 0.1 s more than others
    serve(sys.stdin.buffer, out)
