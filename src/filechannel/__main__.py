"""Entry point of `python -m filechannel`, the command line."""

from .cli import main

main()
