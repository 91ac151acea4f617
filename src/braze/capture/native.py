"""Binding the extension to the torch that is loaded: where tensors keep their metadata, and torch's state functions.

torch gives C no stable way to read a tensor's dispatch keys, so the layout is measured instead of assumed: tensors with
known, odd sizes are made, and the numbers are looked for in their memory.  Every finding is then checked on tensors of
other kinds.  If anything does not fit, the layout stays unknown and guards ask Python, which is slower and as right.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from braze import _C  # type: ignore[attr-defined]

_WORDS = (
    23  # words of a TensorImpl that are looked at: what malloc gives for one (176 bytes in torch 2.14, 184 in 2.11)
)
_META_MASK = 0xFF_FFFF_FFFF  # dtype, device type, device index, device present
_INLINE_DIMS = 5


@dataclass(frozen=True, slots=True)
class Layout:
    """Byte offsets: ``cdata`` in the Python object, the others in the TensorImpl."""

    cdata: int
    rank: int
    meta: int
    keys: int


def _words(address: int, n: int) -> list[int]:
    return [ctypes.c_uint64.from_address(address + 8 * i).value for i in range(n)]


def _keys(t: torch.Tensor) -> int:
    return int(torch._C._dispatch_keys(t).raw_repr())


def _samples() -> list[torch.Tensor]:
    out = [torch.empty(shape, dtype=d) for shape in ((), (2,), (3, 0, 2)) for d in (torch.float32, torch.bool)]
    out += [torch.empty(3, 4).t(), torch.empty(2, 3, 4, 5, 6), torch.nn.Parameter(torch.empty(3, 4))]
    out += [
        torch.empty(4, device="meta", dtype=torch.bfloat16),
        torch.empty(2, 3, 4, 5, device="meta").permute(3, 1, 0, 2),
    ]
    return [*out, torch.empty(8, 3)[1::2, 1], torch.empty(2, requires_grad=True) * 2]


def _measure() -> Layout | None:
    t = torch.empty_strided((11, 13), (17, 1009))
    impl = t._cdata
    cdata = [i for i in range(2, 5) if _words(id(t), 5)[i] == impl]
    words = _words(impl, _WORDS)
    rank = [i for i in range(_WORDS - 12) if words[i : i + 3] == [2, 11, 13] and words[i + 6 : i + 8] == [17, 1009]]
    if not cdata or not rank:
        return None
    samples = _samples()
    after = range(rank[0] + 11, _WORDS)
    keys = [i for i in after if all(_words(s._cdata, _WORDS)[i] == _keys(s) for s in samples)]
    meta = [i for i in after if i not in keys and _tells_dtype_and_device(i)]
    return Layout(8 * cdata[0], 8 * rank[0], 8 * meta[0], 8 * keys[0]) if keys and meta else None


def _tells_dtype_and_device(word: int) -> bool:
    """Whether a word, masked, is the same for one dtype and device whatever the shape, and differs otherwise."""
    seen: dict[tuple[torch.dtype, torch.device], int] = {}
    dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
    for device in ("cpu", "meta"):
        for dtype in dtypes:
            for t in (
                torch.empty((), dtype=dtype, device=device),
                torch.empty(4, 6, dtype=dtype, device=device)[::2].t(),
            ):
                value = _words(t._cdata, _WORDS)[word] & _META_MASK
                if seen.setdefault((t.dtype, t.device), value) != value:
                    return False
    return len(set(seen.values())) == len(seen)


def _fits(layout: Layout) -> bool:
    """Whether the layout reads the right numbers from tensors that were not used to find it."""
    others = [torch.empty(2, 3, 4, 5, 6, 7), torch.empty(7, 6, 5, 4, 3, 2, 1).transpose(0, 6), torch.empty(9, 1, 9)]
    for t in [*_samples(), *others]:
        if ctypes.c_uint64.from_address(id(t) + layout.cdata).value != t._cdata:
            return False
        base = t._cdata + layout.rank
        if ctypes.c_int64.from_address(base).value != t.dim():
            return False
        dims, gap = base + 8, _INLINE_DIMS
        if t.dim() > _INLINE_DIMS:
            dims, gap = ctypes.c_uint64.from_address(dims).value, t.dim()
        numbers = [ctypes.c_int64.from_address(dims + 8 * i).value for i in range(gap + t.dim())]
        if tuple(numbers[: t.dim()]) != tuple(t.shape) or tuple(numbers[gap:]) != t.stride():
            return False
        if ctypes.c_int64.from_address(base + 88).value != t.storage_offset():
            return False
    return True


def _measure_autograd() -> tuple[int, int, int, int] | None:
    """(pointer to the autograd metadata in the TensorImpl; in them: word with the flag, grad_fn; vtable)."""
    size = getattr(ctypes.CDLL(None), "malloc_usable_size", None)
    if size is None:
        return None
    size.argtypes, size.restype = [ctypes.c_void_p], ctypes.c_size_t
    leaf, other = torch.empty(1), torch.empty(2)
    before = [_words(t._cdata, _WORDS) for t in (leaf, other)]
    leaf.requires_grad_(), other.requires_grad_()
    after = [_words(t._cdata, _WORDS) for t in (leaf, other)]
    at = [i for i in range(_WORDS) if not any(w[i] for w in before) and all(_is_pointer(w[i]) for w in after)]
    if len(at) != 1:
        return None
    base, held = torch.empty(1, requires_grad=True), [torch.empty(n, requires_grad=True) for n in range(1, 9)]
    results = [base * n for n in range(1, 9)]

    def metadata(t: torch.Tensor) -> list[int]:
        address = _words(t._cdata, _WORDS)[at[0]]
        return _words(address, size(address) // 8)

    with_fn, without = [metadata(t) for t in results], [metadata(t) for t in held]
    columns = zip(zip(*with_fn), zip(*without))
    fn = [i for i, (set_, unset) in enumerate(columns) if all(map(_is_pointer, set_)) and not any(unset)]
    states = []
    for on in (True, False, True, False):
        leaf.requires_grad_(on)
        states.append(metadata(leaf))
    flag = [i for i, s in enumerate(zip(*states)) if s[0] == s[2] != s[1] == s[3] and s[0] ^ s[1] in _BYTE_FLAGS]
    vtables = {w[0] for w in with_fn + without}
    if (
        not fn or len(flag) != 1 or fn not in ([fn[0]], [fn[0], fn[0] + 1]) or len(vtables) != 1
    ):  # one word, or a shared pointer's two
        return None
    return 8 * at[0], 8 * flag[0], 8 * fn[0], vtables.pop()


_BYTE_FLAGS = frozenset(1 << 8 * i for i in range(8))  # what one bool among eight bytes changes


def _is_pointer(word: int) -> bool:
    """Whether a word that was zero has become the address of a heap block."""
    return word > 1 << 16 and word % 16 == 0 and word < 1 << 47


_bound: bool | None = None


def bind() -> bool:
    """Bind, once for the process; True if tensors are read natively. Under a dispatch mode there are no plain tensors
    to look at, and nothing is decided."""
    global _bound
    if _bound is None and not torch._C._len_torch_dispatch_stack():
        with torch.inference_mode(False), torch.enable_grad():
            _bound = _bind()
    return bool(_bound)


def unbind() -> None:
    """Forget what ``bind`` found (tests of the slow path)."""
    global _bound
    _C.set_layout()
    _META.clear()
    _bound = None


def _bind() -> bool:
    libraries = Path(torch.__file__).parent / "lib"
    requires_grad, _ = _C.bind_torch(os.fspath(libraries / "libc10.so"), os.fspath(libraries / "libtorch_cpu.so"))
    layout = _measure() if requires_grad else None
    if layout is None or not _fits(layout):
        return False
    _C.set_storage_layout(*_storage_offsets())
    autograd = _measure_autograd()
    if autograd is not None:
        _C.set_autograd_layout(*autograd)
    return bool(_C.set_layout(layout.cdata, layout.rank, layout.meta, layout.keys))


def _storage_offsets() -> tuple[int, int]:
    """Where a TensorImpl points to its storage, and a storage to its first byte; zeros if that is not clear."""
    address = getattr(torch._C, "_storage_address", None)
    if address is None:
        return 0, 0
    owner = torch.empty(5, 3)
    samples = [*_samples(), owner, owner[1:], owner.t()]
    words = [(_words(t._cdata, _WORDS), address(t)) for t in samples]
    storage = [i for i in range(2, _WORDS) if all(w[i] == where for w, where in words)]
    starts = [(_words(address(t), 4), t.untyped_storage().data_ptr()) for t in samples]
    data = [i for i in range(2, 4) if all(w[i] == start for w, start in starts)]
    return (8 * storage[0], 8 * data[0]) if storage and data else (0, 0)


_META: dict[tuple[torch.dtype, torch.device], int | None] = {}


def note_meta(t: torch.Tensor) -> None:
    """Remember how a dtype and device look in memory, from a tensor at hand (a plain one, not a subclass's)."""
    key = (t.dtype, t.device)
    if _META.get(key) is None and bind():
        _META[key] = _C.tensor_meta(t)


def meta_of(dtype: torch.dtype, device: torch.device) -> int | None:
    """How a dtype and device look in memory; None where tensors are not read natively."""
    if _META.get((dtype, device)) is None and not torch._C._len_torch_dispatch_stack():
        note_meta(torch.empty(0, dtype=dtype, device=device))
    return _META.get((dtype, device))
