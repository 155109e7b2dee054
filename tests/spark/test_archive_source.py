"""An archive has what a channel has finished: whole, once, and readable where the channel is not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from filechannel import CorruptRecordError, Retention
from filechannel._maintenance.background.reclaim_now import gc
from filechannel.blocking import open_channel
from filechannel.spark import read_archive, ship
from filechannel.spark.open_channels import find_channels, opened, opened_to_read, opened_to_write
from filechannel.spark.read.read_bounds import bounds
from filechannel.spark.read.read_tasks import plan, read
from filechannel.spark.source_options import ReadOptions
from tests.spark.conftest import ROOT, java
from tests.spark.messages import Order, fill, orders
from tests.storage.compressing import compress_all


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """Where an archive may be made."""
    return f"file://{tmp_path}/elsewhere/archive"


def segments(archive: str) -> Path:
    """Return where an archive has its segments."""
    return Path(archive.removeprefix("file://")) / "segments"


def names(archive: str) -> list[str]:
    """Return the names of the segments of an archive, and of whatever else lies there."""
    return sorted(path.name for path in segments(archive).iterdir() if path.suffix != ".idx")


def rows(archive: str, **options: object) -> list[dict[str, object]]:
    """Read an archive as tasks do, in this process."""
    given = ReadOptions.of_batch({"archive": archive, **{name: str(value) for name, value in options.items()}})
    columns = find_channels(given)[0].table.spark
    with opened_to_read(given.paths[0], given) as store:
        tasks = plan(store, *bounds(store, given), given.partitions)
    return [row for task in tasks for batch in read(given, columns, task) for row in _rows(batch)]


def _rows(batch: pa.RecordBatch) -> list[dict[str, object]]:
    return batch.to_pylist()  # type: ignore[attr-defined, no-any-return]


def ids(archive: str, **options: object) -> list[object]:
    """Return the numbers of the orders in an archive."""
    return [row["id"] for row in rows(archive, **options)]


def finished(path: Path) -> int:
    """Return how many messages lie in finished segments."""
    with opened(path) as store:
        return store.segments.header(store.segments.begins[-1]).first_sequence


def test_what_is_finished_is_copied_once(path: Path, archive: str) -> None:
    """Each shipment copies what was finished since the last one, and the archive is read without the channel."""
    fill(path, orders(1000), segment_size=4096)
    first = ship(path, archive)
    assert (first.present, first.gaps, len(names(archive))) == (0, 0, first.segments)
    assert ids(archive) == list(range(finished(path)))
    assert ship(path, archive).segments == 0
    fill(path, orders(1000, 1000))
    second = ship(path, archive)
    assert second.present == first.segments
    assert second.end > first.end
    expected = finished(path)
    shutil.rmtree(path)
    found = rows(archive, includeMetadata="true", numPartitions=7)
    assert [row["id"] for row in found] == [row["sequence"] for row in found] == list(range(expected))
    assert ids(archive, startingOffset=found[777]["offset"]) == list(range(777, expected))


def test_compressed_segments_are_shipped_unchanged(path: Path, archive: str) -> None:
    """Compressed segments are copied byte by byte, and plain ones are compressed on the way."""
    fill(path, orders(500), segment_size=4096)
    with opened_to_write(path) as store:
        compressed = compress_all(store, block_size=512)
    fill(path, orders(500, 500))
    assert ship(path, archive).segments > len(compressed) > 0
    own = {file.name: file.read_bytes() for file in (path / "segments").glob("*.z")}
    assert own == {name: (segments(archive) / name).read_bytes() for name in own}
    assert ids(archive) == list(range(finished(path)))


def test_a_channel_that_is_sealed_is_copied_to_its_end(path: Path, archive: str) -> None:
    """The last segment of a sealed channel is shipped, because it never changes."""
    fill(path, orders(300), segment_size=4096)
    with open_channel(path, Order) as channel:
        channel.seal()
    ship(path, archive)
    assert ids(archive) == list(range(300))


def test_what_is_cut_off_or_damaged_is_copied_again(path: Path, archive: str) -> None:
    """A short file in the archive is copied again at once, and a changed one with `verify` if the channel has it."""
    fill(path, orders(1000), segment_size=4096)
    ship(path, archive)
    one, other = (segments(archive) / name for name in names(archive)[2:4])
    one.write_bytes(one.read_bytes()[:-1])
    content = bytearray(other.read_bytes())
    content[-1] ^= 1
    other.write_bytes(content)
    assert ship(path, archive).segments == 1
    assert ship(path, archive, verify=True).segments == 1
    assert ship(path, archive, verify=True).segments == 0
    assert ids(archive) == list(range(finished(path)))
    other.write_bytes(content)
    with open_channel(path, Order) as channel:
        channel.purge()
    with pytest.raises(CorruptRecordError, match="damaged in file:"):
        ship(path, archive, verify=True)


def test_nothing_is_removed_before_it_was_shipped(path: Path, archive: str) -> None:
    """With a consumer name the channel keeps what is not in the archive, and reclaims the rest."""
    once = Retention(after_consumed="delete")
    fill(path, orders(200), segment_size=4096, retention=once)
    ship(path, archive, consumer="archive")
    with open_channel(path, Order) as channel, channel.receiver("other") as receiver:
        assert channel.statistics().oldest_offset > 0
        with channel.sender() as sender:
            for number in range(200, 1000, 100):
                sender.send_many(orders(100, number))
        assert len(receiver.receive_many(2000)) > 800
        assert (gc(path).pinned_by or "") != ""
        (lag,) = [each.lag_messages for each in channel.consumers() if each.name == "archive"]
        assert lag > 700
    assert ship(path, archive, consumer="archive").gaps == 0
    assert ids(archive) == list(range(finished(path)))


def test_messages_missing_in_the_archive_are_counted(
    path: Path, archive: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages that were deleted before they were shipped leave a counted gap, at which readers raise."""
    fill(path, orders(300), segment_size=4096)
    ship(path, archive)
    with open_channel(path, Order) as channel, channel.sender() as sender:
        sender.send_many(orders(300, 300))
        channel.purge()
        sender.send_many(orders(300, 600))
    assert ship(path, archive).gaps == 1
    assert "were deleted before they were shipped" in caplog.text
    with pytest.raises(CorruptRecordError, match="missing"):
        ids(archive)


