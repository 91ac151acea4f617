"""The one compiled part of braze: the frame hook and the guard evaluator."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "braze._C",
            sources=[f"csrc/{name}.c" for name in ("module", "hook", "program", "steps", "stamp", "tensor")],
            depends=["csrc/braze.h", "csrc/program.h"],
            include_dirs=["csrc"],
            extra_compile_args=["-O2", "-std=gnu11", "-fvisibility=hidden", "-Wno-deprecated-declarations"],
        )
    ]
)
