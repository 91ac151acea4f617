"""Handlers of C functions and of torch functions that are not graph calls: one table row a function.

Importing this package fills the tables of :mod:`..registry`.
"""

from . import (
    annotations,
    builtin,
    checked,
    collection,
    collective,
    container,
    functions,
    gradients,
    iteration,
    library,
    numeric,
    objects,
    optim,
    packages,
    python_forms,
    recurrent,
    regex,
    scaler,
    sharded,
    tensors,
    torch_state,
    transforms,
)

__all__ = [
    "annotations",
    "builtin",
    "checked",
    "collection",
    "collective",
    "container",
    "functions",
    "gradients",
    "iteration",
    "library",
    "numeric",
    "objects",
    "optim",
    "packages",
    "python_forms",
    "recurrent",
    "regex",
    "scaler",
    "sharded",
    "tensors",
    "torch_state",
    "transforms",
]
