"""CPU kernels at run time: what the host can do, LLVM IR text to machine code, machine code to Python callables.

``load_kernels(sources)`` takes modules of LLVM IR text (what they define: ``cpu_entry``) and gives one Python
function a module, called with tensors and sizes.  Object code is cached on disk by content.  A function keeps its
machine code alive, and nothing else does.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from braze.config import Config
from braze.errors import Unsupported

from .cache import DiskCache, content_key
from .cpu_entry import LONG, PARALLEL, THREADS_FUNCTION, descriptor, entry_text

CODEGEN_LEVEL = 2
Kernel = Callable[..., None]


@dataclass(frozen=True)
class Target:
    """The machine that code is made for. ``vector_bits`` is the width of a register; ``flags`` its enabled features;
    ``vector_math`` the SLEEF functions that torch exports; ``openmp``: GOMP_parallel is there;
    ``tensor_offset`` the byte offset of the TensorImpl pointer in a tensor's PyObject (0: unknown); ``last_cache`` the
    bytes of the last level of cache (0: unknown)."""

    triple: str
    cpu: str
    features: str
    vector_bits: int
    flags: frozenset[str]
    vector_math: frozenset[str]
    openmp: bool
    tensor_offset: int
    llvm_version: int
    last_cache: int = 0

    @property
    def key(self) -> str:
        return f"{self.triple} {self.cpu} {self.features} {self.tensor_offset} {self.openmp} {self.last_cache}"


@lru_cache(maxsize=1)
def host_target() -> Target:
    """The running machine."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    flags = frozenset(name for name, on in features.items() if on)
    return Target(
        triple=llvm.get_process_triple(),
        cpu=llvm.get_host_cpu_name(),
        features=features.flatten(),
        vector_bits=vector_bits(flags),
        flags=flags,
        vector_math=frozenset(n for n in _sleef_names() if _address(n) is not None),
        openmp=all(_address(n) is not None for n in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")),
        tensor_offset=_tensor_offset(),
        llvm_version=llvm.llvm_version_info[0],
        last_cache=_last_cache(),
    )


def _last_cache() -> int:
    """Bytes of the largest cache that the first core uses; 0 where the system does not say."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        found = re.fullmatch(r"(\d+)([KM]?)", path.read_text().strip())
        if found:
            sizes.append(int(found[1]) << {"": 0, "K": 10, "M": 20}[found[2]])
    return max(sizes)


def vector_bits(flags: frozenset[str]) -> int:
    """Width of the widest vector register that code should use."""
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return 512
    return 256 if "avx2" in flags else 128


def _tensor_offset() -> int:
    """Where a tensor's PyObject holds its TensorImpl pointer, found by looking."""
    t = torch.empty(0)
    want = t._cdata
    for offset in range(16, 40, 8):
        if ctypes.c_void_p.from_address(id(t) + offset).value == want:
            return offset
    return 0


_SLEEF = (
    "exp2 exp10 expm1 log2 log10 log1p sin cos tan asin acos atan tanh atanh erf erfc exp log "
    "pow atan2 lgamma nextafter"
).split()


def _sleef_names() -> list[str]:
    accuracy = {"erfc": "_u15", "nextafter": ""}
    shapes = ("f16", "f8", "f4", "d8", "d4", "d2")
    names = [f"Sleef_{f}{s}{accuracy.get(f, '_u10')}" for f in _SLEEF for s in shapes]
    return names + [f"Sleef_{f}{s}_u35" for f in ("sin", "cos") for s in shapes[:3]]


@lru_cache(maxsize=1)
def _libraries() -> list[Any]:
    """Libraries that the process has already loaded and that kernels may call, most specific first."""
    folder = Path(torch.__file__).parent / "lib"
    paths = [p for p in sorted(folder.glob("libtorch_cpu*")) if p.suffix in (".so", ".dylib", ".dll")]
    paths += _loaded_openmp()
    libraries: list[Any] = []
    for path in paths:
        try:
            libraries.append(ctypes.CDLL(str(path)))
        except OSError:
            continue
    libraries += [ctypes.pythonapi, ctypes.CDLL(None)]
    return libraries


def _loaded_openmp() -> list[Path]:
    """The OpenMP runtime that torch loaded (a second runtime would start a second pool of threads)."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    found = dict.fromkeys(re.findall(r"(/\S*/lib(?:gomp|iomp5|omp)[^/\s]*\.so\S*)", maps))
    return sorted(map(Path, found), key=lambda p: "torch" not in str(p))


@lru_cache(maxsize=4096)
def _address(name: str) -> int | None:
    """Address of an external function or object, None when no library has it."""
    if name == "_Py_NoneStruct":
        return id(None)
    if name == "braze_tensor_type":
        return id(torch.Tensor)
    if name == "braze_parameter_type":
        return id(torch.nn.Parameter)
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            continue
    return None


def has_symbol(name: str) -> bool:
    """True when generated code may call this external function."""
    return _address(name) is not None


# -- text to object code


class _Compiler:
    """An LLVM context and target machine of one thread. The lock of llvmlite is not taken: nothing is shared."""

    def __init__(self, target: Target, level: int) -> None:
        import llvmlite.binding as llvm

        self.llvm = llvm
        self.machine = llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, features=target.features, opt=level, jit=True, reloc="pic", codemodel="small"
        )

    def compile(self, text: str) -> bytes:
        """Object code of a module. RuntimeError with LLVM's message when the text is wrong (a bug in a generator)."""
        module = self.llvm.parse_assembly(text, self.llvm.create_context())
        try:
            return bytes(self.machine.emit_object(module))
        finally:
            module.close()

    def assembly(self, text: str) -> str:
        module = self.llvm.parse_assembly(text, self.llvm.create_context())
        return str(self.machine.emit_assembly(module))


_local = threading.local()


def compile_text(text: str, target: Target, level: int = CODEGEN_LEVEL) -> bytes:
    """Object code of one module."""
    compilers = _local.__dict__.setdefault("compilers", {})
    key = (target, level)
    if key not in compilers:
        compilers[key] = _Compiler(target, level)
    return bytes(compilers[key].compile(text))


def assembly(text: str, target: Target | None = None) -> str:
    """Assembler text of a module, to read."""
    return _Compiler(target or host_target(), CODEGEN_LEVEL).assembly(text)


# -- object code to callables


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


_METH_FASTCALL = 0x80
_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.restype = ctypes.py_object
_new_function.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]


