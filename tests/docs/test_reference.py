"""The reference has every public name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
import textwrap

import filechannel
from filechannel import _errors
from tests.docs.pages import ROOT

UNNAMED = {"UnsetType", "StreamReader", "StreamWriter", "BatchWriter"}
"""Classes in signatures that users do not need: of a default that they leave out, and of what Spark asks for."""
ENTRY = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def public_modules() -> list[str]:
    """Return the modules that users import, those of extras included."""
    found = ["filechannel"]
    for module in pkgutil.iter_modules(filechannel.__path__, "filechannel."):
        name = module.name.rpartition(".")[2]
        if not name.startswith("_") and name != "cli":
            found.append(module.name)
    package = importlib.util.find_spec("filechannel.integrations")
    if package is not None and package.submodule_search_locations is not None:
        locations = package.submodule_search_locations
        found += [module.name for module in pkgutil.iter_modules(locations, "filechannel.integrations.")]
    return found


def test_every_public_name_is_in_the_reference() -> None:
    """What is in `__all__` of a public module has an entry; what a module takes over from another has it there."""
    pages = [ROOT / "docs/reference.md", *(ROOT / "docs/reference").glob("*.md")]
    entries = {entry for page in pages for entry in ENTRY.findall(page.read_text())}
    missing = [
        f"{module}.{name}"
        for module in public_modules()
        for name in getattr(importlib.import_module(module), "__all__", ())
        if f"{module}.{name}" not in entries
        and (
            module == "filechannel"
            or getattr(filechannel, name, None) is not getattr(importlib.import_module(module), name)
        )
    ]
    assert not missing


def test_the_tree_of_errors_is_that_of_the_code() -> None:
    """The page draws the tree as the module does that defines the errors."""
    assert _errors.__doc__ is not None
    tree = textwrap.dedent(_errors.__doc__.partition("::\n\n")[2].partition("\n\n")[0])
    assert f"```text\n{tree}\n```" in (ROOT / "docs/reference/errors.md").read_text()


def test_the_tests_that_the_pages_name_exist() -> None:
    """Each test file that the page about reliability names exists."""
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs/guides/reliability.md").read_text())
    assert len(named) > 30
    assert not [name for name in named if not (ROOT / "tests" / name).is_file()]


def hidden_names() -> re.Pattern[str]:
    """Return what matches the names that the reference leaves out."""
    filters = re.findall(r'^ +- "!(\^[^"]+)"$', (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(filters) == 4
    return re.compile("|".join(filters))


def unknown_types(function: object, known: set[str]) -> set[str]:
    """Return the private classes of this package that a signature names."""
    plain = inspect.unwrap(function) if callable(function) else None
    annotations, names = getattr(plain, "__annotations__", {}), getattr(plain, "__globals__", {})
    words = {word for text in annotations.values() for word in re.findall(r"\w+", str(text))}
    found = {word: names[word] for word in words & set(names) if isinstance(names[word], type)}
    return {word for word, cls in found.items() if cls.__module__.startswith("filechannel.") and word not in known}


def test_signatures_name_only_what_users_can_look_up() -> None:
    """No method in the reference takes or returns an object of a class that is not in the reference."""
    hidden, wrong = hidden_names(), list[str]()
    for module in public_modules():
        content = importlib.import_module(module)
        known = {*getattr(content, "__all__", ()), *filechannel.__all__, *UNNAMED}
        for name in getattr(content, "__all__", ()):
            cls = getattr(content, name)
            members = inspect.getmembers(cls) if isinstance(cls, type) else [("", cls)]
            for member, value in members:
                function = value.fget if isinstance(value, property) else value
                if not hidden.search(member) and (missing := unknown_types(function, known)):
                    wrong.append(f"{module}.{name}.{member}: {', '.join(sorted(missing))}")
    assert not wrong
