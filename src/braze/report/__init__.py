"""Reports over a :class:`braze.events.CompileLog`: what was captured, broken, compiled, and what it cost."""

from .explain import Explanation, explain

__all__ = ["Explanation", "explain"]
