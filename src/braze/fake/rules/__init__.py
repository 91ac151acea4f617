"""The shape rules, one file a family of operators. Importing this package fills the table."""

from . import (
    attention,
    conv,
    create,
    effects,
    foreach,
    index,
    inplace,
    linalg,
    loss,
    matmul,
    norm,
    pointwise,
    random,
    reduce,
    resample,
    view,
)

__all__ = [
    "attention",
    "conv",
    "create",
    "effects",
    "foreach",
    "index",
    "inplace",
    "linalg",
    "loss",
    "matmul",
    "norm",
    "pointwise",
    "random",
    "reduce",
    "resample",
    "view",
]
