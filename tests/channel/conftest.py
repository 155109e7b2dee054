"""Fixtures of the tests of the typed objects."""

from tests.channel.gates import gate
from tests.channel.streams import make_pair

__all__ = ["gate", "make_pair"]
