"""What `import filechannel` gives: the public names, each documented, and nothing else."""

from __future__ import annotations

import inspect
import types

import pytest

import filechannel

CLASSES = [name for name in filechannel.__all__ if inspect.isclass(getattr(filechannel, name))]


def test_the_public_names_are_in_order() -> None:
    """`__all__` is sorted and has every name once."""
    assert filechannel.__all__ == sorted(set(filechannel.__all__))


def test_every_public_name_is_listed() -> None:
    """A name without underscore in the package is in `__all__`, unless it is a module."""
    visible = {
        name
        for name, value in vars(filechannel).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and name != "annotations"
    }
    assert visible == set(filechannel.__all__)


@pytest.mark.parametrize("name", filechannel.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    """Whatever is exported says in its own words what it is."""
    member = getattr(filechannel, name)
    assert not name.startswith("_")
    assert inspect.getdoc(member)
    if inspect.isclass(member):
        assert "__doc__" in vars(member)
        assert vars(member)["__doc__"]


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_method_is_documented(name: str) -> None:
    """The methods and properties of exported classes are documented, with what they inherit from anyio."""
    for method, value in inspect.getmembers(getattr(filechannel, name)):
        if not method.startswith("_") and (callable(value) or isinstance(value, property)):
            assert inspect.getdoc(value), f"{name}.{method}"


@pytest.mark.parametrize("name", CLASSES)
def test_no_public_signature_is_vague(name: str) -> None:
    """No public method takes or returns `Any`."""
    for method, value in inspect.getmembers(getattr(filechannel, name), inspect.isfunction):
        if not method.startswith("_") and value.__module__.startswith("filechannel"):
            for place, annotation in value.__annotations__.items():
                assert "Any" not in str(annotation).replace("AnyStr", ""), f"{name}.{method}: {place}"


def test_errors_have_one_root() -> None:
    """Every exported exception is a `FileChannelError`."""
    errors = [getattr(filechannel, name) for name in CLASSES if issubclass(getattr(filechannel, name), BaseException)]
    assert errors
    assert all(issubclass(error, filechannel.FileChannelError) for error in errors)


def test_a_star_import_gives_the_public_names() -> None:
    """`from filechannel import *` gives exactly what is listed."""
    namespace: dict[str, object] = {}
    exec("from filechannel import *", namespace)
    assert set(namespace) - {"__builtins__"} == set(filechannel.__all__)
