"""Repair of a damaged channel: readable records stay in place, the rest is moved to quarantine.

Imports `verify`. Start with `repair`.
"""
