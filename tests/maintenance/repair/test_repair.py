"""Repairing a channel: what can be read stays, what cannot is put aside, and the channel is whole afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from filechannel import ChannelLockedError, CorruptRecordError
from filechannel._format.layout import CURSOR_OWNER
from filechannel._maintenance.repair.repair import plan_repair, repair
from filechannel._maintenance.verify.verification import verify
from filechannel._storage.consumers.cursor_file_format import Origin, read_origin, read_term
from filechannel._storage.idempotent_producer import IdempotentProducer
from tests.maintenance.damage import CONSUMED, DAMAGES, SENT, back_up, make_channel, overwrite, segments_of
from tests.maintenance.stores import consume
from tests.maintenance.verify.test_verification import contents
from tests.storage.boots import Boots
from tests.storage.channels import opened, payloads_of, read_all

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("background")


def _repaired(path: Path, name: str) -> tuple[list[bytes], list[bytes]]:
    """Damage a channel and repair it; return what has to be left, and what is."""
    sent = make_channel(path)
    like = path.with_name("like")
    make_channel(like)
    damage, _, lost = DAMAGES[name]
    damage(path)
    repaired = repair(path, like=like)
    assert [finding for finding in repaired.report.findings if finding.severity != "note"] == []
    with opened(path, create=False) as store:
        return [payload for number, payload in enumerate(sent) if number not in lost], payloads_of(store)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_repaired_channel_is_whole(path: Path, name: str) -> None:
    """After a repair nothing is found, and every undamaged message is read without skipping."""
    left, found = _repaired(path, name)
    assert found == left


@pytest.mark.parametrize("name", DAMAGES)
def test_a_repaired_channel_works(path: Path, name: str) -> None:
    """A repaired channel accepts messages, its consumers resume, and messages keep their sequences."""
    sent = make_channel(path)
    like = path.with_name("like")
    make_channel(like)
    damage, _, lost = DAMAGES[name]
    damage(path)
    repair(path, like=like)
    with opened(path, create=False) as store:
        store.log.append([b"resumes"])
        expected = {payload: number for number, payload in enumerate(sent) if number not in lost}
        found = {message.payload: message.sequence for message in read_all(store)}
        assert found.pop(b"resumes") >= SENT
        assert found == expected
        start = 0 if name == "cursor" else CONSUMED
        assert consume(store) == [payload for payload, n in expected.items() if n >= start] + [b"resumes"]
        assert IdempotentProducer(store, "job").last == 1 or SENT - 1 in lost
    assert verify(path).is_clean


@pytest.mark.parametrize("name", DAMAGES)
def test_planning_changes_nothing(path: Path, name: str) -> None:
    """A plan says what a repair would do, and changes nothing."""
    make_channel(path)
    DAMAGES[name][0](path)
    before = contents(path)
    plan = plan_repair(path)
    assert plan.actions or plan.unrepairable
    assert all(action.what and action.file for action in plan.actions)
    assert contents(path) == before


@pytest.mark.parametrize("name", DAMAGES)
def test_nothing_is_deleted(path: Path, name: str) -> None:
    """Every byte from before a repair is still stored or in quarantine; only headers and words change."""
    make_channel(path)
    DAMAGES[name][0](path)
    before = contents(path)
    repair(path, like=_like(path))
    kept = set(contents(path / "quarantine").values()) if (path / "quarantine").exists() else set()
    now = contents(path)
    for file, content in before.items():
        head = 64 if ".seg" in file else 0
        is_there = file in now and content[head:] == now[file][head : len(content)]
        has_words = file.startswith(("control", "wake", "consumers", "producers"))
        assert is_there or content in kept or has_words, file
    names = {file.name for file in (path / "quarantine").glob("*")}
    for name in names:
        reason = f"{name}.json" if f"{name}.json" in names else name
        assert json.loads((path / "quarantine" / reason).read_text())["reason"]


def _like(path: Path) -> Path:
    like = path.with_name("like")
    make_channel(like)
    return like


def test_a_whole_channel_is_left_alone(path: Path) -> None:
    """A repair of an intact channel finds and changes nothing."""
    make_channel(path)
    before = contents(path)
    assert repair(path).actions == ()
    assert contents(path) == before


def test_a_process_that_has_it_open_is_not_disturbed(path: Path) -> None:
    """A repair is refused while a process has the channel open, and names it."""
    make_channel(path)
    with opened(path):
        DAMAGES["payload"][0](path)
        before = contents(path / "segments")
        with pytest.raises(ChannelLockedError) as error:
            repair(path)
        assert error.value.pid == os.getpid()
        assert contents(path / "segments") == before
        assert plan_repair(path).writers[0].pid == os.getpid()


def test_a_backup_by_hard_links_is_left_alone(path: Path) -> None:
    """A repair leaves the files of a backup by hard links unchanged, and replaces those it writes in place."""
    sent = make_channel(path)
    backup = back_up(path)
    before, plan = contents(backup), plan_repair(path)
    assert {"control", "lock", "consumers/consumer.cursor"} < {action.file for action in plan.actions}
    assert plan.unrepairable == ()
    assert repair(path).report.is_clean
    with opened(path, create=False) as store:
        store.log.append([b"resumes"])
        assert payloads_of(store) == [*sent, b"resumes"]
        store.flusher.flush()
    assert contents(backup) == before


def test_a_process_that_has_a_linked_channel_open_is_not_disturbed(path: Path) -> None:
    """While a process has a hard-linked channel open a repair is refused and changes nothing."""
    sent = make_channel(path)
    with opened(path) as store:
        back_up(path)
        before = {file: file.stat().st_ino for file in path.rglob("*")}
        with pytest.raises(ChannelLockedError) as error:
            repair(path)
        assert error.value.pid == os.getpid()
        assert {file: file.stat().st_ino for file in path.rglob("*")} == before
        store.log.append([b"resumes"])
        store.flusher.flush()
    assert repair(path).report.is_clean
    with opened(path, create=False) as store:
        assert payloads_of(store) == [*sent, b"resumes"]


def test_without_the_message_type(path: Path) -> None:
    """A lost manifest cannot be rebuilt from nothing: the report says so, the rest is repaired, and
    no guess is made.
    """
    make_channel(path)
    DAMAGES["manifest"][0](path)
    DAMAGES["payload"][0](path)
    repaired = repair(path)
    assert [finding.kind for finding in repaired.report.findings if finding.severity != "note"] == ["manifest"]
    assert len(repaired.actions) == 1
    assert repair(path, like=_like(path)).report.is_clean


def test_a_manifest_that_lost_its_options(path: Path) -> None:
    """A repair keeps what can be read of a manifest, and takes the rest from the files."""
    sent = make_channel(path)
    content = json.loads((path / "channel.json").read_text())
    known = content["id"]
    del content["options"]
    (path / "channel.json").write_text(json.dumps(content))
    assert repair(path).report.is_clean
    content = json.loads((path / "channel.json").read_text())
    assert (content["id"], content["codec"], content["options"]["segment_size"]) == (known, "raw", 4096)
    with opened(path, create=False) as store:
        assert payloads_of(store) == sent


def test_damage_after_a_power_cut(path: Path, boots: Boots) -> None:
    """Damage before the checkpoint is repaired first; then opening finds the end, and everything after it is stored."""
    sent = make_channel(path)
    boots.again()
    DAMAGES["payload"][0](path)
    DAMAGES["header"][0](path)
    DAMAGES["checkpoints"][0](path)
    assert repair(path).report.is_clean
    with opened(path) as store:
        assert payloads_of(store) == [payload for number, payload in enumerate(sent) if number != 16]


def test_a_segment_and_its_index_are_damaged(path: Path) -> None:
    """A repair removes a wrong index together with a segment of which nothing is left."""
    make_channel(path)
    segment = segments_of(path)[1]
    segment.write_bytes(bytes(segment.stat().st_size))
    index = segment.with_suffix(".idx")
    index.write_bytes(index.read_bytes() + bytes(range(100)))
    repair(path)
    assert verify(path).is_clean


def test_readers_get_errors_before_and_not_afterwards(path: Path) -> None:
    """Before a repair a reader gets an error; afterwards it reads across the gap."""
    make_channel(path)
    overwrite(segments_of(path)[0], 200)
    with opened(path) as store, pytest.raises(CorruptRecordError):
        payloads_of(store)
    repair(path)
    with opened(path) as store:
        assert len(payloads_of(store)) == SENT - 1


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("removed last segment", "kinds"),
        ("links", "kinds"),
        *(
            pytest.param(name, "each", marks=pytest.mark.soak)
            for name in ("removed last segment", "two records", "block", "cursor", "index", "tail")
        ),
    ],
)
def test_repair_may_die_at_every_step(name: str, which: str) -> None:
    """A repair that dies at any step leaves the channel no worse, and a second repair finishes it."""
    command = [sys.executable, "-m", "tests.maintenance.dying_repair", name, which]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stderr}"
    assert int(done.stdout) > (200 if which == "each" else 50)


@pytest.mark.parametrize("kind", ["flushed", "copied"])
@pytest.mark.parametrize("group", range(2))
def test_random_damage_is_repaired(group: int, kind: str) -> None:
    """After a flipped bit, a cut or an overwritten block anywhere, a repair keeps every undamaged message."""
    command = [sys.executable, "-m", "tests.maintenance.repairing", str(group * 30), "30", kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stderr}"
    assert int(done.stdout) == 30


def test_a_lost_position_keeps_its_expiry_and_its_transactions(path: Path) -> None:
    """A repair of a lost position keeps the expiry of the consumer, and the position of its transactions."""
    make_channel(path)
    origin = Origin(4711, b"o" * 16)
    with opened(path, create=False) as store:
        cursor = store.cursors.open("steps")
        cursor.store(0, 0, 0)
        cursor.expire_after(60)
        cursor.origin = origin
        store.cursors.close(cursor)
    overwrite(path / "consumers" / "steps.cursor", 0, b"?" * CURSOR_OWNER)
    repair(path)
    content = (path / "consumers" / "steps.cursor").read_bytes()
    assert (read_origin(content), read_term(content)) == (origin, 60_000_000_000)
    assert verify(path).is_clean
