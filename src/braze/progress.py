"""What a compile is doing, on a terminal: one line that appears after a second and goes when the compile ends."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

DELAY = 1.0  # seconds before anything shows


class Terminal:
    """A line on a terminal with the innermost stage under way. ``enter`` and ``leave`` nest; a timer redraws it."""

    def __init__(self, out: TextIO, delay: float = DELAY, every: float = 0.2) -> None:
        self.out, self.delay, self.every = out, delay, every
        self.lock = threading.Lock()
        self.stages: list[str] = []
        self.start = 0.0
        self.shown = False
        self.timer: threading.Thread | None = None
        self.done = threading.Event()

    def enter(self, stage: str) -> None:
        with self.lock:
            self.stages.append(stage)
            if len(self.stages) == 1:
                self.start, self.done = time.perf_counter(), threading.Event()
                self.timer = threading.Thread(target=self._tick, args=(self.done,), daemon=True, name="braze-progress")
                self.timer.start()

    def leave(self) -> None:
        with self.lock:
            self.stages.pop()
            if not self.stages:
                self.done.set()
                if self.shown:
                    self._write("\r\x1b[K")
                self.shown = False

    def _tick(self, done: threading.Event) -> None:
        wait = self.delay
        while not done.wait(wait):
            with self.lock:
                if done.is_set() or not self.stages:
                    return
                took = time.perf_counter() - self.start
                self.shown = True
                self._write(f"\r\x1b[Kbraze compiles: {self.stages[-1]} ({took:.0f} s)")
            wait = self.every

    def _write(self, text: str) -> None:
        try:
            self.out.write(text)
            self.out.flush()
        except (OSError, ValueError):
            return


def terminal(out: TextIO | None = None) -> Terminal | None:
    """Progress on standard error where that is a terminal, else None: nothing goes into a pipe or a file."""
    out = out or sys.stderr
    try:
        return Terminal(out) if out is not None and out.isatty() else None
    except (ValueError, AttributeError):
        return None
