"""`channel.json`: what a channel is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from filechannel import ChannelOptions, Durability, NotAChannelError, UnsupportedFormatError
from filechannel._format.layout import FORMAT_VERSION
from filechannel._storage.manifest import MANIFEST, Manifest
from filechannel._storage.system.os_calls import Files

files = Files()


def _manifest() -> Manifest:
    options = ChannelOptions(segment_size=8192, durability=Durability.interval(0.5), mode=0o640)
    return Manifest.new("machine", "msgpack", {"root": "é"}, options.resolve())


def _content(tmp_path: Path) -> dict[str, object]:
    _manifest().write(files, tmp_path)
    content: dict[str, object] = json.loads((tmp_path / MANIFEST).read_text())
    return content


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Every field of a manifest is read as it was written."""
    manifest = _manifest()
    manifest.write(files, tmp_path)
    assert Manifest.read(files, tmp_path) == manifest


def test_people_can_read_it(tmp_path: Path) -> None:
    """The file is indented JSON in UTF-8 that ends with a newline, with the permissions of the channel."""
    _manifest().write(files, tmp_path)
    text = (tmp_path / MANIFEST).read_text(encoding="utf-8")
    assert '\n  "schema": {\n    "root": "é"\n  }' in text
    assert text.endswith("}\n")
    assert (tmp_path / MANIFEST).stat().st_mode & 0o777 == 0o640


def test_every_channel_has_its_own_id() -> None:
    """Two channels that are created alike have different ids."""
    assert _manifest().id != _manifest().id


def test_changes_leave_the_rest_alone(tmp_path: Path) -> None:
    """Configuring a channel, or moving it to another machine, changes no other field of the manifest."""
    manifest = _manifest()
    options = replace(manifest.options, durability=Durability.FSYNC)
    changed = manifest.with_changes(schema={"root": "int"}, options=options).on_machine("other")
    changed.write(files, tmp_path)
    found = Manifest.read(files, tmp_path)
    assert (found.id, found.created, found.codec) == (manifest.id, manifest.created, manifest.codec)
    assert (found.schema, found.options, found.machine) == ({"root": "int"}, options, "other")


@pytest.mark.parametrize("name", ["format", "id", "machine", "created", "codec", "options"])
@pytest.mark.parametrize("value", [None, 7.5, []])
def test_a_damaged_field_is_named(tmp_path: Path, name: str, value: object) -> None:
    """A field that is missing or of another kind is a clear error that names the file."""
    content = _content(tmp_path)
    content[name] = value
    (tmp_path / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(NotAChannelError, match=r"channel\.json is damaged"):
        Manifest.read(files, tmp_path)


@pytest.mark.parametrize("options", ["x", {}, {"segment_size": 1}, {"segment_size": "big"}, {"unknown": 1}])
def test_damaged_options_are_named(tmp_path: Path, options: object) -> None:
    """A manifest with missing, invalid or unknown options raises an error that names the file."""
    (tmp_path / MANIFEST).write_text(json.dumps(_content(tmp_path) | {"options": options}))
    with pytest.raises(NotAChannelError, match=r"channel\.json is damaged"):
        Manifest.read(files, tmp_path)


def test_a_damaged_id_is_named(tmp_path: Path) -> None:
    """A manifest with an invalid id raises an error that names the file."""
    (tmp_path / MANIFEST).write_text(json.dumps(_content(tmp_path) | {"id": "x"}))
    with pytest.raises(NotAChannelError, match=r"channel\.json is damaged"):
        Manifest.read(files, tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\0" * 300, b"\xff\xfe\xfd", b"[" * 100_000, b'{"format": 1', b"nonsense", b'{"format": NaN}'],
    ids=["empty", "torn", "zeros", "not text", "deep", "cut off", "no JSON", "not a number"],
)
def test_a_half_made_file_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    """Whatever is in the file, the error is typed and says which file it is."""
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(NotAChannelError, match=r"channel\.json"):
        Manifest.read(files, tmp_path)


def test_json_of_another_kind_is_refused(tmp_path: Path) -> None:
    """A manifest that is a JSON list is refused."""
    (tmp_path / MANIFEST).write_text("[]")
    with pytest.raises(NotAChannelError, match="not a JSON object"):
        Manifest.read(files, tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """A manifest of a newer version is refused and not changed, whatever else it has."""
    (tmp_path / MANIFEST).write_text(json.dumps({"format": FORMAT_VERSION + 1, "anything": True}))
    with pytest.raises(UnsupportedFormatError) as caught:
        Manifest.read(files, tmp_path)
    assert (caught.value.found, caught.value.supported) == (FORMAT_VERSION + 1, FORMAT_VERSION)


def test_what_a_dead_writer_left_does_not_matter(tmp_path: Path) -> None:
    """A temporary file of a writer that died is ignored, and overwritten by the next one."""
    manifest = _manifest()
    manifest.write(files, tmp_path)
    (tmp_path / f"{MANIFEST}.new").write_bytes(b"{ half")
    assert Manifest.read(files, tmp_path) == manifest
    manifest.on_machine("other").write(files, tmp_path)
    assert Manifest.read(files, tmp_path).machine == "other"
    assert files.list(tmp_path) == [MANIFEST]
