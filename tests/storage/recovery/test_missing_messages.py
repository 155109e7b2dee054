"""The end of the log is lost, though a file says that it existed: warned at open, raised to readers, never reused."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from filechannel import ChannelOptions, CorruptRecordError
from filechannel._storage.store import Store
from tests.storage.background import Background
from tests.storage.boots import Boots
from tests.storage.channels import Message, opened, payloads_of, read_all, reader_of, take_all

GAP = 1 << 40

pytestmark = pytest.mark.usefixtures("background")


def _damage_header(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)


def _cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:1500])


DAMAGES: dict[str, Callable[[Path], object]] = {"header": _damage_header, "missing": Path.unlink, "cut off": _cut_off}


@pytest.fixture(params=DAMAGES)
def damage(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    """Something that happens to a segment file."""
    return DAMAGES[request.param]


@pytest.fixture(params=["process died", "booted", "copied"])
def come_back(request: pytest.FixtureRequest, boots: Boots, tmp_path: Path) -> Callable[[Path], Path]:
    """How the channel is found again; returns where."""

    def come_back(path: Path) -> Path:
        if request.param == "booted":
            boots.again()
        if request.param == "copied":
            return shutil.copytree(path, tmp_path / "copy")
        return path

    return come_back


def _send(store: Store, count: int) -> list[Message]:
    for number in range(count):
        store.log.append([b"%d:" % number + b"." * 1000])
    return read_all(store)


def _newest(path: Path) -> Path:
    return max(file for file in (path / "segments").glob("*.seg") if file.stem.isdigit())


def _left(messages: list[Message], file: Path) -> list[Message]:
    """Return what can still be read without the newest segment: if its file was cut off, it holds one message."""
    begin = int(file.stem)
    kept = 1 if file.exists() and file.stat().st_size == 1500 else 0
    before = [message for message in messages if message.offset < begin]
    return messages[: len(before) + kept]


@pytest.mark.parametrize("count", [3, 20], ids=["only segment", "newest segment"])
def test_a_lost_tail_is_reported_and_its_sequences_are_not_reused(
    path: Path,
    count: int,
    damage: Callable[[Path], object],
    come_back: Callable[[Path], Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Opening succeeds, one warning says what is lost, and readers get an error, or resume after it."""
    with opened(path) as store:
        messages, end = _send(store, count), store.control.write_offset
        store.flusher.flush()
    path = come_back(path)
    newest = _newest(path)
    damage(newest)
    left = _left(messages, newest)
    lost_from = messages[len(left)].offset
    with caplog.at_level(logging.WARNING, "filechannel"), opened(path) as store:
        assert store.control.tail().sequence == count
        assert store.log.append([b"next"]) >= GAP
        with pytest.raises(CorruptRecordError) as caught:
            read_all(store)
        assert caught.value.offset == lost_from
        found = read_all(store, skip=True)
        assert found[: len(left)] == left
        assert found[len(left) :] == [Message(b"next", GAP, count)]
    (warning,) = [record.getMessage() for record in caplog.records if "messages missing" in record.getMessage()]
    assert warning.startswith(f"{path}: messages missing: {count - len(left)}, at offsets {lost_from} to {end};")


def test_a_lost_tail_is_reported_once(
    path: Path, damage: Callable[[Path], object], boots: Boots, caplog: pytest.LogCaptureFixture
) -> None:
    """A later open, after another boot too, does not repeat it."""
    with opened(path) as store:
        _send(store, 20)
        store.flusher.flush()
    damage(_newest(path))
    with opened(path):
        assert caplog.text.count("messages missing") == 1
    caplog.clear()
    with opened(path):
        pass
    boots.again()
    with opened(path) as store, pytest.raises(CorruptRecordError):
        read_all(store)
    assert not caplog.records


def test_what_was_never_flushed_is_known_while_the_machine_runs(path: Path, damage: Callable[[Path], object]) -> None:
    """If only the process died, the tail says what was there, and what other segments hold stays."""
    with opened(path) as store:
        messages = _send(store, 20)
    newest = _newest(path)
    damage(newest)
    left = _left(messages, newest)
    with opened(path) as store:
        assert store.control.tail().sequence == 20
        assert read_all(store, skip=True) == left
        store.log.append([b"next"])
        with pytest.raises(CorruptRecordError):
            read_all(store)
        assert read_all(store, skip=True)[len(left) :] == [Message(b"next", GAP, 20)]


