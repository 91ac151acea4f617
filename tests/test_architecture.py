"""The house rules, checked on the source: import direction, forbidden imports, file and function caps."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "braze"
FILES = sorted(SRC.rglob("*.py"))

# A package may import the ones before it. Equal rank: no import of each other.
RANK = {
    "errors": 0,
    "config": 1,
    "ir": 2,
    "events": 3,
    "fake": 4,
    "prims": 5,
    "autograd": 6,
    "capture": 6,
    "runtime": 7,
    "custom": 8,
    "inductor.loops": 8,
    "inductor.fuse": 9,
    "inductor.codegen": 10,
    "inductor": 11,
    "backends": 12,
    "progress": 4,
    "pipeline": 13,
    "api": 14,
    "report": 15,
    "distributed": 15,
    "bench": 16,
    "doctor": 17,
    "bisect": 17,
    "": 18,
    "cli": 19,
}
RUNTIME_MAY = {"errors", "config", "ir", "events", "runtime"}
FORBIDDEN = re.compile(
    r"torch\.(_dynamo|_inductor|_functorch|_decomp|_refs|_prims|_subclasses|_higher_order_ops|fx\.experimental)"
    r"|torch\._C\._dynamo"
)
ALLOWED = "allowed: interop"
# Tables may be longer than the caps; each with its reason.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}


def package_of(module: str) -> str:
    parts = module.split(".")[1:]
    if not parts:
        return ""
    if parts[0] == "inductor" and len(parts) > 1 and parts[1] in ("loops", "fuse", "codegen"):
        return ".".join(parts[:2])
    return parts[0]


def module_of(path: Path) -> str:
    parts = list(path.relative_to(SRC.parent).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, absolute module) of every braze import, also the lazy ones."""
    module = module_of(path)
    base = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    out = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            out += [(node.lineno, a.name) for a in node.names if a.name.split(".")[0] == "braze"]
        elif isinstance(node, ast.ImportFrom):
            root = node.module or ""
            if node.level:
                stem = base[: len(base) - node.level + 1]
                root = ".".join(stem + ([node.module] if node.module else []))
            if root.split(".")[0] != "braze":
                continue
            for a in node.names:
                sub = f"{root}.{a.name}"
                is_module = (SRC.parent / Path(*sub.split("."))).with_suffix(".py").exists() or (
                    SRC.parent / Path(*sub.split("."))
                ).is_dir()
                out.append((node.lineno, sub if is_module or sub == "braze._C" else root))
    return out


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_go_downhill(path: Path) -> None:
    me = package_of(module_of(path))
    assert me in RANK, f"{me} has no place in the import order"
    for line, target in imports(path):
        other = package_of(target)
        if other == me or target == "braze._C":
            continue
        assert other in RANK, f"{path}:{line}: {other} has no place in the import order"
        assert RANK[other] < RANK[me], f"{path}:{line}: {me} imports {other} uphill"
        if me == "runtime":
            assert other in RUNTIME_MAY, f"{path}:{line}: runtime imports {other}"


@pytest.mark.parametrize("path", [*FILES, *(ROOT / "csrc").glob("*.[ch]")], ids=lambda p: p.name)
def test_no_forbidden_torch_parts(path: Path) -> None:
    bad = [
        f"{path}:{i}: {line.strip()}"
        for i, line in enumerate(path.read_text().splitlines(), 1)
        if FORBIDDEN.search(line) and ALLOWED not in line
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_caps(path: Path) -> None:
    rel = str(path.relative_to(SRC))
    text = path.read_text()
    assert path.name not in ("utils.py", "common.py", "helpers.py", "misc.py")
    assert rel in LONG_FILES or len(text.splitlines()) <= 800, f"{rel} has over 800 lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            assert size <= 60 or f"{rel}:{node.name}" in LONG_FUNCTIONS, f"{rel}: {node.name} has {size} lines"


def test_no_import_cycle() -> None:
    """Module-level imports form no cycle (imports inside functions are lazy and do not count)."""
    graph: dict[str, set[str]] = {}
    names = {module_of(p) for p in FILES}
    for path in FILES:
        tree = ast.parse(path.read_text())
        tops = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
        lines = {n.lineno for n in tops}
        graph[module_of(path)] = {t for line, t in imports(path) if line in lines and t in names} - {module_of(path)}
    done: set[str] = set()

    def visit(m: str, trail: tuple[str, ...]) -> None:
        assert m not in trail, " -> ".join([*trail[trail.index(m) :], m])
        if m in done:
            return
        for other in sorted(graph.get(m, ())):
            if not m.startswith(other + "."):  # a package's modules may import what its __init__ re-exports
                visit(other, (*trail, m))
        done.add(m)

    for m in sorted(graph):
        visit(m, ())


def test_config_has_at_most_15_flags() -> None:
    from braze.config import Config

    assert sorted(Config.__dataclass_fields__) == sorted(
        "debug verify strict cache_dir disk_cache threads recompile_limit compile_workers activation_memory_budget"
        " autotune_seconds strict_random cudagraphs max_autotune never_slower freeze".split()
    )


def test_only_config_reads_the_environment() -> None:
    for path in FILES:
        if path.name != "config.py":
            assert not re.search(r"os\.environ\[|environ\.get|getenv", path.read_text()), path
