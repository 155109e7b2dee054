"""What is shipped, and what an install without a C compiler does."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NATIVE = Path("src/filechannel/_format/_native")
PROJECT_FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what a build needs, so that nothing is written into the working tree."""
    copy = tmp_path / "project"
    copy.mkdir()
    for name in PROJECT_FILES:
        shutil.copy(ROOT / name, copy)
    leftovers = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=leftovers)
    return copy


def build(project: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run setup.py in *project* with only the given FILECHANNEL_* and CC variables."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("FILECHANNEL_") and name not in ("CC", "CFLAGS", "LDSHARED")
    }
    return subprocess.run(
        [sys.executable, "setup.py", "--quiet", *command],
        cwd=project,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_the_installed_version_is_that_of_pyproject() -> None:
    """An install that lags behind the sources would test something else."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert version("filechannel") == pyproject["project"]["version"]


def test_the_installed_package_says_that_it_is_typed() -> None:
    """Type checkers read the annotations of an installed package only with py.typed."""
    assert files("filechannel").joinpath("py.typed").is_file()


def test_the_sdist_has_everything_needed_to_build_the_native_core(project: Path) -> None:
    """Every C source and header is in the sdist."""
    result = build(project, "sdist", "--dist-dir", "dist", FILECHANNEL_NO_NATIVE="1")
    assert result.returncode == 0, result.stdout
    (archive,) = (project / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        shipped = {name.partition("/")[2] for name in sdist.getnames()}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / NATIVE).glob("*.[ch]")}
    assert sources
    assert sources | {"LICENSE", "setup.py", "src/filechannel/py.typed"} <= shipped


def test_a_wheel_has_types_and_no_c_sources(project: Path) -> None:
    """A wheel holds what runs; without the native core it runs on every platform."""
    result = build(project, "bdist_wheel", "--dist-dir", "dist", FILECHANNEL_NO_NATIVE="1")
    assert result.returncode == 0, result.stdout
    (archive,) = (project / "dist").glob("*-py3-none-any.whl")
    with zipfile.ZipFile(archive) as wheel:
        shipped = set(wheel.namelist())
    assert "filechannel/py.typed" in shipped
    assert not [name for name in shipped if name.endswith((".c", ".h"))]


def test_a_build_without_a_compiler_succeeds_and_says_so_once(project: Path) -> None:
    """The pure-Python twin takes the place of the native core, and an older core is removed."""
    older = project / f"src/filechannel/_format/_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    older.write_bytes(b"built from older sources")
    result = build(project, "build_ext", "--inplace", CC="/nonexistent/cc")
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("the pure-Python twin is used instead") == 1
    assert not older.exists()


def test_a_required_native_core_that_does_not_compile_is_an_error(project: Path) -> None:
    """Whoever builds wheels never publishes one without the native core by accident."""
    result = build(project, "build_ext", "--inplace", CC="/nonexistent/cc", FILECHANNEL_REQUIRE_NATIVE="1")
    assert result.returncode != 0
    assert "pure-Python twin" not in result.stdout
