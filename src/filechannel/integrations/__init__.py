"""Channels in other people's frameworks; each module needs its extra."""
