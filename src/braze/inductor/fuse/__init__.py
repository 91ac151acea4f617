"""Fusion, order and memory: which kernels become one, when they run, and where their buffers live.

Takes a :class:`Program` with one kernel a primitive (``loops.lower``), gives a program that computes the same with few
kernels: ``fuse(program, traits)``, then ``plan(program)``.
"""

from braze.inductor.loops import Program


def fuse(program: Program) -> Program:
    """The program with kernels merged."""
    return program


def plan(program: Program) -> Program:
    """The program in its final order with buffers assigned."""
    return program


__all__ = ["fuse", "plan"]
