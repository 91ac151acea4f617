"""GPU kernels at run time: compiled by ``cuda_compile``, loaded into the driver here, launched by ``cuda_launch``.

``start_kernels_cuda(kernels, device)`` begins to compile and returns at once; ``load_kernels_cuda`` gives the callables
``f(*tensors, *integers)``, which launch on the tensors' device in torch's current stream.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

import torch

from braze.config import Config
from braze.errors import Unsupported

from .cache import DiskCache, content_key
from .cuda_compile import Binary, Compiler, compiler, pool, worker_count
from .cuda_kernel import TritonKernel, Unaligned
from .cuda_launch import arguments, fast_function
from .cuda_tune import Budget, Tuned

logger = logging.getLogger("braze")
Kernel = Callable[..., None]
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_STATIC_LIMIT = 48 * 1024  # bytes of shared memory that need no asking


class Driver:
    """The CUDA driver through ctypes: what loading and launching need. RuntimeError for a failing call."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def call(self, name: str, *args: Any) -> None:
        code = getattr(self.library, name)(*args)
        if code != 0:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{name} failed: {(text.value or b'?').decode()} (CUresult {code})")

    def address(self, name: str) -> int:
        """The entry point of a driver function."""
        return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0

    def context(self) -> int:
        """The current context, 0 where this thread has none."""
        out = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(out))
        return out.value or 0

    def enter(self, index: int) -> int:
        """Give this thread the device's primary context if it has none (autograd's threads start without one), and
        return the current one."""
        if not self.context():
            primary = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(primary), index)
            self.call("cuCtxSetCurrent", primary)
        return self.context()

    def load(self, binary: Binary) -> int:
        """A kernel's function handle in the current context."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), binary.image)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, binary.name.encode())
        if binary.shared > _STATIC_LIMIT:
            self.call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, ctypes.c_int(binary.shared))
        return function.value or 0

    def launch(
        self, function: int, programs: int, binary: Binary, stream: int, values: Sequence[int], scratch: int = 0
    ) -> None:
        """Run ``programs`` programs with these arguments (the two scratch pointers are added)."""
        slots = [ctypes.c_int64(v) for v in (*values, scratch, 0)]
        params = (ctypes.c_void_p * len(slots))(*(ctypes.addressof(s) for s in slots))
        one, threads, shared = 1, binary.threads, binary.shared
        self.call(
            "cuLaunchKernel", ctypes.c_void_p(function), programs, one, one, threads, one, one, shared,
            ctypes.c_void_p(stream), params, None,
        )  # fmt: skip


@lru_cache(maxsize=1)
def driver() -> Driver:
    """The process' CUDA driver. Unsupported where there is none."""
    try:
        return Driver(ctypes.CDLL("libcuda.so.1" if torch.version.cuda else "missing"))
    except OSError as e:
        raise Unsupported(
            f"no CUDA driver: {e}", hint="GPU kernels need an NVIDIA driver; AMD launches are not there yet"
        ) from e


@lru_cache(maxsize=1)
def _stream_getter() -> tuple[int, Any]:
    """torch's C function that gives a device's current stream, and its library."""
    from pathlib import Path

    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
    return ctypes.cast(library.aoti_torch_get_current_cuda_stream, ctypes.c_void_p).value or 0, library


@lru_cache(maxsize=16)
def target(index: int) -> str:
    """A device's compile target, such as "cuda:90"."""
    major, minor = torch.cuda.get_device_capability(index)
    return f"cuda:{10 * major + minor}"


class Loaded:
    """A kernel on one device: its function handle, and the slow path of its launcher."""

    def __init__(self, kernel: TritonKernel, index: int, make: Compiler, binary: Binary) -> None:
        self.kernel, self.index, self.make, self.binary = kernel, index, make, binary
        self.lock = threading.Lock()
        self.other: Loaded | None = None  # the variant for unaligned pointers
        with torch.cuda.device(index):
            self.context = driver().enter(index)
            self.function = driver().load(binary)

    def fields(self) -> dict[str, int]:
        """The launch record's entries."""
        return {
            "function": self.function,
            "context": self.context,
            "threads": self.binary.threads,
            "shared": self.binary.shared,
            "device": self.index,
            "alignment": 15 if self.kernel.aligned else 0,
            "launch": driver().address("cuLaunchKernel"),
            "current": driver().address("cuCtxGetCurrent"),
            "stream": _stream_getter()[0],
        }

    def __call__(self, *args: Any) -> None:
        """Launch from Python: unaligned pointers, foreign threads, subclasses of Tensor, and the driver's errors."""
        values, integers = arguments(self.kernel, args)
        if self.kernel.aligned and any(v & 15 for v in values[: self.kernel.pointers]):
            self.unaligned()(*args)
            return
        programs = self.kernel.programs(integers)
        if programs > 2**31 - 1:
            raise Unsupported(f"{self.kernel.name} needs {programs} programs, more than a launch may have")
        if programs:
            with torch.cuda.device(self.index):
                driver().enter(self.index)
                stream = torch.cuda.current_stream(self.index).cuda_stream
                wanted = programs * self.binary.scratch
                scratch = torch.empty(wanted, dtype=torch.uint8, device="cuda") if wanted else None
                at = 0 if scratch is None else scratch.data_ptr()
                driver().launch(self.function, programs, self.binary, stream, values, at)

    def unaligned(self) -> Loaded:
        """The variant that assumes no alignment, compiled when first met."""
        if self.binary.scratch:
            raise Unaligned(self.kernel.name)
        with self.lock:
            if self.other is None:
                code = self.kernel.unaligned()
                self.other = Loaded(code, self.index, self.make, self.make.submit(code).result())
            return self.other


