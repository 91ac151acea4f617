"""An AArch64 target to generate code for on any machine."""

from __future__ import annotations

import llvmlite.binding as llvm

from braze.runtime.cpu import Target, host_target


def neon() -> Target:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    host = host_target()
    return Target(
        triple="aarch64-unknown-linux-gnu",
        cpu="cortex-a76",
        features="+neon",
        vector_bits=128,
        flags=frozenset(("neon",)),
        vector_math=frozenset(),
        openmp=True,
        tensor_offset=host.tensor_offset,
        llvm_version=host.llvm_version,
    )
