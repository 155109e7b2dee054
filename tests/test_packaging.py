"""What is shipped, and what an install does: of the wheel, of the sources, and without a C compiler."""

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
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
NATIVE = Path("src/filechannel/_format/_native")
WHEELHOUSE = Path(sys.prefix, "wheelhouse")
"""What an install needs besides filechannel, fetched at set-up so that this needs no network."""

FIRST_STEPS = """
import asyncio, sys
from filechannel import open_channel

async def main():
    async with open_channel(sys.argv[1], dict[str, int]) as orders:
        async with orders.sender() as tx, orders.receiver() as rx:
            await tx.send({"pen": 3})
            assert await rx.receive() == {"pen": 3}

asyncio.run(main())
"""

WHICH_IMPLEMENTATION = "import filechannel._format as f; print('pure' if f.PURE else 'native')"

pytestmark = [pytest.mark.xdist_group("packaging"), pytest.mark.disk]


class Shipped(NamedTuple):
    """What `python -m build` makes of the sources."""

    sdist: Path
    wheel: Path


def copy_of_the_sources(target: Path) -> Path:
    """Copy what is under version control or would be, so that nothing is written into the working tree."""
    built = ("build", "dist", "site", "*.so", "*.egg-info", "__pycache__", ".*")
    shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(*built))
    return target


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    """An sdist, and the wheel that is made of that sdist."""
    sources = copy_of_the_sources(tmp_path_factory.mktemp("sources") / "project")
    run(sys.executable, "-m", "build", "--no-isolation", directory=sources, FILECHANNEL_REQUIRE_NATIVE="1")
    (sdist,) = (sources / "dist").glob("*.tar.gz")
    (wheel,) = (sources / "dist").glob("*.whl")
    return Shipped(sdist, wheel)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the sources for one test."""
    return copy_of_the_sources(tmp_path / "project")


class Environment:
    """An empty virtual environment."""

    def __init__(self, directory: Path) -> None:
        self._programs = directory / "bin"
        run(sys.executable, "-m", "venv", str(directory))

    def install(self, what: str, **environment: str) -> str:
        """Install as a user would; return what was printed."""
        offline = ["--no-index", f"--find-links={WHEELHOUSE}"] if WHEELHOUSE.is_dir() else []
        pip = [self.program("python"), "-m", "pip", "--disable-pip-version-check", "install", "--verbose"]
        return run(*pip, *offline, what, **environment).stdout

    def program(self, name: str) -> str:
        """Return the path of an installed program."""
        return str(self._programs / name)


@pytest.fixture
def empty(tmp_path: Path) -> Environment:
    """An environment with nothing in it."""
    return Environment(tmp_path / "environment")


def run(
    *command: str, directory: Path | None = None, succeeds: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with only the given FILECHANNEL_* and compiler variables."""
    ours = ("FILECHANNEL_", "PYTHON", "PIP_")
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ours) and name not in ("CC", "CFLAGS", "LDSHARED")
    }
    result = subprocess.run(
        command,
        cwd=directory,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert (result.returncode == 0) is succeeds, result.stdout
    return result


def build(project: Path, *command: str, succeeds: bool = True, **environment: str) -> str:
    """Run setup.py in *project*; return what it printed."""
    setup = [sys.executable, "setup.py", "--quiet", *command]
    return run(*setup, directory=project, succeeds=succeeds, **environment).stdout


def test_the_installed_version_is_that_of_pyproject() -> None:
    """An install that lags behind the sources would test something else."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert version("filechannel") == pyproject["project"]["version"]


def test_the_installed_package_says_that_it_is_typed() -> None:
    """Type checkers read the annotations of an installed package only with py.typed."""
    assert files("filechannel").joinpath("py.typed").is_file()


def test_the_sdist_has_everything_needed_to_build_and_test(shipped: Shipped) -> None:
    """Every C source and header is in the sdist, and what `make test` needs."""
    with tarfile.open(shipped.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / NATIVE).glob("*.[ch]")}
    assert sources
    assert sources | {"LICENSE", "setup.py", "src/filechannel/py.typed", "Makefile", "tests/conftest.py"} <= names


def test_the_wheel_has_the_native_core_the_types_and_no_sources_of_it(shipped: Shipped) -> None:
    """A wheel holds what runs, and nothing else."""
    with zipfile.ZipFile(shipped.wheel) as wheel:
        names = set(wheel.namelist())
    assert f"filechannel/_format/_core{sysconfig.get_config_var('EXT_SUFFIX')}" in names
    assert "filechannel/py.typed" in names
    assert {"pyspark_filechannel/__init__.py", "filechannel/cli/demo/spark_pipeline.py"} <= names
    assert not [name for name in names if name.endswith((".c", ".h")) or name.startswith("tests/")]


def test_the_wheel_works_in_an_empty_environment(shipped: Shipped, empty: Environment, tmp_path: Path) -> None:
    """What is installed by name runs, natively, with nothing of the checkout in reach."""
    empty.install(str(shipped.wheel))
    python = empty.program("python")
    assert run(python, "-c", WHICH_IMPLEMENTATION, directory=tmp_path).stdout.strip() == "native"
    run(python, "-W", "error", "-c", FIRST_STEPS, str(tmp_path / "orders"), directory=tmp_path)


def test_the_command_line_says_which_extra_it_needs(shipped: Shipped, empty: Environment, tmp_path: Path) -> None:
    """`filechannel` is installed with every wheel; without the extra it names it, with it it works."""
    empty.install(str(shipped.wheel))
    command = empty.program("filechannel")
    refused = run(command, "info", "orders", directory=tmp_path, succeeds=False)
    assert refused.returncode == 2
    assert "filechannel[cli]" in refused.stdout
    assert "Traceback" not in refused.stdout
    empty.install(f"filechannel[cli] @ {shipped.wheel.as_uri()}")
    assert version("filechannel") in run(command, "--version", directory=tmp_path).stdout


def test_an_install_without_a_compiler_falls_back_to_the_pure_implementation(
    shipped: Shipped, empty: Environment, tmp_path: Path
) -> None:
    """The sources install where nothing can be compiled, print a notice, and work."""
    printed = empty.install(str(shipped.sdist), CC="/nonexistent/cc")
    assert printed.count("the pure-Python implementation is used instead") == 1
    python = empty.program("python")
    assert run(python, "-W", "ignore", "-c", WHICH_IMPLEMENTATION, directory=tmp_path).stdout.strip() == "pure"
    run(python, "-W", "ignore", "-c", FIRST_STEPS, str(tmp_path / "orders"), directory=tmp_path)


def test_a_build_in_place_without_a_compiler_removes_an_older_core(project: Path) -> None:
    """The pure implementation replaces the native core, which would not fit the newer sources."""
    older = project / f"src/filechannel/_format/_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    older.write_bytes(b"built from older sources")
    printed = build(project, "build_ext", "--inplace", CC="/nonexistent/cc")
    assert printed.count("the pure-Python implementation is used instead") == 1
    assert not older.exists()


def test_a_required_native_core_that_does_not_compile_is_an_error(project: Path) -> None:
    """A build of wheels never publishes one without the native core by accident."""
    environment = {"CC": "/nonexistent/cc", "FILECHANNEL_REQUIRE_NATIVE": "1"}
    printed = build(project, "build_ext", "--inplace", succeeds=False, **environment)
    assert "pure-Python implementation" not in printed
