"""Writing rows to channels, exactly once.

Imports the modules of `spark` itself. Start with `sink`.
"""
