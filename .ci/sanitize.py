"""Build the C core with AddressSanitizer and UndefinedBehaviorSanitizer in build/sanitize, and run a command with it.

`python .ci/sanitize.py COMMAND...`: the command imports a copy of the package with that core; the core next to the
sources is not changed. PYTHONMALLOC=malloc lets the sanitizer also see what Python's own allocator hands out. Leaks are
not detected here, because an interpreter keeps memory at exit; tests/format/test_leaks.py counts them.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "build/sanitize"
FLAGS = [
    *("-shared", "-fPIC", "-std=c11", "-O1", "-g", "-fno-omit-frame-pointer", "-Wall", "-Wextra"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
]


def compiler() -> list[str]:
    """Return the command that compiles C."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def build() -> Path:
    """Create the copy; compile the core only if a source is newer. Return the file of the core."""
    package, native = ROOT / "src/filechannel", ROOT / "src/filechannel/_format/_native"
    core = TARGET / "filechannel/_format" / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    stale = not core.exists() or any(source.stat().st_mtime > core.stat().st_mtime for source in native.rglob("*.[ch]"))
    kept = None if stale else core.read_bytes()
    shutil.rmtree(TARGET, ignore_errors=True)
    shutil.copytree(package, TARGET / "filechannel", ignore=shutil.ignore_patterns("*.so", "__pycache__", "_native"))
    if kept is not None:
        core.write_bytes(kept)
        return core
    sources = sorted(map(str, native.rglob("*.c")))
    include = sysconfig.get_path("include")
    subprocess.run([*compiler(), *FLAGS, f"-I{include}", f"-I{native}", *sources, "-o", str(core)], check=True)
    return core


def library(name: str) -> str:
    """Return the path of a library of the compiler."""
    command = [*compiler(), f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def environment() -> dict[str, str]:
    """Return an environment in which the copy is imported, and every sanitizer error ends the process."""
    return os.environ | {
        "PYTHONPATH": f"{TARGET}{os.pathsep}{ROOT}",
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",
        "FILECHANNEL_SANITIZED": str(TARGET),
    }


def main() -> int:
    """Build, check that the copy is imported, and run the command."""
    core, variables = build(), environment()
    program = "import filechannel._format._core as core; print(core.__file__)"
    found = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=False)
    if found.stdout.strip() != str(core):
        print(f"sanitize: {core} is not what is imported: {found.stdout}{found.stderr}", file=sys.stderr)
        return 1
    return subprocess.run([sys.executable, *sys.argv[1:]], env=variables, cwd=ROOT, check=False).returncode


sys.exit(main())
