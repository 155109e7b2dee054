"""One channel through many lives, from one seed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

from tests.storage.background import Background
from tests.storage.boots import Boots
from tests.storage.lives import Life, Moment

_IMAGES = 3
"""Of each life so many moments are looked at; the channel lives on from the last of them."""


class History:
    """Lives, dies of a kill or a power cut, is looked at, and lives on."""

    def __init__(
        self,
        root: Path,
        seed: int,
        boots: Boots,
        background: Background,
        *,
        thrifty: bool = False,
        dropping: bool = False,
    ) -> None:
        self._root = root
        self._random = Random(seed)
        self._boots = boots
        self._make_life = partial(Life, random=self._random, background=background, thrifty=thrifty, dropping=dropping)
        self._count = 0

    def run(self) -> None:
        """Live through all of it."""
        root = self._next_root()
        root.mkdir()
        life = self._make_life(root)
        for _ in range(self._random.choice((1, 2, 4))):
            try:
                life.spend()
            finally:
                life.end()
            life = self._die(life.moments)
        life.end()

    def _next_root(self) -> Path:
        self._count += 1
        return self._root / str(self._count)

    def _die(self, moments: list[Moment]) -> Life:
        """Look at what is there after some of the moments, and return the life that begins with the last of them."""
        self._random.shuffle(moments)
        boot = self._boots.current
        for moment in moments[: _IMAGES - 1]:
            self._begin(moment, boot).end()
        return self._begin(moments[-1], boot)

    def _begin(self, moment: Moment, boot: int) -> Life:
        root, power_was_cut = self._next_root(), self._random.random() < 0.75
        self._boots.current = boot
        if power_was_cut:
            self._boots.again()
            tree = moment.image.cut_power(root, self._random)
        else:
            tree = moment.image.materialize(root)
        life = self._make_life(root, story=moment.story.copy(), tree=tree)
        try:
            life.check(power_was_cut=power_was_cut)
        except BaseException:
            life.end()
            raise
        return life
