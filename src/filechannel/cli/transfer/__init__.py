"""Reading and writing messages as JSON lines and Parquet, for `send`, `tail`, `export` and `import`.

Imports `ui`. Start with `formats`.
"""
