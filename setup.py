"""What setup.cfg cannot say: the C extension, which is left out if there is no compiler, and the links of an sdist."""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.sdist import sdist


class SdistWithLinks(sdist):
    """A source distribution whose package has its links to profiling/ and templates/, so that it runs in place."""

    def make_release_tree(self, base_dir, files):
        """Setuptools copies files alone."""
        super().make_release_tree(base_dir, files)
        for name in ("profiling", "templates"):
            link = Path(base_dir, "genkern", name)
            if not link.exists():
                link.symlink_to(Path("..", name))


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
    cmdclass={"sdist": SdistWithLinks},
)
