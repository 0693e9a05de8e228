"""What setup.cfg cannot say: the C extension, which is left out where there is no compiler."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "genkern.runtime.launch._native",
            ["genkern/runtime/launch/_native.c"],
            depends=["genkern/runtime/launch/_native_call.h"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
