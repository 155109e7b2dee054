"""Lets Spark find `format("filechannel")` by itself: it looks for data sources in every package named `pyspark_…`.

If one of these packages cannot be imported, Spark finds none of them. So importing this one never fails.
"""

from __future__ import annotations

__all__: list[str] = []

try:
    from filechannel.spark import ChannelSource as DefaultSource
except ImportError:  # without the extra there is no data source, and Spark reports that when it is used
    pass
else:
    __all__ += ["DefaultSource"]
