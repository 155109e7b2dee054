"""The checks of this machine and this installation: what channels can use, and what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from ..._errors import UnsupportedFormatError
from ..._format import PURE
from ..._maintenance.verify.findings import Severity
from ..._shell_quoting import shell_words
from ..._storage.segments.compression_codecs import require
from .suggestion import Part, Suggestion

_FEW_FILES = 1024
_FEW_MAPS = 65_530
_POPULATE = (5, 14)  # the first kernel that can populate pages ahead of time
_SECONDS = 20  # timeout for `java -version`


def examine() -> list[Part]:
    """Run all checks. One starts a Java process, which takes a moment."""
    return [part for check in _CHECKS for part in check()]


def _python() -> Iterator[Part]:
    yield Part("Python", f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}")
    yield Part("filechannel", importlib.metadata.version("filechannel"))


def _core() -> Iterator[Part]:
    if not PURE:
        yield Part("native core", "in use")
    elif os.environ.get("FILECHANNEL_PURE"):
        what = "FILECHANNEL_PURE is set: slow, polls instead of waiting, and one process at a time can use a channel"
        yield Part(
            "native core",
            "not in use",
            Suggestion(severity="warning", kind="core", what=what, mend="unset FILECHANNEL_PURE"),
        )
    else:
        what = "the C core is missing: slow, polls instead of waiting, and one process at a time can use a channel"
        mend = "install a C compiler and reinstall: pip install --force-reinstall --no-binary filechannel filechannel"
        yield Part("native core", "missing", Suggestion(severity="warning", kind="core", what=what, mend=mend))


def _compression() -> Iterator[Part]:
    for method in ("zstd", "lz4"):
        try:
            require(method)
            yield Part(method, "installed")
        except UnsupportedFormatError as error:
            what = f"segments that are compressed with {method} cannot be read here"
            severity: Severity = "warning" if method == "zstd" else "note"
            suggestion = Suggestion(
                severity=severity, kind="extra", what=what, mend=shell_words("pip", *error.advice.split())
            )
            yield Part(method, "not installed", suggestion)


def _spark() -> Iterator[Part]:
    if importlib.util.find_spec("pyspark") is None:
        yield Part("Spark", "not installed (pip install 'filechannel[spark]')")
        return
    version = importlib.metadata.version("pyspark")
    java = _java()
    if java is None:
        what = "Spark is installed, but Java is not found"
        suggestion = Suggestion(
            severity="note", kind="java", what=what, mend="install a JRE of version 17 or later; JAVA_HOME"
        )
        yield Part("Spark", version, suggestion)
    else:
        yield Part("Spark", f"{version}, {java}")


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    command = shutil.which("java") if home is None else str(Path(home) / "bin" / "java")
    if command is None:
        return None
    try:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stderr or done.stdout).splitlines()[0]


def _kernel() -> Iterator[Part]:
    release = platform.release()
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    if numbers and numbers < _POPULATE:
        what = (
            f"Linux {release} cannot populate pages ahead of time (Linux 5.14 and later can): sending has longer pauses"
        )
        yield Part("kernel", release, Suggestion(severity="note", kind="kernel", what=what, mend="use a newer kernel"))
    else:
        yield Part("kernel", release)
    if not Path("/etc/machine-id").exists():
        what = "the machine has no /etc/machine-id: a channel that is moved here from another machine is not recognised"
        yield Part(
            "machine", "no id", Suggestion(severity="note", kind="machine", what=what, mend="systemd-machine-id-setup")
        )


def _limits() -> Iterator[Part]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    mend = f"ulimit -n {most}" if most > soft else "raise the hard limit: limits.conf, LimitNOFILE="
    yield _limit("open files", soft, _FEW_FILES, f"have {soft} files open: a channel needs about 20", mend)
    try:
        maps = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return
    enough = f"sysctl vm.max_map_count={_FEW_MAPS}"
    yield _limit("maps", maps, _FEW_MAPS, f"have {maps} maps: a channel needs up to 20", enough)


def _limit(name: str, most: int, few: int, what: str, mend: str) -> Part:
    """Report a limit of processes, and how to raise it if it is too low."""
    if most >= few:
        return Part(name, f"up to {most:,} per process")
    return Part(name, f"{most}", Suggestion(severity="warning", kind="limits", what=f"a process may {what}", mend=mend))


_Check: TypeAlias = Callable[[], Iterator[Part]]
_CHECKS: tuple[_Check, ...] = (_python, _core, _compression, _spark, _kernel, _limits)