class LoadedCode(bytes):
    """A kernel's descriptor for ``@call``, and what must live as long as it: machine code and method definition."""

    tracker: Any
    method: _MethodDef

    def function(self, name: str, entry: int) -> Kernel:
        self.method = _MethodDef(name.encode(), entry, _METH_FASTCALL, None)
        made: Kernel = _new_function(ctypes.addressof(self.method), self, "braze")
        return made


class _Linker:
    """The process-wide JIT linker."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        target = host_target()
        self.llvm = llvm
        machine = llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, features=target.features, opt=1, jit=True, reloc="pic", codemodel="small"
        )
        self.jit = llvm.create_lljit_compiler(machine, use_jit_link=True)
        self.count = 0
        self.lock = threading.Lock()

    def link(self, obj: bytes, imports: Sequence[str], exports: Sequence[str], name: str) -> Any:
        """Load object code; the result gives the addresses of ``exports`` and keeps the code alive."""
        builder = self.llvm.JITLibraryBuilder().add_object_img(obj).add_current_process()
        for symbol in exports:
            builder.export_symbol(symbol)
        for symbol in imports:
            address = _address(symbol)
            if address is None:
                raise RuntimeError(f"kernel {name} calls {symbol}, which no loaded library has")
            builder.import_symbol(symbol, address)
        with self.lock:
            self.count += 1
            return builder.link(self.jit, f"braze{self.count}")


@lru_cache(maxsize=1)
def _linker() -> _Linker:
    return _Linker()


@lru_cache(maxsize=8)
def _object_cache(folder: Path | None) -> DiskCache:
    return DiskCache(None if folder is None else folder / "cpu")


@dataclass(frozen=True)
class Source:
    """A kernel's module of LLVM IR text (see ``cpu_entry``) and how to call it. ``units``: how many units of work
    there are, -1 when the module's ``@units`` says so."""

    name: str
    text: str
    tensors: int
    sizes: int
    units: int
    parallel: bool
    long: bool


