"""ATen calls that stay ATen calls, with the reason, and those that cannot be in a graph at all.

An operator that has no row in ``DECOMPOSITIONS`` is opaque: the runtime calls it as it is. That is right for every
operator whose schema is functional; the table below says why it is also what we want, and which operators are refused.
``coverage.classify`` sorts every overload of the installed torch by these tables, and a test keeps that complete.
"""

from __future__ import annotations

from torch._ops import OpOverload

_OPAQUE: tuple[tuple[str, str], ...] = (
    (
        "matrix product: vendor library",
        "mm addmm bmm baddbmm addbmm addmv mv dot vdot addr linear_backward matmul_backward _int_mm _scaled_mm"
        " _scaled_mm_v2 _grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 _addmm_activation _foreach_mm _trilinear"
        " _weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int4pack_mm_with_scales_and_zeros _weight_int8pack_mm"
        " _convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu _dyn_quant_matmul_4bit"
        " _dyn_quant_pack_4bit_weight _mixed_dtypes_linear _compute_linear_combination _transform_bias_rescale_qkv",
    ),
    (
        "convolution: vendor library",
        "convolution convolution_backward _convolution convolution_overrideable convolution_backward_overrideable"
        " conv_tbc conv_depthwise3d _conv_depthwise2d _slow_conv2d_forward _slow_conv2d_backward slow_conv3d_forward"
        " slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d cudnn_convolution"
        " cudnn_convolution_relu cudnn_convolution_add_relu cudnn_convolution_transpose miopen_convolution"
        " miopen_convolution_relu miopen_convolution_add_relu miopen_convolution_transpose miopen_depthwise_convolution"
        " _nnpack_spatial_convolution mkldnn_convolution",
    ),
    (
        "attention: vendor library",
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward"
        " _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward"
        " _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward"
        " _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward"
        " _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_fused_attention_overrideable_backward"
        " _flash_attention_forward _flash_attention_backward _efficient_attention_forward _efficient_attention_backward"
        " _cudnn_attention_forward _cudnn_attention_backward _native_multi_head_attention"
        " _transformer_encoder_layer_fwd _triton_multi_head_attention _triton_scaled_dot_attention _fused_sdp_choice"
        " _masked_softmax _masked_softmax_backward",
    ),
    (
        "recurrent network: vendor library",
        "_cudnn_rnn _cudnn_rnn_backward _cudnn_rnn_flatten_weight _cudnn_init_dropout_state miopen_rnn"
        " miopen_rnn_backward mkldnn_rnn_layer mkldnn_rnn_layer_backward _thnn_fused_gru_cell"
        " _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl"
        " _pack_padded_sequence",
    ),
    (
        "sorting and order statistics",
        "sort topk kthvalue median nanmedian mode searchsorted bucketize cummax cummin isin",
    ),
    ("a compaction of given size", "nonzero_static"),
    ("scan without a primitive", "logcumsumexp _logcumsumexp"),
    (
        "linear algebra: vendor library",
        "_linalg_check_errors _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd"
        " linalg__powsum linalg_cholesky_ex linalg_cross linalg_eig linalg_householder_product linalg_inv_ex"
        " linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve"
        " linalg_matrix_exp linalg_matrix_sqrth linalg_pinv linalg_polar linalg_qr linalg_solve_triangular"
        " cholesky_inverse cholesky_solve _cholesky_solve_helper geqrf ormqr lu_unpack triangular_solve",
    ),
    ("Fourier transform: vendor library", "_fft_c2c _fft_c2r _fft_r2c fft_fftfreq fft_rfftfreq"),
    (
        "overlapping windows",
        "adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward"
        " max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices"
        " max_pool3d_with_indices_backward max_pool2d_backward max_unpool2d max_unpool3d fractional_max_pool2d"
        " fractional_max_pool2d_backward fractional_max_pool3d fractional_max_pool3d_backward im2col col2im"
        " unfold_backward",
    ),
    (
        "interpolation",
        "upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward"
        " upsample_linear1d upsample_linear1d_backward upsample_trilinear3d upsample_trilinear3d_backward"
        " _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa"
        " _upsample_bilinear2d_aa_backward _upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward grid_sampler_2d"
        " grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward _grid_sampler_2d_cpu_fallback"
        " _grid_sampler_2d_cpu_fallback_backward cudnn_grid_sampler cudnn_grid_sampler_backward affine_grid_generator"
        " cudnn_affine_grid_generator cudnn_affine_grid_generator_backward",
    ),
    (
        "scatter of a padding's gradient",
        "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward"
        " replication_pad2d_backward replication_pad3d_backward",
    ),
    (
        "scatter with a fold other than a sum",
        "scatter index_reduce scatter_reduce put masked_scatter masked_scatter_backward segment_reduce"
        " _segment_reduce_backward as_strided_scatter",
    ),
    (
        "loss with its own kernels",
        "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward multilabel_margin_loss_backward"
        " _ctc_loss _ctc_loss_backward _cudnn_ctc_loss miopen_ctc_loss _use_cudnn_ctc_loss _use_miopen_ctc_loss",
    ),
    (
        "bags of embeddings",
        "_embedding_bag _embedding_bag_forward_only _embedding_bag_backward _embedding_bag_dense_backward"
        " _embedding_bag_per_sample_weights_backward embedding_renorm",
    ),
    (
        "pairwise distances",
        "_cdist_forward _cdist_backward _pdist_forward _pdist_backward _euclidean_dist dist",
    ),
    (
        "random: drawn by torch's generator where autograd left it",
        "bernoulli binomial cauchy exponential geometric log_normal multinomial normal normal_functional poisson rand"
        " rand_like randint randint_like randn randn_like random randperm uniform native_dropout _fused_dropout"
        " _sample_dirichlet _dirichlet_grad _standard_gamma _standard_gamma_grad rrelu_with_noise_functional"
        " _philox_key_fold_in _philox_key_split _philox_normal _philox_uniform",
    ),
    (
        "small tables, made once a call",
        "bartlett_window blackman_window hamming_window hann_window kaiser_window logspace tril_indices triu_indices"
        " linspace range",
    ),
    ("histogram", "histc histogram _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors"),
    (
        "rare elementwise function without a primitive",
        "gcd lcm hypot i0 igamma igammac polygamma mvlgamma frexp renorm special_airy_ai special_bessel_j0"
        " special_bessel_j1 special_bessel_y0 special_bessel_y1 special_erfcx special_i0e special_i1 special_i1e"
        " special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0"
        " special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1"
        " special_spherical_bessel_j0 special_zeta special_chebyshev_polynomial_t special_chebyshev_polynomial_u"
        " special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_hermite_polynomial_h"
        " special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p"
        " special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u"
        " special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w glu_jvp glu_backward_jvp",
    ),
    (
        "complex numbers",
        "complex polar _conj_physical _conj_copy _neg_view_copy view_as_complex_copy view_as_real_copy",
    ),
    (
        "statistics across processes",
        "batch_norm_stats batch_norm_elemt batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_gather_stats"
        " batch_norm_gather_stats_with_counts batch_norm_update_stats",
    ),
    (
        "optimizer kernels",
        "_fused_adagrad _fused_adam _fused_adamw _fused_sgd _foreach_powsum _foreach_addcdiv _foreach_addcmul",
    ),
    (
        "simulated quantisation",
        "fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask"
        " _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fake_quantize_learnable_per_channel_affine"
        " _fake_quantize_learnable_per_channel_affine_backward _fake_quantize_learnable_per_tensor_affine"
        " _fake_quantize_learnable_per_tensor_affine_backward _fused_moving_avg_obs_fq_helper_functional",
    ),
    (
        "an effect, kept in order",
        "_assert_async _assert_scalar _assert_tensor_metadata _functional_assert_async _functional_assert_scalar"
        " _functional_sym_constrain_range _functional_sym_constrain_range_for_size sym_constrain_range"
        " sym_constrain_range_for_size _print _make_dep_token",
    ),
    (
        "copies between devices, or of memory alone",
        "_to_copy _copy_from _copy_from_and_resize _pin_memory _lazy_clone copy clone hash_tensor",
    ),
    (
        "rarely met; no gain from fusion",
        "_add_relu _chunk_cat block_diag native_norm _weight_norm_interface _weight_norm_interface_backward"
        " _new_zeros_with_same_feature_meta _foreach_copy _reshape_copy",
    ),
)

