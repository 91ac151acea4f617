"""Ranks that are not alike: late compiles, deaths, different sizes, one cache."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ranks import Ranks


def test_a_rank_that_compiles_20_seconds_late(ranks2: Ranks) -> None:
    assert min(ranks2.run("agree_cases", "late", seconds=20.0)) >= 20.0


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_killed_rank_ends_the_others(world: int) -> None:
    """Its neighbours see the broken connection, others wait for the collective's timeout."""
    pool = Ranks(world, patience=40)
    try:
        pool.start()
        start = time.monotonic()
        answers = pool.answers("agree_cases", "dies", timeout=300, at=5)
        assert answers[1] == ("died", 9)
        for kind, text in [answers[0], *answers[2:]]:
            assert kind == "failed" and "gloo" in text.lower(), answers
        assert time.monotonic() - start < 250
    finally:
        pool.stop()


def test_a_rank_that_cannot_compile_runs_in_eager(ranks2: Ranks) -> None:
    first, second = ranks2.run("agree_cases", "fails")
    assert not first and any("no kernels on this rank" in w for w in second), (first, second)


def test_sizes_that_differ_between_ranks(ranks2: Ranks) -> None:
    ranks2.run("agree_cases", "differs")


def test_one_rank_compiles_for_all_on_a_machine(tmp_path: Path) -> None:
    pool = Ranks(2, env={"BRAZE_CACHE_DIR": str(tmp_path)})
    try:
        results = pool.run("agree_cases", "shared_cache", kind="cpu")
    finally:
        pool.stop()
    kernels = len([p for p in (tmp_path / "cpu").iterdir() if not p.name.startswith(".")])
    assert sum(written for written, _ in results) == kernels >= 2, results
    assert sum(hits for _, hits in results) == kernels, results
    try:  # the same program, started again: whoever wrote an entry, every rank finds it
        warm = pool.run("agree_cases", "shared_cache", kind="")
    finally:
        pool.stop()
    assert all(written == 0 and hits for written, hits in warm), warm
