"""One channel through many lives, from one seed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

from filechannel._format import load_u64
from filechannel._format.layout import PAGE, RESERVED_END, WRITE_TAIL
from filechannel._storage.control.control_file import CONTROL
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
        remounting: bool = False,
        forgetful: bool = False,
    ) -> None:
        """*remounting*: the power is not cut; the disk comes back within the boot, through another mount.

        *forgetful*: only the control page comes back older than it was, within the same boot and mount.
        """
        self._root = root
        self._random = Random(seed)
        self._boots = boots
        self._make_life = partial(Life, random=self._random, background=background, thrifty=thrifty, dropping=dropping)
        self._remounting = remounting
        self._forgetful = forgetful
        self._mounted = 1
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
        boot, mounted = self._boots.current, self._mounted
        for moment in moments[: _IMAGES - 1]:
            self._begin(moment, boot, mounted).end()
        return self._begin(moments[-1], boot, mounted)

    def _begin(self, moment: Moment, boot: int, mounted: int) -> Life:
        root, power_was_cut = self._next_root(), self._random.random() < 0.75
        self._boots.current, self._mounted = boot, mounted
        page_is_old = power_was_cut and self._forgetful
        if page_is_old:
            power_was_cut = False
            tree = moment.image.with_old_page(root, CONTROL, self._choose_page)
        elif power_was_cut:
            if self._remounting:
                self._mounted += 1
            else:
                self._boots.again()
            tree = moment.image.cut_power(root, self._random)
        else:
            tree = moment.image.materialize(root)
        life = self._make_life(root, story=moment.story.copy(), tree=tree, mounted=self._mounted)
        try:
            life.check(power_was_cut=power_was_cut, page_is_old=page_is_old)
        except BaseException:
            life.end()
            raise
        return life

    def _choose_page(self, pages: list[bytes]) -> bytes:
        """Return a page, but not of a moment between append and publish.

        That append could not be distinguished from one whose process was killed.
        """
        whole = [page for page in pages if len(page) == PAGE]
        quiet = [page for page in whole if load_u64(page, RESERVED_END) <= load_u64(page, WRITE_TAIL)]
        return self._random.choice(quiet) if quiet else pages[-1]
