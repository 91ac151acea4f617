"""Philox4x32-10 uniforms, bit for bit those of ``braze.prims.rng`` (whose docstring lays out counter and key)."""

from __future__ import annotations

from .llvm_builder import Builder, V

M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


def _low(b: Builder, v: V) -> V:
    return b.cast("trunc", v, "i32")


def _high(b: Builder, v: V) -> V:
    return b.cast("trunc", b.binary("lshr", v, b.like(v, 32)), "i32")


def _words(b: Builder, seed: V, offset: V, block: V) -> list[V]:
    """The four words of each counter ``block`` (i64 lanes)."""
    c = list(b.unify(_low(b, block), _high(b, block), _low(b, offset), _high(b, offset)))
    k0, k1 = _low(b, seed), _high(b, seed)
    for n in range(ROUNDS):
        if n:
            k0, k1 = b.add(k0, b.like(k0, W0)), b.add(k1, b.like(k1, W1))
        x = b.mul(b.cast("zext", c[0], "i64"), b.const("i64", M0))
        y = b.mul(b.cast("zext", c[2], "i64"), b.const("i64", M1))
        c = [
            b.binary("xor", b.binary("xor", _high(b, y), c[1]), k0),
            _low(b, y),
            b.binary("xor", b.binary("xor", _high(b, x), c[3]), k1),
            _low(b, x),
        ]
    return c


def _uniform(b: Builder, word: V) -> V:
    bits = b.binary("lshr", word, b.like(word, 8))
    return b.mul(b.cast("sitofp", bits, "float"), b.const("float", 2.0**-24))  # 24 bits: never negative


def philox(b: Builder, seed: V, offset: V, index: V) -> V:
    """One uniform a lane, for any indices."""
    words = _words(b, seed, offset, b.binary("lshr", index, b.like(index, 2)))
    which = _low(b, b.binary("and", index, b.like(index, 3)))
    word = words[0]
    for n in range(1, 4):
        word = b.select(b.compare("eq", which, b.like(which, n)), words[n], word)
    return _uniform(b, word)


def philox_row(b: Builder, seed: V, offset: V, first: V, lanes: int) -> V:
    """Uniforms of the indices first, first+1, ...: a quarter of the work. ``first`` and ``lanes`` are multiples of
    4."""
    blocks = b.add(b.splat(b.binary("lshr", first, b.like(first, 2)), lanes // 4), b.iota("i64", lanes // 4))
    joined = b.concat(list(b.unify(*_words(b, seed, offset, blocks))))
    quarter = lanes // 4
    order = ", ".join(f"i32 {(j % 4) * quarter + j // 4}" for j in range(lanes))
    mixed = b.let("i32", lanes, f"shufflevector {joined.typed}, {joined.type} poison, <{lanes} x i32> <{order}>")
    return _uniform(b, mixed)