def test_an_archive_belongs_to_one_channel(path: Path, archive: str, tmp_path: Path) -> None:
    """An archive refuses segments of another channel, and does not change."""
    fill(path, orders(300), segment_size=4096)
    fill(tmp_path / "other", orders(300), segment_size=4096)
    ship(path, archive)
    before = names(archive)
    with pytest.raises(ValueError, match="this is the archive of another channel"):
        ship(tmp_path / "other", archive)
    assert names(archive) == before
    with pytest.raises(ValueError, match=r"archive='ftp://host/a': Arrow cannot open it .* ship\(..., spark=spark\)"):
        ship(path, "ftp://host/a")


def test_a_damaged_end_is_an_error(path: Path, archive: str) -> None:
    """An archive whose last segment is damaged raises an error that names it, and the next shipment copies it again."""
    fill(path, orders(300), segment_size=4096)
    ship(path, archive)
    last = segments(archive) / names(archive)[-1]
    last.write_bytes(b"nothing")
    with pytest.raises(CorruptRecordError, match=last.name):
        ids(archive)
    assert ship(path, archive, consumer="archive").segments == 1
    assert ids(archive) == list(range(finished(path)))


def test_a_killed_shipment_is_resumed(path: Path, archive: str) -> None:
    """After a shipment was killed every file with its final name is complete, and the next one continues."""
    fill(path, orders(20_000), segment_size=4096)
    program = "import sys; from filechannel.spark import ship; ship(sys.argv[1], sys.argv[2])"
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    for least in (3, 30):
        shipper = subprocess.Popen([sys.executable, "-c", program, str(path), archive], env=environment)
        while shipper.poll() is None and len(list(segments(archive).glob("*.z"))) < least:
            time.sleep(0.001)
        shipper.send_signal(signal.SIGKILL)
        shipper.wait()
        assert ids(archive) == list(range(len(ids(archive))))
    left = segments(archive) / f"new-{names(archive)[0]}-0123456789ab"
    left.write_bytes(b"half")
    assert ship(path, archive, verify=True).present >= 30
    assert all(name.endswith(".seg.z") and name[0] != "n" for name in names(archive))
    assert ids(archive) == list(range(finished(path)))


