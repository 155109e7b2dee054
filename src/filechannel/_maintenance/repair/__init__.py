"""Repair of a damaged channel: what can be read stays in place, the rest is moved to quarantine.

Imports `verify`. Start with `repair`.
"""
