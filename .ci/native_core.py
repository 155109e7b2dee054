"""Exit with 0 if the native core is `possible` on this machine, or `built` in this tree; with 1 if not."""

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path


def possible() -> bool:
    """Return whether there are a C compiler and Python's headers."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return shutil.which(shlex.split(compiler)[0]) is not None and headers.exists()


def built() -> bool:
    """Return whether the extension for this Python is next to the sources."""
    package = Path(__file__).parent.parent / "src/filechannel/_format"
    return (package / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}").exists()


sys.exit(not {"possible": possible, "built": built}[sys.argv[1]]())
