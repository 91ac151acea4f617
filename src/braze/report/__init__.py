"""Reports over a :class:`braze.events.CompileLog`: what was captured, broken, compiled, and what it cost.

``data`` computes a :class:`Report` once (``steps``: cost of every kernel, ``measure``: their times, ``machine``: the
roofline, ``sources``: the user's lines); ``text``, ``html`` and ``json()`` show it.
"""

from .data import Report
from .explain import Explanation, explain
from .text import verdict

__all__ = ["Explanation", "Report", "explain", "verdict"]
