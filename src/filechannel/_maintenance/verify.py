"""Looking at every byte of a channel that means anything, without changing one.

It reads storage alone, so it works while others send and receive, and with nobody there. They do not stand still
meanwhile: segments are compressed, given up and used again. So whatever seems to be damaged is looked at again, and
what is gone by then, or is another file, was none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock
from typing import TypeAlias, final

from .._storage.files import Files
from .chain import Chain, Link, read_chain
from .findings import Finding, Report
from .segment_check import Checked, SegmentCheck, read_head
from .small_files import check_small_files
from .stretches import CheckPayload
from .survey import Survey

Progress: TypeAlias = Callable[[int, int], object]
"""Told how many bytes of how many were looked at; any thread may call it."""
_MOST_THREADS = 8
_LOOKS = 5  # at what seems to be damaged while others use the channel


class _EndedError(Exception):
    """Another thread has failed, or the user has had enough."""


@final
class Verification:
    """Looks at one channel."""

    def __init__(
        self,
        survey: Survey,
        *,
        check: CheckPayload | None = None,
        progress: Progress = lambda _done, _total: None,
        threads: int | None = None,
    ) -> None:
        self._survey = survey
        self._progress = progress
        self._threads = threads or min(os.cpu_count() or 1, _MOST_THREADS)
        self._segment_check = SegmentCheck(survey, check, self._tick)
        self._lock = Lock()
        self._ended = Event()
        self._done = 0
        self._total = 0

    def run(self) -> tuple[Chain, list[Checked]]:
        """Look at all segments; what is returned first is the chain that they were looked at as."""
        chain = read_chain(self._survey)
        if chain.findings and self._survey.slots:  # it may have been in the middle of something
            again = read_chain(self._survey).findings
            chain = replace(chain, findings=tuple(finding for finding in chain.findings if finding in again))
        return chain, self._check(chain)

    def _check(self, chain: Chain) -> list[Checked]:
        self._done, self._total = 0, chain.size
        self._progress(0, self._total)
        with ThreadPoolExecutor(self._threads, "filechannel-verify") as pool:
            futures: list[Future[Checked]] = []
            try:
                futures += [pool.submit(self._check_one, link) for link in chain.links]
                return [future.result() for future in futures]
            except BaseException:
                self._ended.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _tick(self, size: int) -> None:
        if self._ended.is_set():
            raise _EndedError
        with self._lock:
            self._done += size
            done = min(self._done, self._total)
        self._progress(done, self._total)

    def _check_one(self, link: Link) -> Checked:
        """Check a segment; while others use the channel, believe damage only if a second look finds the same."""
        checked = self._segment_check.check(link.head, link.bounds)
        for _ in range(_LOOKS):
            if not checked.findings or not self._survey.slots:
                break
            end = self._survey.end()
            head = read_head(self._survey.files, self._survey.segments, link.head.begin)
            if head is None or (end is not None and link.head.begin < end.oldest):
                return Checked(link.head, link.bounds)  # given up since
            seen, checked = checked, self._segment_check.check(head, link.bounds)
            if seen.findings == checked.findings:
                break
        return checked


def verify(
    path: Path,
    *,
    check: CheckPayload | None = None,
    progress: Progress = lambda _done, _total: None,
    threads: int | None = None,
    files: Files | None = None,
) -> Report:
    """Check every file of a channel. Changes nothing, opens nothing, and disturbs nobody.

    *check* looks at every payload. Raises `ChannelNotFoundError`, `NotAChannelError`, and `UnsupportedFormatError` for
    what only a newer version, or one with another extra, can read.
    """
    with Survey.of(path, files) as survey:
        chain, checked = Verification(survey, check=check, progress=progress, threads=threads).run()
        return report_of(survey, chain, checked)


def report_of(survey: Survey, chain: Chain, checked: list[Checked]) -> Report:
    """Put together what was found."""
    findings: list[Finding] = [*check_small_files(survey, chain)]
    findings += chain.findings
    for each in checked:
        findings += each.findings
    return Report(
        path=survey.path,
        findings=tuple(findings),
        segments=len(checked),
        messages=sum(each.messages for each in checked),
        bytes=sum(stretch.stop - stretch.start for each in checked for stretch in each.stretches),
        lost=sum(each.lost for each in checked),
    )
