"""Rows of the decomposition table, in files by family. Importing this package fills ``registry.DECOMPOSITIONS``."""

from . import (  # noqa: F401
    activation,
    conv,
    creation,
    foreach,
    gather_scatter,
    loss,
    matmul,
    norm,
    pointwise,
    pool,
    reduce,
    shape,
    softmax,
    window,
)
