"""Inputs that fuzzing found, and those it began with: each parser returns or raises what it documents."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
ROOT = Path(__file__).parents[2]
MUTATIONS = 30


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_parsed(name: str) -> None:
    """Both implementations parse every input of the corpus and agree, and each target has inputs."""
    paths = sorted((CORPUS / name).iterdir())
    assert paths
    for path in paths:
        TARGETS[name](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_near_the_corpus_is_parsed(name: str, rng: Random) -> None:
    """Corpus inputs with bytes that are changed, removed or doubled at random are parsed or refused."""
    inputs = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    for _ in range(MUTATIONS):
        TARGETS[name](_mutated(rng.choice(inputs), rng))


def _mutated(content: bytes, rng: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(len(changed) + 1), rng.choice((1, 4, 8))
        new = rng.choice((b"", bytes(size), b"\xff" * size, rng.randbytes(size), bytes(changed[at : at + size]) * 2))
        changed[at : at + size] = new
    return bytes(changed)


def test_there_is_a_target_for_each_directory() -> None:
    """Each directory of the corpus has a target that reads it."""
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


def test_each_target_is_in_the_documentation() -> None:
    """The documentation's table of parsers lists each target."""
    page = (ROOT / "docs" / "guides" / "reliability.md").read_text()
    assert [name for name in TARGETS if f"`{name}`" not in page] == []
    assert f"{len(TARGETS)} targets" in page


@pytest.mark.soak
def test_coverage_guided_fuzzing_finds_nothing() -> None:
    """Coverage-guided fuzzing of each target for FILECHANNEL_FUZZ seconds finds nothing."""
    if find_spec("atheris") is None:
        pytest.skip("atheris is not installed here")
    seconds = os.environ.get("FILECHANNEL_FUZZ", "300")
    command = [sys.executable, "-m", "tests.fuzz", "run", seconds]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
