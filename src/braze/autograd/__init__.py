"""Ahead-of-time autograd."""

from .joint import Joint, trace_joint

__all__ = ["Joint", "trace_joint"]
