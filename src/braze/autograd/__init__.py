"""Ahead-of-time autograd."""

from .joint import Joint, trace_joint
from .partition import AotGraphs, partition

__all__ = ["AotGraphs", "Joint", "partition", "trace_joint"]
