"""The user's source with what became of each line: calls captured, graph breaks, recompiles, kernels."""

from __future__ import annotations

import ast
import linecache
from dataclasses import asdict, dataclass, field
from typing import Any

from braze.events import CompileLog
from braze.ir import Loc

from .steps import Side

CONTEXT = 3  # lines shown around one that stands outside of a function


@dataclass
class Line:
    """One line of a listing. ``calls``: captured torch calls by graph; ``notes``: (kind, text) of breaks and
    recompiles; ``kernels``: how many steps come from it."""

    number: int
    text: str
    calls: dict[str, int] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    kernels: int = 0
    seconds: float = 0.0


@dataclass
class Listing:
    """A part of a file: one function, or the lines around a place."""

    file: str
    name: str
    lines: list[Line]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def listings(log: CompileLog, sides: list[Side]) -> list[Listing]:
    """The functions that the log mentions, in order of their first captured call."""
    marks: dict[tuple[str, int], Line] = {}

    def at(file: str, number: int) -> Line:
        return marks.setdefault((file, number), Line(number, ""))

    for record in log.graphs:
        for node in record.graph.nodes:
            if node.op == "call" and node.loc is not None:
                line = at(node.loc.file, node.loc.line)
                line.calls[record.name] = line.calls.get(record.name, 0) + 1
    for kind, loc, text in _events(log):
        at(loc.file, loc.line).notes.append((kind, text))
    for side in sides:
        for step in side.steps:
            for file, number in step.lines:
                line = at(file, number)
                line.kernels += 1
                line.seconds += step.seconds / len(step.lines)
    return _arrange(marks)


def _events(log: CompileLog) -> list[tuple[str, Loc, str]]:
    out = []
    for b in log.breaks:
        if b.loc is not None:
            out.append(("break", b.loc, b.reason + (f". Remedy: {b.hint}" if b.hint else "")))
    for r in log.recompiles:
        if r.loc is not None:
            out.append(("recompile", r.loc, r.reason + (f". Remedy: {r.hint}" if r.hint else "")))
    return out


def _arrange(marks: dict[tuple[str, int], Line]) -> list[Listing]:
    out: list[Listing] = []
    for file in dict.fromkeys(f for f, _ in marks):
        text = linecache.getlines(file)
        spans = _functions("".join(text))
        groups: dict[tuple[int, int, str], None] = {}
        for number in (n for f, n in marks if f == file):
            inside = [s for s in spans if s[0] <= number <= s[1]]
            around = (max(1, number - CONTEXT), number + CONTEXT, "")
            groups[max(inside) if inside else around] = None
        for start, end, name in groups:
            lines = []
            for n in range(start, min(end, len(text)) + 1):
                line = marks.get((file, n), Line(n, ""))
                line.text = text[n - 1].rstrip("\n")
                lines.append(line)
            if lines:
                out.append(Listing(file, name, lines))
    return out


def _functions(text: str) -> list[tuple[int, int, str]]:
    """(first line, last line, qualified name) of the functions of a file."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    out = []

    def walk(node: ast.AST, path: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{path}.{child.name}" if path else child.name
                if not isinstance(child, ast.ClassDef):
                    out.append((child.lineno, child.end_lineno or child.lineno, name))
                walk(child, name)
            else:
                walk(child, path)

    walk(tree, "")
    return out
