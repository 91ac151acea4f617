"""Linear algebra and other operators that stay opaque, and the list of those that are tried on zeros.

LAPACK works on column-major matrices, and so are its results.
"""

from __future__ import annotations

from typing import Any

import torch

from ...errors import Unsupported
from ...ir import IntLike, TensorType, known_eq, known_le, sym_max, sym_min
from ..layout import broadcast, contiguous
from ..promote import result_type, to_real
from ..registry import DataDependent, executable, rule
from ..result import copy_of, fresh, view_of
from .pointwise import pointwise

# Their results' types depend on the arguments' types alone, and their kernels are safe on zeros.
executable(
    """
    _fft_c2c _fft_r2c _fft_c2r linalg_eig _linalg_eigh _linalg_eigvals linalg_eigvals _linalg_svd linalg_qr
    linalg_solve_triangular linalg_matrix_exp linalg_householder_product linalg_pinv.atol_rtol_tensor _linalg_det
    _linalg_slogdet _linalg_solve_ex linalg_lu_factor_ex linalg_lu linalg_ldl_factor_ex linalg_cholesky_ex
    linalg_inv_ex linalg_polar linalg_matrix_sqrth geqrf ormqr triangular_solve _trilinear _chunk_cat
    histogram.bins_tensor histogram.bin_ct _histogramdd_bin_edges _histogramdd_from_bin_cts
    _histogramdd_from_bin_tensors _embedding_bag _embedding_bag_forward_only _embedding_bag_backward
    _embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward mkldnn_rnn_layer
    _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell
    _thnn_fused_gru_cell_backward _cudnn_rnn _cudnn_rnn_backward _cudnn_rnn_flatten_weight _ctc_loss
    _ctc_loss_backward _native_multi_head_attention _transform_bias_rescale_qkv nanmedian special_log_softmax
    """
)


def column_major(x: TensorType, sizes: tuple[IntLike, ...]) -> TensorType:
    """A new batch of matrices, each column-major."""
    *batch, rows, cols = sizes
    strides = [*contiguous((*batch, cols, rows))]
    strides[-1], strides[-2] = strides[-2], strides[-1]
    return fresh(x, sizes, strides=tuple(strides))


def _batch(*xs: TensorType) -> tuple[IntLike, ...]:
    return broadcast(tuple(x.sizes[:-2] for x in xs))


@rule("cholesky_inverse cholesky")
def cholesky_inverse(x: TensorType, upper: bool = False) -> TensorType:
    return column_major(x, x.sizes)


@rule("cholesky_solve")
def cholesky_solve(b: TensorType, a: TensorType, upper: bool = False) -> TensorType:
    return column_major(b, (*_batch(a, b), *b.sizes[-2:]))


@rule("linalg_lstsq")
def lstsq(a: TensorType, b: TensorType, rcond: Any = None, *, driver: str | None = None) -> Any:
    """(solution, residuals, rank, singular values). The solution is the top of a matrix of max(m, n) rows."""
    driver = driver or ("gels" if a.device.type == "cuda" else "gelsy")
    *batch, m, n = a.sizes
    if driver in ("gelsd", "gelss") and not known_le(m, n) or a.rank != b.rank or 0 in (*a.sizes, *b.sizes):
        raise DataDependent(f"linalg.lstsq with {driver}, whose residuals depend on the rank that it finds")
    rhs = b.sizes[-1]
    rows = sym_max(m, n)
    whole = column_major(a, (*batch, rows, rhs))
    real = to_real(a.dtype)
    none = fresh(a, (0,), real)
    residuals = none if driver == "gelsy" or known_le(m, n) else fresh(a, (*batch, rhs), real)
    rank = fresh(a, tuple(batch), torch.int64) if driver != "gels" else fresh(a, (0,), torch.int64)
    values = fresh(a, (*batch, sym_min(m, n)), real) if driver in ("gelsd", "gelss") else none
    return fresh(a, (*batch, n, rhs), strides=whole.strides), residuals, rank, values


