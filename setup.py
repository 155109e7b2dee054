"""Build the optional native core; everything else about the package is in pyproject.toml.

`FILECHANNEL_NO_NATIVE=1` leaves the extension out. `FILECHANNEL_REQUIRE_NATIVE=1` turns a failed
compilation into an error, for building wheels. Without either, a failure means that the
pure-Python implementation is used, and one message says so.
"""

import os
from glob import glob
from pathlib import Path
from textwrap import shorten

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import BaseError, CCompilerError

NATIVE = "src/filechannel/_format/_native"
ACROSS_FILES = "-flto"
PIPELINE = "examples/spark_pipeline.py"
PURE_TWIN_NOTICE = """\
filechannel: the native core was not built ({reason}).
filechannel: the pure-Python implementation is used instead: same files, same results, slower.
filechannel: to get the native core, install a C compiler and the Python headers and install again."""


class BuildNativeCore(build_ext):
    """Compile the native core, or report once that the pure-Python implementation is used instead."""

    def initialize_options(self) -> None:
        """Start without failures."""
        super().initialize_options()
        self._failed: list[str] = []

    def build_extension(self, ext: Extension) -> None:
        """Compile *ext*; a failure is an error only under FILECHANNEL_REQUIRE_NATIVE=1."""
        try:
            self._compile(ext)
        except (BaseError, CCompilerError, OSError) as error:
            if _flag("FILECHANNEL_REQUIRE_NATIVE"):
                ext.optional = False
                raise
            self._failed.append(ext.name)
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
            print(PURE_TWIN_NOTICE.format(reason=shorten(str(error), 120)), flush=True)

    def _compile(self, ext: Extension) -> None:
        """Compile with link-time optimization, or without it if the tools do not support it."""
        try:
            super().build_extension(ext)
        except (BaseError, CCompilerError):
            if ACROSS_FILES not in ext.extra_compile_args:
                raise
            ext.extra_compile_args.remove(ACROSS_FILES)
            ext.extra_link_args.remove(ACROSS_FILES)
            self.force = True
            super().build_extension(ext)

    def copy_extensions_to_source(self) -> None:
        """Put the built extension next to the sources, and delete one that an earlier build left there."""
        super().copy_extensions_to_source()
        for name in self._failed:
            # The old extension would be used with newer Python code.
            Path("src", self.get_ext_filename(name)).unlink(missing_ok=True)


class BuildPython(build_py):
    """Include the example that `filechannel demo` runs; the repository has only one copy of it."""

    def run(self) -> None:
        """Put the example next to the module that runs it. An editable install uses the examples directory."""
        super().run()
        if not self.editable_mode:
            self.copy_file(PIPELINE, str(Path(self.build_lib, "filechannel/cli/demo")))


def _flag(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


def _native_core() -> list[Extension]:
    sources = sorted(glob(f"{NATIVE}/**/*.c", recursive=True))
    if not sources or _flag("FILECHANNEL_NO_NATIVE"):
        return []
    flags = ["-O3", "-std=c11", "-fvisibility=hidden", "-fno-plt", "-Wall", "-Wextra", ACROSS_FILES]
    return [
        Extension(
            "filechannel._format._core",
            sources=sources,
            depends=["setup.py", *sorted(glob(f"{NATIVE}/**/*.h", recursive=True))],
            include_dirs=[NATIVE],
            extra_compile_args=flags if os.name == "posix" else [],
            extra_link_args=["-O3", ACROSS_FILES] if os.name == "posix" else [],
            optional=True,
        )
    ]


setup(ext_modules=_native_core(), cmdclass={"build_ext": BuildNativeCore, "build_py": BuildPython})
