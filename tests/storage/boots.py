"""A machine that can be booted again."""

from __future__ import annotations

import pytest


class Boots:
    """Says which boot this is."""

    def __init__(self) -> None:
        self.current = 1
        self._newest = 1

    def again(self) -> None:
        """Boot: nothing that was not flushed can be believed any more."""
        self._newest += 1
        self.current = self._newest

    def id(self) -> bytes:
        """Return what the kernel would."""
        return self.current.to_bytes(16, "little")

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch) -> Boots:
        """Use it instead of the kernel."""
        boots = cls()
        for module in ("store", "writable_store", "recovery.create", "recovery.read_only", "recovery.recover"):
            monkeypatch.setattr(f"filechannel._storage.{module}.boot_id", boots.id)
        monkeypatch.setattr("filechannel._maintenance.verify.directory_scan.boot_id", boots.id)
        return boots
