"""The value model: what the interpreter knows of each Python object that the user's frame touches.

In: real objects with their :class:`~braze.capture.source.Source` (through ``wrap.wrap``) and objects that the traced
code makes.  Out: values that the instructions work on, and that :mod:`..rebuild` turns back into real objects.
Invariants: a mutable object has one value; a value's object is never written while tracing (writes stay on the value
and are replayed after the graph); reading a fact about an object that exists adds the guard that pins it.

The running example: ``x`` and ``w`` are :class:`TensorValue` s with graph nodes, ``-1`` is a :class:`Const`,
``torch.softmax`` a :class:`BuiltinValue`.
"""
