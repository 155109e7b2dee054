"""Fuzz the parsers of stored bytes.

`python -m tests.fuzz replay` runs the corpus, `... run SECONDS [TARGET...]` looks for new inputs with atheris for so
long per target, and `... seeds` renews the corpus. What a run finds is in build/fuzz: inputs that reach new code in
corpus/<target>, those that fail in crashes/<target>. A failing input that is fixed belongs into tests/fuzz/corpus.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
FOUND = ROOT / "build" / "fuzz"
SLOWEST = 60
"""Seconds that one input may take."""


def replay(names: list[str]) -> int:
    """Run what is in the corpus; return how many inputs that were."""
    from tests.fuzz.targets import TARGETS

    count = 0
    for name, target in TARGETS.items():
        for path in sorted((CORPUS / name).iterdir()) if not names or name in names else ():
            count += 1
            try:
                target(path.read_bytes())
            except BaseException as error:
                error.add_note(f"fuzz target {name}, input {path}")
                raise
    return count


def _fuzz(name: str, seconds: str) -> None:
    """Be the process that fuzzes one target; what is imported here is instrumented."""
    import atheris

    with atheris.instrument_imports(include=["filechannel"]):
        from tests.fuzz.targets import TARGETS
    corpus, crashes = FOUND / "corpus" / name, FOUND / "crashes" / name
    corpus.mkdir(parents=True, exist_ok=True)
    crashes.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", f"-timeout={SLOWEST}", "-rss_limit_mb=4096", "-max_len=16384"]
    quiet = ["-verbosity=0", "-print_final_stats=1", f"-artifact_prefix={crashes}/"]
    atheris.Setup([sys.argv[0], *limits, *quiet, str(corpus), str(CORPUS / name)], TARGETS[name])
    atheris.Fuzz()


def run(seconds: str, names: list[str]) -> int:
    """Fuzz one target after the other, each in a process of its own; return how many failed."""
    failed = 0
    for name in names or sorted(path.name for path in CORPUS.iterdir()):
        started = time.monotonic()
        command = [sys.executable, "-m", "tests.fuzz", "target", name, seconds]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        runs = [line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line]
        _say(f"{name}: {runs[0] if runs else '?'} inputs in {time.monotonic() - started:.0f} s", done.returncode == 0)
        if done.returncode:
            failed += 1
            sys.stdout.write(done.stdout[-4000:] + done.stderr[-4000:])
    return failed


def _say(text: str, good: bool) -> None:
    sys.stdout.write(f"{text}{'' if good else ': FAILED'}\n")
    sys.stdout.flush()


def main() -> int:
    """Do what the arguments say."""
    command, *arguments = sys.argv[1:] or ["replay"]
    if command == "replay":
        _say(f"{replay(arguments)} inputs", True)
        return 0
    if command == "seeds":
        from tests.fuzz.seeds import write

        with tempfile.TemporaryDirectory() as scratch:
            write(Path(scratch))
        return 0
    if find_spec("atheris") is None:
        _say("fuzz: skipped, atheris is not installed here (make fuzz installs it where it exists)", True)
        return 0
    if command == "target":
        _fuzz(*arguments)
        return 0
    return run(arguments[0], arguments[1:]) and 1


if __name__ == "__main__":
    sys.exit(main())