def imports_of(text: str) -> list[str]:
    """External names that a module declares (LLVM's own intrinsics apart)."""
    names = re.findall(r"^(?:declare [^@\n]*@|@(?=\w+ = external))([\w.]+)", text, re.MULTILINE)
    return [n for n in names if not n.startswith("llvm.")]


def load_kernels(sources: Sequence[Source], config: Config | None = None, target: Target | None = None) -> list[Kernel]:
    """One Python function a source, in order: alive in this process, from the disk cache, or compiled. ``target``: the
    machine to compile for, when it should be less than the running one."""
    config = config or Config.from_env()
    pending = {s: prepare(s, config, target) for s in dict.fromkeys(sources)}
    done = {s: p.kernel() for s, p in pending.items()}
    return [done[s] for s in sources]


_LOADED: weakref.WeakValueDictionary[tuple[str, Source, int], Any] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class Pending:
    """A kernel whose machine code is being made on another thread."""

    source: Source
    key: str
    config: Config
    loaded: Kernel | None
    obj: Future[bytes] | None

    def kernel(self) -> Kernel:
        """Wait for it and load it. RuntimeError with LLVM's message when the text is wrong (a generator's bug)."""
        if self.loaded is not None:
            return self.loaded
        assert self.obj is not None
        made = _load(_linker(), _entry(self.config), self.obj.result(), self.source, self.config.threads)
        _LOADED[self.key, self.source, self.config.threads] = made
        return made


def prepare(source: Source, config: Config, target: Target | None = None) -> Pending:
    """Start making a kernel's machine code."""
    target = target or host_target()
    key = _key(source.text, target)
    loaded = _LOADED.get((key, source, config.threads))
    if loaded is not None:
        return Pending(source, key, config, loaded, None)
    cache = _object_cache(config.cache_path if config.disk_cache else None)
    return Pending(source, key, config, None, _worker().submit(_object, source.text, target, cache, key))


_WORKERS: dict[int, ThreadPoolExecutor] = {}  # by process: a fork does not inherit threads


def _worker() -> ThreadPoolExecutor:
    """One thread: llvmlite lets only one into LLVM at a time, but Python runs on meanwhile."""
    if os.getpid() not in _WORKERS:
        _WORKERS[os.getpid()] = ThreadPoolExecutor(1, "braze-llvm")
    return _WORKERS[os.getpid()]


def _load(linker: _Linker, entry: int, obj: bytes, source: Source, threads: int) -> Kernel:
    computed = source.units < 0
    tracker = linker.link(obj, imports_of(source.text), ["work", "units"] if computed else ["work"], source.name)
    flags = (PARALLEL if source.parallel else 0) | (LONG if source.long else 0)
    units_function = tracker["units"] if computed else 0
    counts = (source.units, source.tensors, source.sizes)
    code = LoadedCode(descriptor(tracker["work"], units_function, *counts, flags, threads))
    code.tracker = tracker
    return code.function(source.name, entry)


_ENTRY: list[Any] = []  # the linked entry module: code of the process, never unloaded


def _entry(config: Config) -> int:
    """Address of ``@call``."""
    if not _ENTRY:
        target = host_target()
        if target.tensor_offset == 0:
            raise Unsupported("this torch version lays tensors out in a way that compiled CPU kernels do not know")
        cache = _object_cache(config.cache_path if config.disk_cache else None)
        threads = has_symbol(THREADS_FUNCTION)
        text = entry_text(target.triple, target.tensor_offset, bytes.__basicsize__ - 1, target.openmp, threads)
        obj = _object(text, target, cache, _key(text, target))
        _ENTRY.append(_linker().link(obj, imports_of(text), ["call"], "entry"))
    return int(_ENTRY[0]["call"])


def _key(text: str, target: Target) -> str:
    return content_key(text, target.key, versions(), str(CODEGEN_LEVEL))


def _object(text: str, target: Target, cache: DiskCache, key: str) -> bytes:
    """Object code of a module, from the cache where it has it."""
    found = cache.get(key)
    if found is None:
        with cache.exclusive(key) as found:
            if found is None:
                found = compile_text(text, target)
                cache.put(key, found)
    return found


@lru_cache(maxsize=1)
def versions() -> str:
    """Of what makes machine code and what it calls."""
    import llvmlite

    return f"llvmlite {llvmlite.__version__} torch {torch.__version__}"
