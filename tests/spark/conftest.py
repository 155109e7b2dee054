"""One Spark for all tests here: starting it takes longer than any of them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import filechannel.spark
from filechannel._format import PURE

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for a minute: to compile well takes longer than it saves."""

several_writers = pytest.mark.skipif(
    PURE, reason="the pure implementation lets one process at a time write to a channel"
)


def java() -> str | None:
    """Return a Java that Spark can use, if there is one."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        return None
    output = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', output)
    return found if version and int(version[1]) >= 17 else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one worker run what shares a session and another one the rest; leave out what needs Java and has none."""
    missing = None if java() else "no Java 17 or newer: install one or set JAVA_HOME"
    for item in items:
        if HERE in item.path.parents:
            shares = "spark" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("spark" if shares else "programs with spark"))
            if missing is not None and shares:
                item.add_marker(pytest.mark.skip(reason=missing))


def start_spark(
    master: str, directory: Path, modules: Sequence[str] = (), around: str = "", **more: str
) -> SparkSession:
    """Start Spark so that its workers run this Python and find the package, these tests and *modules*.

    *around* is what the program of a worker begins with: a `case` whose branch executes its arguments otherwise. *more*
    are settings.
    """
    python = _worker(directory, os.pathsep.join([str(ROOT), str(ROOT / "src"), *modules]), around)
    settings = {
        "spark.pyspark.python": python,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.pollingDelay": "10",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory} {_BRIEF}",
        "spark.executor.extraJavaOptions": _BRIEF,
        **more,
    }
    builder = SparkSession.builder.master(master).appName("filechannel")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as patch:  # the JVM inherits it; other tests must not
        patch.setenv("PYSPARK_PYTHON", python)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def _worker(directory: Path, path: str, around: str) -> str:
    """Make the program that Spark's workers are: this Python, with Spark as it is installed.

    Spark puts an archive of itself in front, and each process compiles all of it again. A process that plans a stream
    has ten seconds to answer, however busy the machine is; compiling alone may take that long.
    """
    program = directory / "python"
    case = f'{around} {shlex.quote(sys.executable)} "$@";; esac\n' if around else ""
    lines = f'export PYTHONPATH={shlex.quote(path)}\n{case}exec {shlex.quote(sys.executable)} "$@"\n'
    program.write_text(f"#!/bin/sh\n{lines}")
    program.chmod(0o700)
    return str(program)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two cores, knowing the source."""
    session = start_spark("local[2]", tmp_path_factory.mktemp("spark"))
    filechannel.spark.register(session)
    yield session
    session.stop()
