"""The one compiled part of braze: the frame hook and the guard evaluator."""
from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "braze._C",
            sources=["csrc/module.c", "csrc/hook.c", "csrc/guards.c"],
            depends=["csrc/braze.h"],
            include_dirs=["csrc"],
            extra_compile_args=["-O2", "-std=c11", "-fvisibility=hidden", "-Wno-deprecated-declarations"],
        )
    ]
)
