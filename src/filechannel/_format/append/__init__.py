"""Encoding and appending: the pure-Python implementation of the C files of the same names.

Imports `memory` and the modules of `_format` itself. Start with `writer`.
"""
