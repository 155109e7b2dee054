"""Print the requirements for building and installing this project with the given extras, one per line."""

import sys
import tomllib
from pathlib import Path

pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
project = pyproject["project"]
groups = [pyproject["build-system"]["requires"], project["dependencies"]]
groups += [project["optional-dependencies"][extra] for extra in sys.argv[1:]]
print("\n".join(requirement for group in groups for requirement in group))
