"""Integrations with other frameworks. Each one needs its extra."""
