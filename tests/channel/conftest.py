"""Fixtures of the tests of the typed objects."""

from tests.channel.gates import gate

__all__ = ["gate"]