def test_what_was_never_flushed_is_not_missed_after_a_power_cut(
    path: Path, boots: Boots, background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    """After a power cut messages that were never flushed are not reported as missing."""
    with opened(path) as store:
        _send(store, 20)
        begin = store.segments.begins[-1]
    background.forget()
    _newest(path).unlink()
    boots.again()
    with caplog.at_level(logging.WARNING, "filechannel"), opened(path) as store:
        assert all(message.offset < begin for message in read_all(store))
    assert not caplog.records


def test_a_lost_segment_without_messages_is_not_a_loss(
    path: Path, come_back: Callable[[Path], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """The sequences say that no message is missing, though there is an offset gap before it."""
    with opened(path) as store:
        messages = _send(store, 5)
        with store.log.writing():
            store.log.abandon_active()
    path = come_back(path)
    _newest(path).unlink()
    with caplog.at_level(logging.WARNING, "filechannel"), opened(path) as store:
        assert store.log.append([b"next"]) > GAP
        assert [message.sequence for message in read_all(store)] == list(range(6))
        assert read_all(store)[:5] == messages
    assert not caplog.records


def test_if_everything_is_lost_the_number_is_a_bound(
    path: Path, come_back: Callable[[Path], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Without any segment the number of messages purged before is unknown."""
    with opened(path) as store:
        _send(store, 5)
        store.purge()
        start = store.control.oldest_offset
        _send(store, 2)
        store.flusher.flush()
        end = store.control.write_offset
    path = come_back(path)
    for file in (path / "segments").iterdir():
        file.unlink()
    with caplog.at_level(logging.WARNING, "filechannel"), opened(path) as store:
        assert store.control.tail().sequence == 7
        with pytest.raises(CorruptRecordError) as caught:
            read_all(store)
        assert caught.value.offset == start
        assert payloads_of(store, skip=True) == []
    assert f"messages missing: up to 7, at offsets {start} to {end};" in caplog.text


def test_a_purged_channel_misses_nothing(
    path: Path, come_back: Callable[[Path], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """What was purged is not lost, and sequences continue."""
    with opened(path) as store:
        _send(store, 5)
        store.purge()
    path = come_back(path)
    for file in (path / "segments").iterdir():
        file.unlink()
    with caplog.at_level(logging.WARNING, "filechannel"), opened(path) as store:
        store.log.append([b"next"])
        assert [message.sequence for message in read_all(store)] == [5]
    assert not caplog.records


def test_a_consumer_in_a_lost_tail_gets_an_error(path: Path, come_back: Callable[[Path], Path]) -> None:
    """A consumer in a lost tail keeps its position and gets the error, and one at the end continues."""
    with opened(path) as store:
        messages = _send(store, 20)
        for name, count in (("inside", 19), ("at the end", 20)):
            cursor = store.cursors.open(name)
            reader = reader_of(store, cursor)
            reader.move(store.lookup.earliest())
            for _ in range(count):
                reader.native.take()
            reader.close()
            store.cursors.close(cursor)
        store.flusher.flush()
    path = come_back(path)
    _newest(path).unlink()
    with opened(path) as store:
        store.log.append([b"next"])
        for name in ("inside", "at the end"):
            cursor = store.cursors.open(name)
            position = cursor.position
            assert position is not None
            reader = reader_of(store, cursor)
            reader.move(position.log_position)
            if name == "inside":
                with pytest.raises(CorruptRecordError) as caught:
                    reader.native.take()
                assert caught.value.offset == messages[19].offset
            else:
                assert [message.sequence for message in take_all(reader)] == [20]
            reader.close()
            store.cursors.close(cursor)


def test_a_sealed_channel_stays_sealed(path: Path, come_back: Callable[[Path], Path]) -> None:
    """The checkpoint says that the channel is sealed, and readers get an error with what is lost."""
    with opened(path) as store:
        _send(store, 20)
        store.seal()
        store.flusher.flush()
    path = come_back(path)
    _newest(path).unlink()
    for _ in range(2):
        with opened(path) as store:
            assert store.control.sealed
            assert store.control.tail().sequence == 20
            with pytest.raises(CorruptRecordError):
                read_all(store)
            assert store.has_ended(store.control.write_offset)


@pytest.mark.parametrize("bit", [12, 14, 40])
def test_an_end_with_a_wrong_checksum_is_not_believed(path: Path, bit: int) -> None:
    """A flipped bit in the newest header costs nothing: its checksum is wrong."""
    with opened(path, ChannelOptions(segment_size=1 << 20)) as store:
        messages = _send(store, 20)
    with _newest(path).open("r+b") as file:
        file.seek(24)
        file.write((1 << bit).to_bytes(8, "little"))
    with opened(path) as store:
        assert read_all(store) == messages
        store.log.append([b"next"])
        assert payloads_of(store)[20:] == [b"next"]


def test_a_start_in_a_lost_tail_is_refused(path: Path, come_back: Callable[[Path], Path]) -> None:
    """The error says that the offset is damaged, not that it is wrong."""
    with opened(path) as store:
        messages = _send(store, 20)
        store.flusher.flush()
    path = come_back(path)
    _newest(path).unlink()
    with opened(path) as store:
        for message in messages[18:]:
            with pytest.raises(CorruptRecordError) as caught:
                store.lookup.at(message.offset)
            assert caught.value.offset == message.offset
            with pytest.raises(CorruptRecordError):
                store.lookup.numbered(message.sequence)