# With Spark


def test_spark_reads_an_archive(spark: SparkSession, path: Path, archive: str) -> None:
    """With `archive` instead of `path` Spark reads columns, offsets and splits of the channel."""
    fill(path, orders(1000), segment_size=4096)
    ship(path, archive)
    expected = finished(path)
    path.rename(path.with_name("gone"))
    frame = spark.read.format("filechannel").option("archive", archive).option("numPartitions", "5").load()
    assert sorted(row.id for row in frame.collect()) == list(range(expected))
    reader = spark.read.format("filechannel").schema("id bigint, sku string").option("archive", archive)
    assert reader.load().orderBy("id").first() == (0, "sku-0")
    for options, message in (
        ({"archive": archive, "path": "x"}, "options 'archive' and 'path' cannot be combined"),
        ({"archive": f"{archive}/no"}, "there is no archive; create it with filechannel.spark.ship"),
    ):
        with pytest.raises(PySparkException, match=message):
            spark.read.format("filechannel").options(**options).load()


def test_spark_ships_and_reads_where_only_it_can(spark: SparkSession, path: Path, archive: str) -> None:
    """Through Hadoop Spark ships the same archive, and reads rows from files that it gives to the workers."""
    fill(path, orders(1000), segment_size=4096)
    assert ship(path, archive, spark=spark).segments > 5
    assert ship(path, archive, spark=spark, verify=True).segments == 0
    assert ship(path, archive).segments == 0
    expected = finished(path)
    path.rename(path.with_name("gone"))
    frame = read_archive(spark, archive, options={"includeMetadata": "true"})
    found = sorted((row.sequence, row.id, row.offset) for row in frame.collect())
    assert [(number, number) for number in range(expected)] == [row[:2] for row in found]
    later = read_archive(
        spark,
        archive,
        schema="id bigint",
        options={"startingOffset": str(found[500][2]), "endingOffset": str(found[600][2])},
    )
    assert sorted(row.id for row in later.collect()) == list(range(500, 600))
    assert read_archive(spark, archive, options={"startingOffset": "latest"}).count() == 0
    (segments(archive).parent / "channel.json").write_bytes((path.with_name("gone") / "channel.json").read_bytes())
    assert read_archive(spark, archive).count() == expected
    with pytest.raises(ValueError, match=r"archive='nowhere://x': Spark cannot open it .*nowhere"):
        ship(path.with_name("gone"), "nowhere://x", spark=spark)
    with pytest.raises(ValueError, match="no field 'nothing'"):
        read_archive(spark, archive, schema="nothing int")
    with pytest.raises(ValueError, match="option 'consumer' is not known for an archive"):
        read_archive(spark, archive, options={"consumer": "x"})
    with pytest.raises(ValueError, match="there is no archive"):
        read_archive(spark, f"{archive}/no")


@pytest.mark.skipif(java() is None, reason="no Java 17 or newer: install one or set JAVA_HOME")
def test_the_command_ships_through_hadoop(path: Path, archive: str) -> None:
    """`filechannel ship --hadoop` starts its own Spark, and ships an archive that Arrow reads."""
    fill(path, orders(1000), segment_size=4096)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    command = [sys.executable, "-m", "filechannel", "ship", str(path), archive, "--hadoop", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["segments"] > 5
    assert ship(path, archive).segments == 0
    assert ids(archive) == list(range(finished(path)))
