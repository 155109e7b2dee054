"""What every test may use: the event loops, a directory for a channel, and a guard against blocking calls."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster, BlockBusterFunction
from hypothesis import settings

from filechannel._format import PURE
from tests.backends import BACKENDS
from tests.processes.workers import PRELOAD

# Documented to be synchronous, or the part of an append that makes a file when a segment is full.
MAY_TOUCH_FILES = {
    "filechannel/_channel/aio/open_channel.py": {"open_channel"},
    "filechannel/_channel/lifecycle/open_spec.py": {"_absolute"},
    "filechannel/_channel/aio/channel.py": {"sender", "receiver", "ack_receiver", "group", "replay", "serve"},
    "filechannel/_channel/base/channel.py": {"statistics", "consumers", "close"},
    "filechannel/_channel/base/receiver.py": {"close", "peek"},
    "filechannel/_channel/base/service.py": {"close"},
    "filechannel/_channel/subscription/group_member.py": {"tend"},  # asks the kernel which processes are alive
    "filechannel/_channel/subscription/subscription.py": {"__del__"},  # a receiver that was deleted instead of closed
    "filechannel/_storage/control/wake_fifos.py": {"ring"},
    "filechannel/_storage/log/log.py": {"append"},
    "filechannel/_storage/reading/log_reader.py": {"_advance", "_damaged"},
    # A finalizer of some other test's process, whenever the collector comes to it.
    "multiprocessing/resource_tracker.py": {"_check_alive", "_send"},
}
MEMORY, ENOUGH = Path("/dev/shm"), 1 << 30
NEVER_ON_A_LOOP = ("os.fsync", "os.fdatasync", "os.open", "os.pread", "os.pwrite", "os.posix_fallocate", "fcntl.fcntl")

# A shell starts background jobs with SIGINT ignored, and children inherit that: programs that tests stop with Ctrl-C
# would run on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Set before any test starts the server, one of pickling for instance: afterwards it is too late.
multiprocessing.set_forkserver_preload(PRELOAD)

# The same examples in every run; --hypothesis-profile=default looks for others.
# No deadline: how long an example takes says how busy the machine is, and the sanitizers make it much longer.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

# For the pure implementation, which is slow, uvloop is the same as asyncio, and trio too where nothing waits.
LOOPS = ["asyncio", "trio"] if PURE else list(BACKENDS)
WAITING = {"test_wakeup.py", "test_receiver.py", "test_sender.py", "test_close.py", "test_cancellation.py"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave trio out on the pure implementation, except where a task waits, or stops waiting."""
    left_out = [item for item in items if PURE and _loop_of(item) == "trio" and item.path.name not in WAITING]
    gone = set(left_out)
    config.hook.pytest_deselected(items=left_out)
    # One worker runs all tests of a group: the groups begin first, or the last of them would end long after the rest.
    items[:] = sorted((item for item in items if item not in gone), key=lambda item: not _is_grouped(item))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected: there is none, and every look at millions of objects takes long."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave everything that exists by now out of garbage collections.

    The collected tests are millions of objects, and tests that count descriptors or maps collect garbage first: that
    took half a second each time.
    """
    gc.collect()
    gc.freeze()


def _is_grouped(item: pytest.Item) -> bool:
    return item.get_closest_marker("xdist_group") is not None


def _loop_of(item: pytest.Item) -> object:
    return item.callspec.params.get("anyio_backend") if hasattr(item, "callspec") else None


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    """Every test marked `anyio` runs on asyncio, uvloop and trio."""
    return BACKENDS[request.param]


@pytest.fixture
def backend_name(anyio_backend: tuple[str, dict[str, object]]) -> str:
    """The library under the test: asyncio or trio."""
    return anyio_backend[0]


@pytest.fixture
def asyncio_only(backend_name: str) -> None:
    """Leave the trio half of a test out: it is about asyncio's own functions."""
    if backend_name != "asyncio":
        pytest.skip("about asyncio's own functions")


@pytest.fixture
def trio_only(backend_name: str) -> None:
    """Leave the asyncio halves of a test out: it is about trio's own functions."""
    if backend_name != "trio":
        pytest.skip("about trio's own functions")


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, if there is enough: for tests that would wait for the disk for no reason."""
    with tempfile.TemporaryDirectory(dir=MEMORY if _has_space(MEMORY) else None) as directory:
        yield Path(directory)


def _has_space(directory: Path) -> bool:
    return os.access(directory, os.W_OK) and shutil.disk_usage(directory).free > ENOUGH


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of the test's own: in memory, unless the test is about the disk and marked so."""
    if request.node.get_closest_marker("disk") is not None:
        return tmp_path_factory.mktemp("disk")
    directory: Path = request.getfixturevalue("memory") / "test"  # so that it has neighbours of its own as well
    directory.mkdir()
    return directory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a channel may be made; nothing is there yet."""
    return tmp_path / "channel"


@pytest.fixture
def rng() -> random.Random:
    """Random numbers that can be repeated: a failing test shows its seed, FILECHANNEL_SEED sets it."""
    seed = int(os.environ.get("FILECHANNEL_SEED") or random.SystemRandom().getrandbits(32))
    print(f"FILECHANNEL_SEED={seed}")  # noqa: T201
    return random.Random(seed)


@pytest.fixture(scope="session")
def blockbuster() -> BlockBuster:
    """What raises when filechannel blocks an asyncio loop."""
    guard = BlockBuster("filechannel")
    for name in [name for name in guard.functions if "Lock" in name]:
        del guard.functions[name]  # ours are held for an instant
    for name in NEVER_ON_A_LOOP:
        guard.functions[name] = BlockBusterFunction(None, name, scanned_modules="filechannel")
    for function in guard.functions.values():
        for file, names in MAY_TOUCH_FILES.items():
            function.can_block_in(file, names)
    return guard


@pytest.fixture(autouse=True)
def _no_blocking(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test of the async methods in which filechannel blocks the event loop."""
    if request.node.get_closest_marker("anyio") is None:
        yield
        return
    guard = request.getfixturevalue("blockbuster")
    guard.activate()
    try:
        yield
    finally:
        guard.deactivate()
