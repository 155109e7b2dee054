"""Positions of producers, and messages that are staged until they are published together.

Imports `log` and what is below it. Start with `producer_positions`.
"""
