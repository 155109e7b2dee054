"""Lets Spark find `format("filechannel")` by itself: it looks into every package that is called `pyspark_…`.

One that cannot be imported keeps Spark from finding any of them, so this one always can.
"""

from __future__ import annotations

__all__: list[str] = []

try:
    from filechannel.spark import ChannelSource as DefaultSource
except ImportError:  # without the extra there is nothing to be found, and whoever asks for it is told so
    pass
else:
    __all__ += ["DefaultSource"]
