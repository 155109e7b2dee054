"""Act four: runs `examples/spark_pipeline.py`, which is installed next to this module."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Final

_NAME: Final = "spark_pipeline.py"
_TIMEOUT: Final = 2.0  # seconds


def script() -> Path:
    """Return the path of the example: next to this module if installed, among the examples in a checkout."""
    beside = Path(__file__).with_name(_NAME)
    return beside if beside.exists() else Path(__file__).parents[4] / "examples" / _NAME


def what_is_missing() -> str | None:
    """Return why Spark cannot run here, and how to fix that; None if it can run."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return "PySpark is not installed: pip install 'filechannel[spark]'"
    java = Path(os.environ.get("JAVA_HOME", ""), "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    if shutil.which(java) is None:
        return "Spark needs Java 17 or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)"
    return None


def run_pipeline(directory: Path) -> bool:
    """Run the pipeline with visible output, and return whether nothing was lost. Show the output of Java if it failed.

    All its files are in a directory of the caller, because an interrupted pipeline may not have time to delete them.
    """
    sys.stdout.flush()
    with tempfile.TemporaryFile() as remarks:
        code = _run([sys.executable, str(script())], remarks, os.environ | {"TMPDIR": str(directory)})
        if code:
            remarks.seek(0)
            sys.stderr.write(remarks.read().decode(errors="replace"))
    return code == 0


def _run(command: Sequence[str], stderr: BinaryIO, environment: Mapping[str, str]) -> int:
    """Wait for a process to end, also after Ctrl-C, which the terminal sends to it as well."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr, env=environment) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_TIMEOUT)
            raise
        finally:
            process.kill()
