"""Act four: the pipeline of `examples/spark_pipeline.py`, which is shipped beside this module."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_NAME: Final = "spark_pipeline.py"


def script() -> Path:
    """Return the example: beside this module in an install, and among the examples in a checkout."""
    beside = Path(__file__).with_name(_NAME)
    return beside if beside.exists() else Path(__file__).parents[4] / "examples" / _NAME


def what_is_missing() -> str | None:
    """Return why Spark cannot run here, and what helps; None if it can."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return "PySpark is not installed: pip install 'filechannel[spark]'"
    java = Path(os.environ.get("JAVA_HOME", ""), "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    if shutil.which(java) is None:
        return "Spark needs Java 17 or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)"
    return None


def run_pipeline() -> bool:
    """Run it where it can be seen, and return whether nothing was lost. What Java has to say is shown if it failed."""
    sys.stdout.flush()
    with tempfile.TemporaryFile() as remarks:
        command = [sys.executable, str(script())]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=remarks, check=False)
        if ended.returncode:
            remarks.seek(0)
            sys.stderr.write(remarks.read().decode(errors="replace"))
    return ended.returncode == 0
