"""Every test of the format runs against both implementations."""

from __future__ import annotations

import importlib
import warnings
from types import SimpleNamespace

import pytest

from tests.format.implementations import native_implementation, pure_implementation, why_no_native_core

with warnings.catch_warnings():
    # Without the C core the first import warns, and a warning is an error here.
    warnings.simplefilter("ignore", RuntimeWarning)
    importlib.import_module("filechannel._format")


@pytest.fixture(params=["pure", "native"], scope="session")
def impl(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Each implementation."""
    if request.param == "pure":
        return pure_implementation()
    reason = why_no_native_core()
    if reason is not None:
        pytest.skip(reason)
    return native_implementation()


@pytest.fixture(scope="session")
def both() -> tuple[SimpleNamespace, SimpleNamespace]:
    """The pure and the native implementation, to be compared."""
    reason = why_no_native_core()
    if reason is not None:
        pytest.skip(reason)
    return pure_implementation(), native_implementation()
