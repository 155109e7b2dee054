"""Every test of the format runs against both twins."""

from __future__ import annotations

import importlib
import warnings
from types import SimpleNamespace

import pytest

from tests.format.twins import native_twin, pure_twin, why_no_native_twin

with warnings.catch_warnings():
    # Without the C core the first import says so, and a warning is an error here.
    warnings.simplefilter("ignore", RuntimeWarning)
    importlib.import_module("filechannel._format")


@pytest.fixture(params=["pure", "native"], scope="session")
def twin(request: pytest.FixtureRequest) -> SimpleNamespace:
    """One twin after the other."""
    if request.param == "pure":
        return pure_twin()
    reason = why_no_native_twin()
    if reason is not None:
        pytest.skip(reason)
    return native_twin()


@pytest.fixture(scope="session")
def both() -> tuple[SimpleNamespace, SimpleNamespace]:
    """The pure and the native twin, to be compared."""
    reason = why_no_native_twin()
    if reason is not None:
        pytest.skip(reason)
    return pure_twin(), native_twin()
