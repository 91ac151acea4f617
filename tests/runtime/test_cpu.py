"""Loading CPU kernels: the call from Python, its errors, lifetime of code, the cache, and no need of a C compiler."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from braze.config import Config
from braze.runtime import cpu
from braze.runtime.cpu import Source, load_kernels

TEXT = """
define void @work(ptr %args, i64 %begin, i64 %end) nounwind {
  %a1 = getelementptr i64, ptr %args, i64 1
  %a2 = getelementptr i64, ptr %args, i64 2
  %p = load ptr, ptr %args
  %q = load ptr, ptr %a1
  %n = load i64, ptr %a2
  %x = load float, ptr %p
  %f = sitofp i64 %n to float
  %y = fmul float %x, %f
  store float %y, ptr %q
  ret void
}
"""
SCALE = Source("scale", TEXT, tensors=2, sizes=1, units=1, parallel=False, long=False)


def _config(tmp_path: Path, **changes: object) -> Config:
    return replace(Config(), cache_dir=str(tmp_path), **changes)


def test_a_kernel_is_a_function_of_tensors_and_sizes(tmp_path: Path) -> None:
    (f,) = load_kernels([SCALE], _config(tmp_path))
    x, y = torch.tensor([3.0]), torch.zeros(1)
    assert f(x, y, 4) is None and y.item() == 12.0
    assert f.__name__ == "scale"
    f(torch.nn.Parameter(x), torch.arange(4.0)[2:], 1)  # a subclass, and a view with a storage offset
    base = torch.zeros(4)
    f(x, base[2:], 5)
    assert base.tolist() == [0, 0, 15, 0]


@pytest.mark.parametrize("args", [(), (torch.zeros(1),), (torch.zeros(1), 3, 1), (None, torch.zeros(1), 1)], ids=str)
def test_wrong_calls_raise(tmp_path: Path, args: tuple[object, ...]) -> None:
    (f,) = load_kernels([SCALE], _config(tmp_path))
    with pytest.raises(TypeError, match="wrong arguments"):
        f(*args)


def test_calls_do_not_leak_references(tmp_path: Path) -> None:
    (f,) = load_kernels([SCALE], _config(tmp_path))
    x, y = torch.tensor([3.0]), torch.zeros(1)
    before = sys.getrefcount(x), sys.getrefcount(y)
    for _ in range(1000):
        f(x, y, 2)
    assert (sys.getrefcount(x), sys.getrefcount(y)) == before


def test_code_lives_as_long_as_its_function(tmp_path: Path) -> None:
    (f,) = load_kernels([SCALE], _config(tmp_path))
    alive = weakref.ref(f.__self__.tracker)
    call = f.__call__
    del f
    gc.collect()
    y = torch.zeros(1)
    call(torch.ones(1), y, 7)
    assert y.item() == 7 and alive() is not None
    del call
    gc.collect()
    assert alive() is None


def test_objects_come_from_the_disk_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(tmp_path)
    load_kernels([SCALE], config)
    files = [p for p in (tmp_path / "cpu").iterdir()]
    assert files

    def fail(*_: object) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr(cpu, "compile_text", fail)
    (f,) = load_kernels([SCALE], config)
    y = torch.zeros(1)
    f(torch.ones(1), y, 2)
    assert y.item() == 2
    assert load_kernels([SCALE], config)[0] is f  # alive: nothing is linked again
    del f
    for p in files:
        p.write_bytes(p.read_bytes()[:-3])
    with pytest.raises(AssertionError, match="compiled again"):
        load_kernels([SCALE], config)
    monkeypatch.undo()
    load_kernels([SCALE], config)[0](torch.ones(1), y, 9)
    assert y.item() == 9


def test_equal_sources_share_one_function(tmp_path: Path) -> None:
    f, g, h = load_kernels([SCALE, SCALE, replace(SCALE, name="other")], _config(tmp_path, disk_cache=False))
    assert f is g and h.__name__ == "other"


def test_a_bad_module_says_what_llvm_said(tmp_path: Path) -> None:
    bad = replace(SCALE, text="define void @work(")
    with pytest.raises(RuntimeError, match="parsing error"):
        load_kernels([bad], _config(tmp_path))


def test_many_modules_compile_in_threads(tmp_path: Path) -> None:
    sources = [replace(SCALE, text=TEXT.replace("fmul float %x, %f", f"fadd float %x, {float(k)}")) for k in range(12)]
    results = []

    def run() -> None:
        for k, f in enumerate(load_kernels(sources, _config(tmp_path, disk_cache=False))):
            y = torch.zeros(1)
            f(torch.ones(1), y, 0)
            results.append(y.item() == k + 1)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 36 and all(results)


COUNT = """
define void @work(ptr %args, i64 %begin, i64 %end) nounwind {
  %p = load ptr, ptr %args
  %old = atomicrmw add ptr %p, i64 1 seq_cst
  ret void
}
"""


def test_a_kernel_runs_on_torch_threads(tmp_path: Path) -> None:
    """Each thread calls the work function once with its share of the units."""
    source = Source("count", COUNT, tensors=1, sizes=0, units=64, parallel=True, long=True)
    if not cpu.host_target().openmp:
        pytest.skip("torch has no OpenMP here")

    def calls(f: cpu.Kernel) -> int:
        t = torch.zeros(1, dtype=torch.int64)
        f(t)
        return int(t.item())

    (f,) = load_kernels([source], _config(tmp_path))
    (fixed,) = load_kernels([source], _config(tmp_path, threads=2))
    (few,) = load_kernels([replace(source, units=1)], _config(tmp_path))
    before = torch.get_num_threads()
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            found: list[int] = []
            other = threading.Thread(target=lambda found=found: found.append(calls(f)))
            other.start()
            other.join()
            assert (calls(f), found, calls(fixed), calls(few)) == (n, [n], 2, 1)
    finally:
        torch.set_num_threads(before)


def test_no_c_compiler_is_needed(tmp_path: Path) -> None:
    """A fresh process with an empty PATH compiles and runs a kernel."""
    code = (
        "import torch, shutil\n"
        "assert not any(shutil.which(c) for c in ('cc', 'gcc', 'g++', 'c++', 'clang'))\n"
        "from test_cpu import SCALE\n"
        "from braze.runtime.cpu import load_kernels\n"
        "y = torch.zeros(1)\n"
        "load_kernels([SCALE])[0](torch.ones(1), y, 6)\n"
        "print(y.item())\n"
    )
    env = {k: v for k, v in os.environ.items() if k not in ("PATH", "CC", "CXX")}
    env |= {"PATH": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent), "BRAZE_CACHE_DIR": str(tmp_path)}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert out.stdout.strip() == "6.0", out.stderr


def test_the_host_is_described() -> None:
    t = cpu.host_target()
    assert t.vector_bits in (128, 256, 512) and t.tensor_offset > 0
    assert t.openmp == cpu.has_symbol("GOMP_parallel")
    assert not cpu.has_symbol("no_such_symbol_anywhere")
