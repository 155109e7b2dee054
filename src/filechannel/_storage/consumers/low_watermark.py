"""The low watermark: lock-free ordering between positioning a consumer and reclaiming what no consumer needs.

A consumer is *positioned* when it is registered, seeks, or is moved back. The process that decides which message is the
oldest reads the position of every consumer, and a process that positions a consumer reads which message is the oldest.
Each of them stores its own value before it reads the other's, and one word, changed only by compare-and-swap, orders
the two:

- To position a consumer: store its position, increment the word, read the oldest offset. If that lies after the
  position, the messages there are already reclaimed, and the consumer needs another position.
- To decide on the oldest message: note the word, read the position of every consumer, store `RECLAIMING`, and set the
  word's lowest bit if the word is still as noted. If it is not, a consumer was positioned meanwhile, and
  everything is checked again.

Once the bit is set, the decision is final, whatever happens to the process that made it: from that moment on every
process takes `RECLAIMING` for the oldest offset, and the next process that does maintenance writes it to its own field.
So no lock is held here: a process that is killed or stopped at any instruction never keeps another one from
registering, seeking or reclaiming. Positions that only grow need none of this.
"""

from __future__ import annotations

from typing import final

from ..._format import load_u32, load_u64, store_u64, swap_if_u32
from ..._format.layout import RECLAIMING, REGISTRY, REGISTRY_COUNT, REGISTRY_DECIDED
from ..._offset import Offset
from ..control.control_page import Control

_U32 = (1 << 32) - 1


@final
class LowWatermark:
    """Orders the positioning of consumers and the removal of messages."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._words = control.map

    def retain_from(self, offset: int) -> bool:
        """Keep the messages from a position on that was just stored. Return False if they are already reclaimed."""
        self._count_up()
        return offset >= self._control.oldest_offset

    def _count_up(self) -> None:
        seen = load_u32(self._words, REGISTRY)
        while not swap_if_u32(self._words, REGISTRY, seen, seen + REGISTRY_COUNT & _U32):
            seen = load_u32(self._words, REGISTRY)

    # For the holder of the maintenance lock

    def note(self) -> int:
        """Return the argument for `decide`; a consumer that is positioned after this call is not missed."""
        # A swap, not a load: this orders it before or after every increment. It sees what was stored before an earlier
        # one.
        seen = load_u32(self._words, REGISTRY)
        while not swap_if_u32(self._words, REGISTRY, seen, seen):
            seen = load_u32(self._words, REGISTRY)
        return seen

    def decide(self, oldest: Offset, noted: int) -> bool:
        """Make this the oldest offset, unless a consumer was positioned since *noted*.

        The caller holds the writer lock.
        """
        if noted & REGISTRY_DECIDED:
            return False
        store_u64(self._words, RECLAIMING, oldest)
        if not swap_if_u32(self._words, REGISTRY, noted, noted | REGISTRY_DECIDED):
            return False
        self.carry_out()
        return True

    def overrule(self, oldest: Offset) -> None:
        """Make this the oldest offset, even if positions of consumers lie before it: they are overtaken.

        The caller holds the writer lock. A consumer that is positioned meanwhile sees the new offset, or is overtaken,
        too.
        """
        self.carry_out()
        self._control.oldest_offset = max(oldest, self._control.oldest_offset)

    @property
    def is_decided(self) -> bool:
        """Whether a decision was made but not carried out."""
        return bool(load_u32(self._words, REGISTRY) & REGISTRY_DECIDED)

    def carry_out(self) -> None:
        """Write the decided offset to its field, also if a process that died decided.

        The caller holds the writer lock.
        """
        if not self.is_decided:
            return
        self._control.oldest_offset = max(load_u64(self._words, RECLAIMING), self._control.oldest_offset)
        seen = load_u32(self._words, REGISTRY)
        while not swap_if_u32(self._words, REGISTRY, seen, seen & ~REGISTRY_DECIDED):
            seen = load_u32(self._words, REGISTRY)