_LOADED: dict[tuple[TritonKernel, int], Kernel] = {}
_LOCK = threading.Lock()


def warm_up(config: Config | None = None, count: int = 16) -> None:
    """Start up to ``count`` compile processes before there is anything to compile: they import triton meanwhile."""
    known = torch.cuda.is_available()
    pool(worker_count(config or Config.from_env())).warm(count, target(torch.cuda.current_device()) if known else "")


def start_kernels_cuda(
    kernels: Sequence[TritonKernel], device: torch.device | int, config: Config | None = None
) -> list[Future[Binary]]:
    """Begin to compile the kernels for a device, in parallel."""
    make = compiler(target(_index(device)), config or Config.from_env())
    return [make.submit(k) for k in kernels]


def load_kernels_cuda(
    kernels: Sequence[TritonKernel], device: torch.device | int, config: Config | None = None
) -> list[Kernel]:
    """One callable a kernel, in order. CompileError for a kernel that Triton refuses."""
    index, config = _index(device), config or Config.from_env()
    make = compiler(target(index), config)
    waiting = [make.submit(k) for k in kernels]
    loaded = [_load(k, index, make, f.result()) for k, f in zip(kernels, waiting)]
    if config.max_autotune:
        return [_tuned(k, f, index, make, config) for k, f in zip(kernels, loaded)]
    return loaded


def load_later(kernel: TritonKernel, device: torch.device | int, config: Config) -> Callable[[float], Kernel | None]:
    """Begin to compile a kernel that may fail. The result waits up to so many seconds for the callable; None where it
    is not ready by then, was refused, or asks for more than the card has."""
    index = _index(device)
    make = compiler(target(index), config)
    future = make.submit(kernel)

    def wait(seconds: float) -> Kernel | None:
        try:
            return _load(kernel, index, make, future.result(timeout=seconds))
        except (RuntimeError, TimeoutError) as e:
            logger.debug("%s: %s", kernel.name, e)
            return None

    return wait


@lru_cache(maxsize=4)
def budget_of(config: Config) -> tuple[DiskCache, Budget]:
    """What tuning shares: the memory of its choices and the seconds that are left."""
    folder = config.cache_path / "tuned" if config.disk_cache else None
    return DiskCache(folder), Budget(config.autotune_seconds)


def _tuned(kernel: TritonKernel, first: Kernel, index: int, make: Compiler, config: Config) -> Kernel:
    """The kernel that times its candidates when it is first called."""
    if not kernel.candidates:
        return first
    others = [kernel.with_launch(c) for c in kernel.candidates]
    waiting = [make.submit(k) for k in others]

    def options() -> list[Kernel]:
        return [first, *(_load(k, index, make, f.result()) for k, f in zip(others, waiting) if f.exception() is None)]

    cache, budget = budget_of(config)
    key = content_key(kernel.key(make.target), torch.cuda.get_device_name(index), repr(kernel.candidates))
    return Tuned(kernel, options, key, cache, budget)


def _load(kernel: TritonKernel, index: int, make: Compiler, binary: Binary) -> Kernel:
    with _LOCK:
        found = _LOADED.get((kernel, index))
        if found is None:
            loaded = Loaded(kernel, index, make, binary)
            slow: Kernel = loaded
            found = _LOADED[kernel, index] = slow if binary.scratch else fast_function(kernel, loaded.fields(), loaded)
        return found


def _index(device: torch.device | int) -> int:
    if isinstance(device, int):
        return device
    return torch.cuda.current_device() if device.index is None else device.index
