"""Progress: a line on a terminal for a long compile, nothing for a short one, nothing in a pipe; per-stage logging."""

from __future__ import annotations

import io
import logging
import os
import pty
import subprocess
import sys
import time

import pytest
import torch

import braze
from braze.progress import Terminal, terminal

SLOW = """
import time, torch, braze
from braze.backends import registry
def slow(gm, inputs):
    time.sleep({seconds})
    return gm
braze.compile(lambda x: x + 1, backend=slow)(torch.ones(3))
"""


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_shows_the_innermost_stage_and_goes() -> None:
    out = Tty()
    t = Terminal(out, delay=0.05, every=0.02)
    t.enter("capture")
    t.enter("graph_0: fuse")
    time.sleep(0.2)
    t.leave()
    t.leave()
    text = out.getvalue()
    assert "braze compiles: graph_0: fuse" in text and text.endswith("\r\x1b[K")
    time.sleep(0.1)
    assert out.getvalue() == text


def test_a_short_compile_shows_nothing() -> None:
    out = Tty()
    t = Terminal(out, delay=5.0)
    t.enter("capture")
    t.leave()
    assert out.getvalue() == "" and not t.timer.is_alive() or t.done.is_set()


def test_only_a_terminal_gets_any() -> None:
    assert terminal(io.StringIO()) is None
    closed = io.StringIO()
    closed.close()
    assert terminal(closed) is None
    assert terminal(Tty()) is not None


def test_nothing_in_a_pipe() -> None:
    run = subprocess.run([sys.executable, "-c", SLOW.format(seconds=1.3)], capture_output=True, text=True, check=True)
    assert run.stdout == "" and "compiles" not in run.stderr


def test_on_a_real_terminal() -> None:
    main, side = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", SLOW.format(seconds=1.6)], stdout=side, stderr=side) as process:
        os.close(side)
        said = b""
        while True:
            try:
                got = os.read(main, 4096)
            except OSError:
                break
            if not got:
                break
            said += got
        assert process.wait() == 0
    os.close(main)
    assert b"braze compiles: graph_0: backend" in said and said.rstrip().endswith(b"\x1b[K")


def test_stages_log_with_levels_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("braze.fuse").setLevel(logging.DEBUG)
    try:
        braze.compile(lambda x: torch.relu(x).sum())(torch.randn(4))
    finally:
        logging.getLogger("braze.fuse").setLevel(logging.NOTSET)
    assert {r.name for r in caplog.records} == {"braze.fuse"}
