"""Compile workers: processes that import triton alone, answers remembered in the process and on disk."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton")

from braze.runtime.cache import DiskCache
from braze.runtime.cuda_compile import CompileError, Compiler, Pool, request, triton_version, worker_count
from braze.runtime.cuda_kernel import GridDim, Launch, TritonKernel
from braze.runtime.cuda_worker import compile_source, first_request, load_function

SOURCE = """import triton
import triton.language as tl


@triton.jit
def twice(a, b, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(b + x, tl.load(a + x) * 2.0)
"""
TWICE = TritonKernel(
    "twice", SOURCE, (("a", "*fp32"), ("b", "*fp32")), (GridDim(4096, "XBLOCK"),), Launch((("XBLOCK", 256),), 4, 1)
)


@pytest.fixture(scope="module")
def workers():
    pool = Pool(2)
    yield pool
    pool.close()


def test_compiles_once_and_again_from_disk(workers: Pool, tmp_path: Path) -> None:
    first = Compiler("cuda:90", DiskCache(tmp_path), workers)
    a, b = first.compile([TWICE, TWICE])
    assert a is b and a.image[:4] == b"\x7fELF" and a.name == "twice" and a.threads == 128 and a.shared == 0
    assert first.compiled == 1
    again = Compiler("cuda:90", DiskCache(tmp_path), workers)
    assert again.compile([TWICE])[0] == a and again.compiled == 0


def test_another_launch_is_another_entry(workers: Pool, tmp_path: Path) -> None:
    make = Compiler("cuda:90", DiskCache(tmp_path), workers)
    other = TWICE.with_launch(Launch((("XBLOCK", 512),), 8, 1))
    assert len({f.result().image for f in map(make.submit, (TWICE, other, TWICE.unaligned()))}) == 3
    assert make.compiled == 3


def test_a_damaged_entry_is_rebuilt(workers: Pool, tmp_path: Path) -> None:
    Compiler("cuda:90", DiskCache(tmp_path), workers).compile([TWICE])
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(entry.read_bytes()[:-3])
    make = Compiler("cuda:90", DiskCache(tmp_path), workers)
    assert make.compile([TWICE])[0].image[:4] == b"\x7fELF"
    assert make.compiled == 1


def test_an_error_names_the_kernel_and_triton_s_reason(workers: Pool) -> None:
    wrong = replace(TWICE, source=SOURCE.replace("* 2.0", "* undefined"))
    make = Compiler("cuda:90", DiskCache(None), workers)
    with pytest.raises(CompileError, match="(?s)twice.*undefined is not defined"):
        make.compile([wrong])
    with pytest.raises(CompileError):  # and is not remembered as done
        make.compile([wrong])
    assert make.compile([TWICE])[0].name == "twice"


def test_a_worker_gets_ready_for_its_target() -> None:
    assert compile_source(first_request("cuda:90"))[1][:4] == b"\x7fELF"
    pool = Pool(1)
    for target in ("cuda:90", "nothing:0"):  # what cannot be got ready for is no reason to fail
        pool.warm(1, target)
        assert Compiler("cuda:90", DiskCache(None), pool).compile([TWICE])[0].name == "twice"
        pool.close()
        pool = Pool(1)


def test_a_worker_that_dies_fails_its_job_alone(tmp_path: Path) -> None:
    killer = replace(TWICE, source="import os\nos._exit(3)\n")
    pool = Pool(1)
    make = Compiler("cuda:90", DiskCache(None), pool)
    with pytest.raises(CompileError, match="died"):
        make.compile([killer])
    assert make.compile([TWICE])[0].name == "twice"
    pool.close()


def test_workers_do_not_import_torch(workers: Pool) -> None:
    probe = replace(TWICE, source="import sys\nraise ValueError(f\"torch is {'torch' in sys.modules}\")\n")
    make = Compiler("cuda:90", DiskCache(None), workers)
    with pytest.raises(CompileError, match="torch is False"):
        make.compile([probe])


def test_processes_end_with_the_pool() -> None:
    pool = Pool(2)
    pool.submit(request(TWICE, "cuda:90")).result()
    processes = [p.process for p in pool.processes]
    assert processes
    pool.close()
    assert all(p.poll() is not None for p in processes)


def test_in_process_compile_matches(workers: Pool) -> None:
    answer, image = compile_source(request(TWICE, "cuda:90"))
    assert answer["name"] == "twice" and image[:4] == b"\x7fELF"


def test_load_function_reads_its_own_text() -> None:
    fn = load_function("twice", SOURCE)
    assert "tl.load(a + x) * 2.0" in fn.src


def test_version_without_import() -> None:
    assert triton_version().split(".")[0].isdigit()


def test_worker_count() -> None:
    from braze.config import Config

    assert worker_count(Config(compile_workers=3)) == 3 and worker_count(Config()) >= 1


def test_programs() -> None:
    dynamic = replace(TWICE, grid=(GridDim("n", "XBLOCK"), GridDim(3, "")))
    assert dynamic.programs({"n": 257}) == 6 and TWICE.programs() == 16 and dynamic.programs({"n": 0}) == 0


def test_the_compiler_module_imports_no_triton() -> None:
    """A warm start pays for no Triton import."""
    import subprocess

    code = "import sys, braze.runtime.cuda_compile, braze.runtime.cuda_launch; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
