"""What `import filechannel`, and each module beside it, gives: the public names, each documented, nothing else."""

from __future__ import annotations

import inspect
import types

import pytest

import filechannel
import filechannel.blocking
import filechannel.integrations.fastapi
import filechannel.spark

MODULES = [filechannel, filechannel.blocking, filechannel.spark, filechannel.integrations.fastapi]
NAMES = [pytest.param(module, name, id=f"{module.__name__}.{name}") for module in MODULES for name in module.__all__]
CLASSES = [name for name in NAMES if inspect.isclass(getattr(*name.values))]  # type: ignore[call-overload]

each_module = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
each_name = pytest.mark.parametrize(("module", "name"), NAMES)
each_class = pytest.mark.parametrize(("module", "name"), CLASSES)


@each_module
def test_the_public_names_are_in_order(module: types.ModuleType) -> None:
    """`__all__` is sorted and has every name once."""
    assert module.__all__ == sorted(set(module.__all__))


@pytest.mark.parametrize("module", [filechannel, filechannel.blocking], ids=lambda module: module.__name__)
def test_every_public_name_is_listed(module: types.ModuleType) -> None:
    """A name without underscore in the package is in `__all__`, unless it is a module."""
    visible = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and name != "annotations"
    }
    assert visible == set(module.__all__)


@each_name
def test_every_public_name_is_documented(module: types.ModuleType, name: str) -> None:
    """Whatever is exported says in its own words what it is."""
    member = getattr(module, name)
    assert not name.startswith("_")
    assert inspect.getdoc(member)
    if inspect.isclass(member):
        assert "__doc__" in vars(member)
        assert vars(member)["__doc__"]


@each_class
def test_every_public_method_is_documented(module: types.ModuleType, name: str) -> None:
    """The methods and properties of exported classes are documented, with what they inherit from anyio."""
    for method, value in inspect.getmembers(getattr(module, name)):
        function = value.fget if isinstance(value, property) else value
        is_ours = not str(getattr(function, "__module__", "")).startswith("starlette")
        if not method.startswith("_") and callable(function) and is_ours:
            assert inspect.getdoc(value), f"{name}.{method}"


@each_class
def test_no_public_signature_is_vague(module: types.ModuleType, name: str) -> None:
    """No public method takes or returns `Any`."""
    for method, value in inspect.getmembers(getattr(module, name), inspect.isfunction):
        if not method.startswith("_") and value.__module__.startswith("filechannel"):
            for place, annotation in value.__annotations__.items():
                assert "Any" not in str(annotation).replace("AnyStr", ""), f"{name}.{method}: {place}"


def test_errors_have_one_root() -> None:
    """Every exported exception is a `FileChannelError`."""
    members = [getattr(filechannel, name) for name in filechannel.__all__]
    errors = [member for member in members if inspect.isclass(member) and issubclass(member, BaseException)]
    assert errors
    assert all(issubclass(error, filechannel.FileChannelError) for error in errors)


@each_module
def test_a_star_import_gives_the_public_names(module: types.ModuleType) -> None:
    """`from filechannel import *` gives exactly what is listed."""
    namespace: dict[str, object] = {}
    exec(f"from {module.__name__} import *", namespace)
    assert set(namespace) - {"__builtins__"} == set(module.__all__)
