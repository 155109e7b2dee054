"""Arguments that commands share, and everything that reaches the terminal.

Imports no other package of `cli`. Start with `output`.
"""
