"""Options shared by all tests: --runslow, --update-golden, and the gpu marker's skip."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runslow", action="store_true", help="run the long suites too")
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files from what the stages print")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    no_gpu = pytest.mark.skip(reason="no CUDA device")
    slow = pytest.mark.skip(reason="slow; use --runslow")
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if item.get_closest_marker("slow") and not config.getoption("--runslow"):
            item.add_marker(slow)


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests never read or write the user's on-disk cache."""
    os.environ["BRAZE_CACHE_DIR"] = str(tmp_path_factory.mktemp("braze-cache"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Each test draws the same numbers in every run; BRAZE_TEST_SEED=n draws others, to find tight tolerances."""
    seed = int(os.environ.get("BRAZE_TEST_SEED", "0"))
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def _logging_is_put_back() -> Iterator[None]:
    """Libraries that a test uses switch loggers off; the tests after it read braze's."""
    loggers = [logging.getLogger(), logging.getLogger("braze")]
    before = [(x.level, x.disabled, x.propagate) for x in loggers], logging.root.manager.disable
    yield
    for logger, (level, disabled, propagate) in zip(loggers, before[0]):
        logger.setLevel(level)
        logger.disabled, logger.propagate = disabled, propagate
    logging.disable(before[1])


@pytest.fixture(autouse=True)
def _modes_are_put_back() -> Iterator[None]:
    """A test, or what it runs, that leaves a mode of torch switched fails itself, not the tests after it."""
    yield
    left = []
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        left.append("grad mode is off")
    if torch.is_autocast_enabled("cpu"):
        torch.set_autocast_enabled("cpu", False)
        left.append("autocast is on")
    if torch.is_anomaly_enabled():
        torch.set_anomaly_enabled(False)
        left.append("anomaly mode is on")
    assert not left, f"left behind: {', '.join(left)}"


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """``golden(name, text)``: equal to tests/golden/<name>, or rewrite it under --update-golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing; run with --update-golden"
        assert text == path.read_text(), f"{name} differs; run with --update-golden and read the diff"

    return check
