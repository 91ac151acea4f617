"""Snippets by topic (``cases/``): each runs in eager and captured; results, effects, errors and breaks are compared."""

from __future__ import annotations

import ast
import importlib
import linecache
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "vm"), str(HERE / "cases")]
import world  # noqa: E402
from vm_harness import check  # noqa: E402

TOPICS = sorted(p.stem for p in (HERE / "cases").glob("cases_*.py"))
X = torch.arange(6.0).reshape(2, 3)
PARAMETERS = "x, y, n, items, d, s, obj, log"


def arguments() -> tuple[Any, ...]:
    """x, y: tensors; n: 3; items: [3, 1, 2]; d: a dict; s: a str; obj: a Box over a tensor; log: an empty list."""
    return X.clone(), X * 0.5 - 1, 3, [3, 1, 2], {"a": 1, "b": X + 1, "c": [1]}, "Hello, World", world.Box(X * 2), []


def source_of(snippet: str) -> str:
    """The function of a snippet: an expression is returned beside a tensor, a block is the body."""
    text = textwrap.dedent(snippet).strip("\n")
    try:
        ast.parse(text, mode="eval")
        text = f"return x + 1, ({text})"
    except SyntaxError:
        if not text.splitlines()[-1].startswith(("return ", "raise")):
            text += "\nreturn x * 2, r"
    return f"def f({PARAMETERS}):\n" + textwrap.indent(text, "    ") + "\n"


def collect() -> list[Any]:
    out = []
    for topic in TOPICS:
        module = importlib.import_module(topic)
        for breaks, snippets in module.CASES.items():
            for i, snippet in enumerate(snippets):
                first = snippet.strip().splitlines()[0][:50]
                out.append(pytest.param(snippet, breaks, id=f"{topic[6:]}-{breaks}-{i}-{first}"))
    return out


@pytest.mark.parametrize(("snippet", "breaks"), collect())
def test_case(snippet: str, breaks: Any) -> None:
    source = source_of(snippet)
    name = f"<case {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope = dict(vars(world))
    before = {k: list(v) if isinstance(v, list) else dict(v) for k, v in vars(world).items() if k in ("STACK", "TABLE")}
    exec(compile(source, name, "exec"), scope)
    try:
        check(scope["f"], *arguments(), breaks=None if breaks == "any" else breaks)
    finally:
        for k, v in before.items():
            getattr(world, k).clear()
            (getattr(world, k).extend if isinstance(v, list) else getattr(world, k).update)(v)