@rule("linalg_lu_solve")
def lu_solve(lu: TensorType, pivots: TensorType, b: TensorType, *, left: bool = True, adjoint: bool = False) -> Any:
    sizes = (*_batch(lu, b), *b.sizes[-2:])
    return column_major(b, sizes) if left else fresh(b, sizes)


@rule("linalg_lu_solve.out")
def lu_solve_out(
    lu: TensorType, pivots: TensorType, b: TensorType, *, left: bool = True, adjoint: bool = False
) -> TensorType:
    if not left and lu.dtype.is_complex:
        raise Unsupported("linalg.lu_solve(left=False) with a complex out=, which it flags as lazily conjugated")
    out: TensorType = lu_solve(lu, pivots, b, left=left, adjoint=adjoint)
    return out


@rule("mkldnn_rnn_layer_backward")
def rnn_backward(
    x: TensorType, w: TensorType, u: TensorType, b: Any, c: Any, h: TensorType, cell: Any, *rest: Any
) -> Any:
    """Gradients of the input, both weights, both biases (also where there are none) and both states."""
    bias = fresh(w, (w.sizes[0],))
    return tuple([bias if t is None else fresh(t, t.sizes) for t in (x, w, u, None, None, h, cell)])


@rule("linalg_ldl_solve")
def ldl_solve(ld: TensorType, pivots: TensorType, b: TensorType, *, hermitian: bool = False) -> TensorType:
    return column_major(b, (*_batch(ld, b), *b.sizes[-2:]))


@rule("lu_unpack")
def lu_unpack(lu: TensorType, pivots: TensorType, data: bool = True, unpack_pivots: bool = True) -> Any:
    *batch, m, n = lu.sizes
    k = sym_min(m, n)
    none = fresh(lu, (0,))
    lower, upper = (fresh(lu, (*batch, m, k)), fresh(lu, (*batch, k, n))) if data else (none, none)
    return fresh(lu, (*batch, m, m)) if unpack_pivots else none, lower, upper


@rule("linalg_cross")
def linalg_cross(a: TensorType, b: TensorType, *, dim: int = -1) -> TensorType:
    return fresh(pointwise("same", (a, b)))


@rule("_cdist_forward")
def cdist(a: TensorType, b: TensorType, p: float, mode: Any) -> TensorType:
    return fresh(a, (*_batch(a, b), a.sizes[-2], b.sizes[-2]))


@rule("_euclidean_dist")
def euclidean_dist(a: TensorType, b: TensorType) -> TensorType:
    return cdist(a, b, 2.0, None)


@rule("_cdist_backward")
def cdist_backward(g: TensorType, a: TensorType, b: TensorType, p: float, out: TensorType) -> TensorType:
    if known_eq(out.numel, 0):
        return copy_of(a)
    return fresh(a, (*_batch(a, b), *a.sizes[-2:]))


@rule("_pdist_forward")
def pdist(x: TensorType, p: float = 2.0) -> TensorType:
    n = x.sizes[0]
    return fresh(x, (n * (n - 1) // 2,))


@rule("_pdist_backward")
def pdist_backward(g: TensorType, x: TensorType, p: float, out: TensorType) -> TensorType:
    return fresh(x)


@rule("dist")
def dist(a: TensorType, b: TensorType, p: Any = 2) -> TensorType:
    return fresh(a, (), to_real(result_type((a, b))))


@rule("trace")
def trace(x: TensorType) -> TensorType:
    return fresh(x, (), x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)


@rule("_conj_physical")
def conj_physical(x: TensorType) -> TensorType:
    return copy_of(x)


@rule("_conj")
def conj(x: TensorType) -> TensorType:
    return view_of(x, x.sizes, x.strides, x.offset)


@rule("_neg_view")
def neg_view(x: TensorType) -> TensorType:
    return view_of(x, x.sizes, x.strides, x.offset)
