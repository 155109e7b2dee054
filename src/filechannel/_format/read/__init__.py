"""Reading records with a cursor, with acknowledgements, or as a member of a group.

These modules are the pure-Python implementation of the C files in `_native/read`. They import `memory` and the modules
of `_format` itself. Start with `reader`.
"""