_REFUSED: tuple[tuple[str, str], ...] = (
    (
        "the size of the result depends on data",
        "nonzero masked_select _unique _unique2 unique_dim unique_dim_consecutive unique_consecutive bincount"
        " repeat_interleave",
    ),
    ("gives a Python value that depends on data", "_local_scalar_dense equal allclose"),
    (
        "asks about a tensor: capture answers it",
        "is_coalesced is_pinned is_same_size is_set_to _has_same_storage_numel dense_dim sparse_dim qscheme q_scale"
        " q_zero_point q_per_channel_axis q_per_channel_scales q_per_channel_zero_points _dimI _dimV _nnz",
    ),
    ("changes a tensor's storage", "set resize resize_as _resize_output from_file _mkldnn_reshape _mkldnn_transpose"),
    ("forward-mode derivatives", "_fw_primal _fw_primal_copy _make_dual _make_dual_copy _unpack_dual"),
    ("view without a functional form", "slice_inverse"),
)

_REFUSED_PREFIXES: tuple[tuple[str, str], ...] = (
    (
        "sparse tensors",
        "_sparse sparse_ _to_sparse _to_dense _cslt _coalesce _spdiags _spsolve _indices indices _values values"
        " crow_indices col_indices ccol_indices row_indices hspmm copy_sparse resize_as_sparse _convert_indices"
        " _validate_compressed",
    ),
    ("nested and jagged tensors", "_nested to_padded_tensor _jagged _padded_dense"),
    (
        "quantised tensors",
        "quantize_ quantized_ dequantize int_repr _empty_affine _empty_per_channel empty_quantized _make_per_channel"
        " _make_per_tensor",
    ),
    ("oneDNN's own layouts", "mkldnn_ to_mkldnn"),
    ("Metal", "_mps mps_ _lstm_mps lstm_mps _scaled_dot_product_attention_math_for_mps"),
    ("torch's own tests", "_test _foobar"),
)

OPAQUE: dict[str, str] = {name: reason for reason, names in _OPAQUE for name in names.split()}
"""Operator name (without overload) -> why it stays an ATen call."""

REFUSED: dict[str, str] = {name: reason for reason, names in _REFUSED for name in names.split()}
"""Operator name -> why a graph with it is refused."""


def base_name(op: OpOverload) -> str:
    """``aten.add.Tensor`` -> "add"."""
    name: str = op._schema.name
    return name.removeprefix("aten::")


def refusal(op: OpOverload) -> str | None:
    """Why a call of ``op`` that has no decomposition cannot be in a primitive graph, or None."""
    if not op._schema.name.startswith("aten::"):
        return _by_schema(op)
    name = base_name(op)
    if name in OPAQUE:
        return _by_schema(op)
    reason = REFUSED.get(name)
    if reason is None:
        for why, prefixes in _REFUSED_PREFIXES:
            if name.startswith(tuple(prefixes.split())):
                return why
    return reason or _by_schema(op)


def _by_schema(op: OpOverload) -> str | None:
    schema = op._schema
    if schema.is_mutable:
        return "mutates an argument in a functional graph"
    if any(a.alias_info is not None for a in schema.arguments):
        return "a view without a decomposition"
    return None
