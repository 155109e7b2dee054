"""Consumers come and go back while others remove what nobody needs: who was first, without waiting for each other.

Whoever decides what is the oldest message looks where every consumer stands, and a consumer that is put somewhere looks
what is the oldest. Each of them stores what it wants before it looks, and one word, changed only by compare-and-swap,
puts the two in order:

- A consumer is put somewhere: store its position, count the word up, look what is decided. If that lies behind the
  position it came too late, and looks for another place.
- The oldest is decided: take note of the word, look where everybody stands, store `RECLAIMING`, and set the word's
  lowest bit if it is still as noted. If not, somebody was put somewhere meanwhile, and everything is looked at again.

With the bit, it is decided, whatever becomes of the one who did: everybody takes `RECLAIMING` for the oldest from that
moment on, and the next one who maintains the channel writes it where it belongs. So nobody holds a lock here: whoever
is killed or stopped at any instruction keeps nobody from registering, seeking or removing. Positions that only grow
need none of this.
"""

from __future__ import annotations

from typing import final

from .._format import load_u32, load_u64, store_u64, swap_if_u32
from .._format.layout import RECLAIMING, REGISTRY, REGISTRY_COUNT, REGISTRY_DECIDED
from .._offset import Offset
from .control import Control

_U32 = (1 << 32) - 1


@final
class Registry:
    """Puts in order who stands somewhere and what is removed."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._words = control.map

    def settle(self, offset: int) -> bool:
        """Hold on to what lies at a position that was just stored; False if it was too late, and that is gone."""
        self._count_up()
        return offset >= self._control.oldest_offset

    def _count_up(self) -> None:
        seen = load_u32(self._words, REGISTRY)
        while not swap_if_u32(self._words, REGISTRY, seen, seen + REGISTRY_COUNT & _U32):
            seen = load_u32(self._words, REGISTRY)

    # For whose turn it is to maintain the channel

    def note(self) -> int:
        """Return what `decide` wants to know; whoever is put somewhere after this is not missed."""
        # Swapped, not loaded: with that it comes before or after whoever counts up, and sees what they stored.
        seen = load_u32(self._words, REGISTRY)
        while not swap_if_u32(self._words, REGISTRY, seen, seen):
            seen = load_u32(self._words, REGISTRY)
        return seen

    def decide(self, oldest: Offset, noted: int) -> bool:
        """Let this be the oldest, unless somebody was put somewhere since *noted*. The caller holds the writer word."""
        if noted & REGISTRY_DECIDED:
            return False
        store_u64(self._words, RECLAIMING, oldest)
        if not swap_if_u32(self._words, REGISTRY, noted, noted | REGISTRY_DECIDED):
            return False
        self.carry_out()
        return True

    def overrule(self, oldest: Offset) -> None:
        """Let this be the oldest, whoever stands before it: that one was overtaken. The caller holds the writer word.

        Who is put somewhere meanwhile sees it, or is overtaken as well.
        """
        self.carry_out()
        self._control.oldest_offset = max(oldest, self._control.oldest_offset)

    @property
    def is_decided(self) -> bool:
        """Whether something is decided that was not carried out."""
        return bool(load_u32(self._words, REGISTRY) & REGISTRY_DECIDED)

    def carry_out(self) -> None:
        """Write down what is decided, by us or by one who died. The caller holds the writer word."""
        if not self.is_decided:
            return
        self._control.oldest_offset = max(load_u64(self._words, RECLAIMING), self._control.oldest_offset)
        seen = load_u32(self._words, REGISTRY)
        while not swap_if_u32(self._words, REGISTRY, seen, seen & ~REGISTRY_DECIDED):
            seen = load_u32(self._words, REGISTRY)
