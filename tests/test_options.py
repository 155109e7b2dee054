"""Options are validated when they are made, and compared with what is stored when a channel is opened."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filechannel._errors import OptionsMismatchError
from filechannel._options import (
    OPTIONS,
    UNSET,
    Capacity,
    ChannelOptions,
    Compression,
    Durability,
    OpenOptions,
    OptionScope,
    Retention,
    StoredOptions,
    UnsetType,
)

GIB = 1 << 30

durabilities = st.one_of(
    st.sampled_from([Durability.OS, Durability.FSYNC]),
    st.floats(min_value=1e-6, max_value=1e6).map(Durability.interval),
)
capacities = st.builds(
    Capacity,
    max_bytes=st.none() | st.integers(4 << 20, 1 << 50),
    max_messages=st.integers(1, 1 << 50),
    fraction=st.none() | st.floats(min_value=1e-6, max_value=1.0),
    on_full=st.sampled_from(["wait", "raise", "drop_oldest"]),
)
retentions = st.builds(
    Retention,
    after_consumed=st.sampled_from(["delete", "keep"]),
    max_age=st.none() | st.floats(min_value=1e-6, max_value=1e6),
    max_bytes=st.none() | st.integers(1, 1 << 50),
)
compressions = st.builds(
    Compression,
    method=st.sampled_from(["zstd", "lz4", "gzip"]),
    level=st.none() | st.integers(1, 9),
    after=st.floats(min_value=0, max_value=1e6),
)
stored_values = st.fixed_dictionaries(
    {},
    optional={
        "capacity": st.none() | capacities,
        "retention": retentions,
        "compression": compressions,
        "spare_segments": st.integers(0, 64),
        "segment_size": st.integers(4096, 1 << 20),
        "max_message_size": st.integers(1, GIB - 1),
        "mode": st.integers(0o600, 0o777),
        "durability": durabilities,
    },
)


def _names(cls: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


def test_unset_options_mean_the_defaults_of_a_new_channel() -> None:
    """Without options a channel has 64 MiB segments, messages below 1 GiB, private files and OS durability.

    Consumed data is deleted, nothing is compressed, and the disk is the only limit.
    """
    assert ChannelOptions().resolve() == StoredOptions(
        segment_size=64 << 20,
        max_message_size=GIB - 1,
        mode=0o600,
        durability=Durability.OS,
        capacity=None,
        retention=Retention(after_consumed="delete"),
        compression=Compression(method="none"),
        spare_segments=2,
    )


def test_unset_options_mean_the_defaults_of_an_open() -> None:
    """Without options an open maps 8 segments, never spins, raises at damage and checks only the type of messages."""
    assert ChannelOptions().per_open() == OpenOptions(
        max_mapped_segments=8, spin=0.0, poll_interval=0.05, on_corruption="raise", cursor_flush=None, validate=False
    )


def test_every_option_has_a_row_and_a_scope() -> None:
    """Each option is in the table, and in the class that its scope names."""
    assert set(OPTIONS) == _names(ChannelOptions)
    per_open = {name for name, option in OPTIONS.items() if option.scope is OptionScope.OPEN}
    assert _names(OpenOptions) == per_open
    assert _names(StoredOptions) == set(OPTIONS) - per_open


def test_every_default_is_allowed() -> None:
    """The default of an option passes its own check."""
    for name, option in OPTIONS.items():
        option.check(name, option.default)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("segment_size", 4095, "4096"),
        ("segment_size", (1 << 40) + 1, str(1 << 40)),
        ("segment_size", -1, "4096"),
        ("max_message_size", 0, "from 1"),
        ("max_message_size", GIB, str(GIB - 1)),
        ("mode", 0, "0o600"),
        ("mode", 0o400, "0o600"),
        ("mode", 0o1600, "0o777"),
        ("mode", -1, "0o777"),
        ("spare_segments", -1, "from 0"),
        ("spare_segments", 65, "64"),
        ("max_mapped_segments", 1, "at least 2"),
        ("on_corruption", "ignore", "'raise' or 'skip'"),
        ("cursor_flush", 0, "an int"),
        ("cursor_flush", -1, "an int"),
        ("cursor_flush", 0.0, "a float"),
        ("cursor_flush", float("inf"), "a float"),
    ],
)
def test_a_value_that_is_not_allowed_is_a_value_error(name: str, value: object, allowed: str) -> None:
    """The error names the option, the value and what is allowed."""
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=name) as caught:
        ChannelOptions(**arguments)
    shown = f"{value:#o}" if name == "mode" else repr(value)
    assert f"{name}={shown}" in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_size", 4096.0),
        ("segment_size", True),
        ("segment_size", None),
        ("max_message_size", "1000"),
        ("mode", "600"),
        ("mode", True),
        ("durability", "os"),
        ("durability", 0.5),
        ("capacity", 1 << 20),
        ("retention", "keep"),
        ("retention", None),
        ("compression", "zstd"),
        ("compression", None),
        ("spare_segments", 1.0),
        ("max_mapped_segments", 2.5),
        ("on_corruption", None),
        ("cursor_flush", "os"),
        ("cursor_flush", True),
        ("cursor_flush", [1]),
        ("validate", 1),
        ("validate", "yes"),
    ],
)
def test_a_value_of_the_wrong_type_is_a_type_error(name: str, value: object) -> None:
    """The error names the option, the value and its type."""
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(TypeError, match=name) as caught:
        ChannelOptions(**arguments)
    assert f"{name}={value!r}" in str(caught.value)
    assert type(value).__name__ in str(caught.value)


def test_options_are_keyword_only() -> None:
    """A value without its name is refused."""
    positional: Any = ChannelOptions
    with pytest.raises(TypeError):
        positional(4096)


def test_options_are_frozen() -> None:
    """Options never change once they are made."""
    options: Any = ChannelOptions(segment_size=4096)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.segment_size = 8192


def test_an_unknown_option_is_refused() -> None:
    """A misspelled option is an error, not ignored."""
    arguments: dict[str, Any] = {"segment_sise": 4096}
    with pytest.raises(TypeError, match="segment_sise"):
        ChannelOptions(**arguments)


def test_the_repr_shows_what_is_set() -> None:
    """The repr of options shows those that are set."""
    assert repr(ChannelOptions()) == "ChannelOptions()"
    options = ChannelOptions(segment_size=4096, durability=Durability.FSYNC)
    assert repr(options) == "ChannelOptions(segment_size=4096, durability=Durability.FSYNC)"


def test_permission_bits_are_shown_in_octal() -> None:
    """A mode looks in a repr and in an error as one writes it."""
    options = ChannelOptions(mode=0o640)
    assert repr(options) == "ChannelOptions(mode=0o640)"
    assert "mode=0o640," in repr(options.resolve())
    with pytest.raises(OptionsMismatchError, match=r"mode=0o600, not 0o640;"):
        options.check_against(ChannelOptions().resolve())


@pytest.mark.parametrize("form", [ChannelOptions(), ChannelOptions().resolve(), ChannelOptions().per_open()], ids=repr)
def test_a_repr_is_the_call_that_makes_it(form: ChannelOptions | StoredOptions | OpenOptions) -> None:
    """What is shown can be pasted."""
    policies = {kind.__name__: kind for kind in (Capacity, Compression, Durability, Retention)}
    names = {**policies, type(form).__name__: type(form)}
    assert eval(repr(form), names) == form


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_options_travel(duplicate: Any) -> None:
    """A pickled or copied object equals the original, unset options stay unset."""
    options = ChannelOptions(segment_size=4096, durability=Durability.interval(0.5), on_corruption="skip")
    again = duplicate(options)
    assert again == options
    assert hash(again) == hash(options)
    assert again.mode is UNSET
    assert duplicate(options.resolve()) == options.resolve()
    assert duplicate(options.per_open()) == options.per_open()


def test_unset_is_one_falsy_value() -> None:
    """The sentinel is a single object, also after pickling, and false."""
    assert pickle.loads(pickle.dumps(UNSET)) is UNSET
    assert not UNSET
    assert repr(UNSET) == "UNSET"


@given(stored_values)
def test_what_is_set_is_what_resolves(values: dict[str, Any]) -> None:
    """Resolved options have the values that are set and never contradict the options they came from."""
    options = ChannelOptions(**values)
    stored = options.resolve()
    assert {name: getattr(stored, name) for name in values} == values
    options.check_against(stored)


@given(stored_values)
def test_unset_options_contradict_nothing(values: dict[str, Any]) -> None:
    """A channel of any options opens without options, or with options of one open."""
    stored = ChannelOptions(**values).resolve()
    ChannelOptions().check_against(stored)
    ChannelOptions(max_mapped_segments=2, on_corruption="skip", validate=True).check_against(stored)


@pytest.mark.parametrize(
    ("name", "given_value"),
    [
        ("segment_size", 8192),
        ("max_message_size", 10),
        ("mode", 0o640),
        ("durability", Durability.FSYNC),
        ("retention", Retention(max_age=1.0)),
    ],
)
def test_an_explicit_other_value_is_a_mismatch(name: str, given_value: object) -> None:
    """The error has the option, what is stored and what was given."""
    stored = ChannelOptions(segment_size=4096).resolve()
    arguments: dict[str, Any] = {name: given_value}
    with pytest.raises(OptionsMismatchError) as caught:
        ChannelOptions(**arguments).check_against(stored)
    assert (caught.value.option, caught.value.stored, caught.value.given) == (name, getattr(stored, name), given_value)
    assert caught.value.path is None


def test_a_mismatch_names_the_channel() -> None:
    """The error names the channel that it is given."""
    stored, other = ChannelOptions().resolve(), ChannelOptions(segment_size=4096)
    with pytest.raises(OptionsMismatchError, match="data/orders") as caught:
        other.check_against(stored, Path("data/orders"))
    assert caught.value.path == Path("data/orders")
    with pytest.raises(OptionsMismatchError, match="data/orders"):
        stored.changed_by(other, Path("data/orders"))


def test_only_options_that_can_be_changed_name_configure() -> None:
    """A mismatch of a channel-wide option names configure(), one of a fixed option does not."""
    stored = ChannelOptions().resolve()
    with pytest.raises(OptionsMismatchError, match=r"'channel\.configure\(durability=Durability\.FSYNC\)' can change"):
        ChannelOptions(durability=Durability.FSYNC).check_against(stored)
    with pytest.raises(OptionsMismatchError, match="fixed at creation"):
        ChannelOptions(mode=0o640).check_against(stored)


def test_channel_wide_options_can_be_changed() -> None:
    """Changing the durability leaves everything else as it was."""
    stored = ChannelOptions(segment_size=4096).resolve()
    changed = stored.changed_by(ChannelOptions(durability=Durability.FSYNC, segment_size=4096))
    assert changed == dataclasses.replace(stored, durability=Durability.FSYNC)


def test_fixed_options_cannot_be_changed() -> None:
    """Another value of an option that is fixed at creation is refused."""
    with pytest.raises(OptionsMismatchError, match="segment_size"):
        ChannelOptions().resolve().changed_by(ChannelOptions(segment_size=4096))


def test_options_of_one_open_are_not_stored() -> None:
    """An option that belongs to one open cannot be stored, even with its default."""
    with pytest.raises(ValueError, match="validate"):
        ChannelOptions().resolve().changed_by(ChannelOptions(validate=False))


@given(stored_values)
def test_stored_options_survive_the_manifest(values: dict[str, Any]) -> None:
    """What is stored comes back from JSON as it was."""
    stored = ChannelOptions(**values).resolve()
    assert StoredOptions.from_json(json.loads(json.dumps(stored.to_json()))) == stored


def test_a_missing_channel_wide_option_has_its_default() -> None:
    """A manifest that is older than a channel-wide option is read as if it had the default."""
    content = ChannelOptions(segment_size=4096).resolve().to_json()
    del content["durability"]
    assert StoredOptions.from_json(content) == ChannelOptions(segment_size=4096).resolve()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"segment_size": "big"}, "segment_size"),
        ({"segment_size": 12}, "segment_size"),
        ({"mode": None}, "mode"),
        ({"durability": "sometimes"}, "durability"),
        ({"durability": {"interval": -1}}, "interval"),
        ({"durability": {"interval": True}}, "durability"),
        ({"durability": {"interval": 1, "more": 2}}, "durability"),
        ({"durability": []}, "durability"),
        ({"capacity": {}}, "capacity"),
        ({"capacity": {"max_bytes": 1}}, "max_bytes"),
        ({"capacity": {"max_bytes": 1 << 20}}, "segment_size"),
        ({"capacity": {"max_messages": 1, "more": 2}}, "capacity"),
        ({"retention": None}, "retention"),
        ({"retention": {"max_age": "old"}}, "max_age"),
        ({"compression": {"method": "rar"}}, "method"),
        ({"compression": {"level": 99}}, "level"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_damaged_stored_options_are_a_value_error(change: dict[str, object], reason: str) -> None:
    """The error says which option of a manifest is damaged or unknown."""
    with pytest.raises(ValueError, match=reason):
        StoredOptions.from_json(ChannelOptions().resolve().to_json() | change)


@pytest.mark.parametrize("content", [None, [], "os", 5, {}])
def test_stored_options_that_are_none_are_a_value_error(content: object) -> None:
    """Something else instead of the options, or options without the fixed ones, is damage."""
    with pytest.raises(ValueError, match="option"):
        StoredOptions.from_json(content)


def test_durabilities_compare_by_value() -> None:
    """Equal durabilities are equal, hash alike and print as they are written."""
    assert Durability.interval(1) == Durability.interval(1.0) != Durability.interval(2)
    assert hash(Durability.interval(1)) == hash(Durability.interval(1.0))
    assert len({Durability.OS, Durability.FSYNC, Durability.interval(0.5)}) == 3
    assert repr(Durability.OS) == "Durability.OS"
    assert repr(Durability.FSYNC) == "Durability.FSYNC"
    assert repr(Durability.interval(0.5)) == "Durability.interval(0.5)"


@pytest.mark.parametrize("constant", [Durability.OS, Durability.FSYNC])
def test_the_constants_stay_themselves(constant: Durability) -> None:
    """OS and FSYNC are the same objects after pickling, copying and JSON."""
    assert pickle.loads(pickle.dumps(constant)) is constant
    assert copy.deepcopy(constant) is constant
    assert Durability.from_json(constant.to_json()) is constant


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 10**400])
def test_an_interval_is_longer_than_nothing(seconds: float) -> None:
    """Zero, negative and endless intervals are refused."""
    with pytest.raises(ValueError, match="seconds greater than 0"):
        Durability.interval(seconds)


@pytest.mark.parametrize("seconds", ["1", None, True])
def test_an_interval_is_a_number(seconds: Any) -> None:
    """Anything but a number is refused."""
    with pytest.raises(TypeError, match="seconds"):
        Durability.interval(seconds)


def test_a_durability_is_one_of_three() -> None:
    """There is no fourth durability, and only an interval has seconds."""
    anything: Any = Durability
    for arguments in (("sometimes",), ("os", 1.0), ("fsync", 0.0)):
        with pytest.raises(ValueError, match="durability"):
            anything(*arguments)
    with pytest.raises(TypeError, match="seconds"):
        anything("interval")


@given(durabilities)
def test_durabilities_travel(durability: Durability) -> None:
    """A durability survives JSON and pickling."""
    assert Durability.from_json(json.loads(json.dumps(durability.to_json()))) == durability
    assert pickle.loads(pickle.dumps(durability)) == durability


def test_a_capacity_has_a_limit() -> None:
    """One that limits nothing is refused, and so is a limit that is none."""
    anything: Any = Capacity
    with pytest.raises(ValueError, match="at least one limit"):
        anything()
    for arguments in ({"max_bytes": 16383}, {"max_messages": 0}, {"fraction": 0.0}, {"fraction": 1.5}):
        with pytest.raises(ValueError, match="capacity"):
            anything(**arguments)
    for arguments in ({"max_bytes": 1e9}, {"max_messages": "1"}, {"fraction": True}, {"fraction": "half"}):
        with pytest.raises(TypeError, match="capacity"):
            anything(**arguments)
    with pytest.raises(ValueError, match="'wait' or 'raise' or 'drop_oldest'"):
        anything(max_messages=1, on_full="panic")


def test_four_segments_fit_a_capacity() -> None:
    """A segment larger than a quarter of the capacity is refused, wherever the two come together."""
    with pytest.raises(ValueError, match="at most a quarter of it, 262144"):
        ChannelOptions(segment_size=262145, capacity=Capacity(max_bytes=1 << 20))
    stored = ChannelOptions(segment_size=262145).resolve()
    with pytest.raises(ValueError, match="at most a quarter of it, 262144"):
        stored.changed_by(ChannelOptions(capacity=Capacity(max_bytes=1 << 20)))


@pytest.mark.parametrize(("max_bytes", "segment_size"), [(1 << 40, 64 << 20), (100 << 20, 16 << 20), (16384, 4096)])
def test_segments_are_as_small_as_a_capacity_asks_for(max_bytes: int, segment_size: int) -> None:
    """Where the segment size is not given, it is the largest power of two of which the capacity holds four."""
    assert ChannelOptions(capacity=Capacity(max_bytes=max_bytes)).resolve().segment_size == segment_size


@pytest.mark.parametrize(
    ("fraction", "max_bytes", "segment_size"),
    [(0.5, None, 64 << 20), (2**-20, None, 256 << 10), (2**-26, None, 4096), (0.5, 1 << 20, 256 << 10)],
)
def test_segments_are_as_small_as_a_part_of_a_disk_asks_for(
    fraction: float, max_bytes: int | None, segment_size: int
) -> None:
    """The segment size follows from a part of a disk, here of 1 TiB, and the smaller of two limits counts."""
    options = ChannelOptions(capacity=Capacity(fraction=fraction, max_bytes=max_bytes))
    assert options.resolve(1 << 40).segment_size == segment_size


@pytest.mark.parametrize(
    ("segment_size", "disk", "text"),
    [(UNSET, 1 << 39, "is 8192 bytes .* four segments, 16384"), (8192, 1 << 40, "is 16384 bytes .*, 32768")],
)
def test_four_segments_fit_a_part_of_a_disk(segment_size: int | UnsetType, disk: int, text: str) -> None:
    """A part of a disk that does not fit four segments is refused for a new channel, and when it is configured."""
    capacity = Capacity(fraction=2**-26)
    with pytest.raises(ValueError, match=f"capacity fraction=1.49.* {text}"):
        ChannelOptions(segment_size=segment_size, capacity=capacity).resolve(disk)
    changed = ChannelOptions(segment_size=8192).resolve().changed_by(ChannelOptions(capacity=capacity))
    with pytest.raises(ValueError, match="four segments, 32768"):
        changed.check_disk(disk)
    changed.check_disk(1 << 41)


def test_a_compression_level_is_one_of_its_method() -> None:
    """Each compression method accepts its own levels and refuses others."""
    assert Compression(method="zstd", level=22).level == 22
    with pytest.raises(ValueError, match="level of gzip"):
        Compression(method="gzip", level=22)
    anything: Any = Compression
    with pytest.raises(ValueError, match="'zstd' or 'lz4'"):
        anything(method="rar")
    with pytest.raises(ValueError, match="after"):
        Compression(after=-1.0)


def test_a_retention_says_what_happens_to_what_was_consumed() -> None:
    """A retention refuses an unknown value for consumed messages, and a time or size of zero."""
    anything: Any = Retention
    for arguments in ({"after_consumed": "archive"}, {"max_age": 0.0}, {"max_bytes": 0}):
        with pytest.raises(ValueError, match="retention"):
            anything(**arguments)


@pytest.mark.parametrize(
    ("mode", "meant"), [(640, "0o640"), (600, "0o600"), (777, "0o777"), (0o1777, None), (689, None)]
)
def test_a_mode_in_decimal_is_asked_about(mode: int, meant: str | None) -> None:
    """A mode of decimal digits such as 640 is refused with the question whether 0o640 was meant."""
    with pytest.raises(ValueError, match="must be permission bits") as refused:
        ChannelOptions(mode=mode)
    assert str(refused.value).endswith("?") is (meant is not None)
    assert meant is None or f"did you mean {meant}?" in str(refused.value)
