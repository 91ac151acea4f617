"""Writes docs/primitives.md from the primitive table. With --check: exit 1 when the file is not current."""

from __future__ import annotations

import sys
from pathlib import Path

from braze.prims.cost import FLOPS
from braze.prims.coverage import CLASSES, counts
from braze.prims.elementwise import ANY, BITS, BOOL, DTYPES, FLOATS, INTS, REAL
from braze.prims.opaque import OPAQUE
from braze.prims.prim import FAMILIES, PRIMS

PATH = Path(__file__).parent.parent / "docs" / "primitives.md"
SETS = ((ANY, "any"), (REAL, "real"), (FLOATS, "float"), (INTS, "int"), (BITS, "int, bool"), (BOOL, "bool"))

HEAD = """# The primitives

Written by `scripts/gen_primitives.py` from the table in `src/braze/prims/`; do not edit.

A graph after the `prims` stage calls these and ATen operators that stay opaque. Conventions (operands of one shape and
dtype, Python scalars that take it, 16-bit floats that compute in float32) are in `src/braze/prims/prim.py` and in the
docstring of each family's file. Operands: *float* is float16, bfloat16, float32 and float64; *int* is int8 to int64 and
uint8; *real* is both; *any* is bool too. Other dtypes (complex, float8, ...) only pass through views and opaque calls.
"""


def operands(name: str) -> str:
    dtypes = DTYPES.get(name)
    if dtypes is None:
        return ""
    for group, text in SETS:
        if dtypes == group:
            return text
    return ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))


def render() -> str:
    out = [HEAD, f"{len(PRIMS)} primitives.\n"]
    for family in FAMILIES:
        rows = [p for p in PRIMS.values() if p.family == family]
        if not rows:
            continue
        typed = family == "elementwise"
        out.append(f"## {family.capitalize()}\n")
        out.append("| name | operands | meaning |\n|---|---|---|" if typed else "| name | meaning |\n|---|---|")
        for p in rows:
            doc = p.doc.replace("|", "\\|")
            out.append(f"| `{p.name}` | {operands(p.name)} | {doc} |" if typed else f"| `{p.name}` | {doc} |")
        out.append("")
    out.append(
        "## Opaque operators\n\nATen operators that are called as they are, and why. A star: it has a cost rule.\n"
    )
    reasons: dict[str, list[str]] = {}
    for name, reason in OPAQUE.items():
        reasons.setdefault(reason, []).append(f"{name}*" if name in FLOPS else name)
    out += [f"- **{reason}**: {', '.join(names)}" for reason, names in reasons.items()]
    return "\n".join(out) + "\n"


def main() -> int:
    text = render()
    if "--check" in sys.argv[1:]:
        return 0 if PATH.exists() and PATH.read_text() == text else 1
    PATH.write_text(text)
    found = counts()
    print(f"{PATH.name}: " + ", ".join(f"{found[c]} {c}" for c in CLASSES) + " ATen overloads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
