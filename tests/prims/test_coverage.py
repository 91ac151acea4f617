"""Every ATen overload of the installed torch has a place."""

from __future__ import annotations

import torch

from braze.prims.coverage import CLASSES, classify, counts, overloads
from braze.prims.opaque import OPAQUE, REFUSED, base_name
from braze.prims.registry import DECOMPOSITIONS, overload_name

CURRENT = torch.__version__.startswith("2.14")  # the tables list what this version has; others differ by a few
# Forms that a view row registers for names without a _copy operator, and operators of other torch versions.
ABSENT_IN_SOME = {"_fused_rms_norm", "_fused_rms_norm_backward"}


def test_all_overloads_are_classified() -> None:
    found = counts()
    print("\n" + ", ".join(f"{found[c]} {c}" for c in CLASSES))
    unlisted = [overload_name(op) for op in overloads() if classify(op)[0] == "unlisted"]
    assert len(unlisted) <= (0 if CURRENT else 30), f"neither decomposed nor listed as opaque or refused: {unlisted}"
    assert found["decomposed"] + found["primitive"] > 480


def test_every_opaque_or_refused_call_has_a_reason() -> None:
    assert all(reason or kind == "unlisted" for kind, reason in map(classify, overloads()))
    assert not set(OPAQUE) & set(REFUSED)


def test_no_stale_rows() -> None:
    have = {overload_name(op) for op in overloads()}
    bases = {base_name(op) for op in overloads()}
    ours = [n for n in DECOMPOSITIONS if "::" not in n]  # a name with a namespace is a user's operator, of another test
    stale = [n for n in ours if n not in have and "_copy" not in n and n not in ABSENT_IN_SOME]
    if CURRENT:
        assert not stale, stale
        assert not [n for n in [*OPAQUE, *REFUSED] if n not in bases and "::" not in n]


def test_rows_take_the_operators_arguments() -> None:
    """A row can be called with what the schema names: the same number of positional arguments, the same keywords."""
    import inspect

    for op in overloads():
        row = DECOMPOSITIONS.get(overload_name(op))
        if row is None:
            continue
        signature = inspect.signature(row.fn)
        args = [a.name for a in op._schema.arguments if not a.kwarg_only]
        keys = {a.name: None for a in op._schema.arguments if a.kwarg_only}
        try:
            signature.bind(None, *args, **keys)
        except TypeError as e:
            raise AssertionError(f"{op}: {e}") from None
