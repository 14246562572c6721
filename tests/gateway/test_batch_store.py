"""What drivers write about a batch: once for each line, and only while they hold its lease."""

from __future__ import annotations

import pytest
import redis
from minilab_gateway.batches.batch import Batch, NewBatch, output_file_id
from minilab_gateway.batches.batch_store import BatchStore, LeaseLostError, Written
from minilab_gateway.batches.file_store import FileStore

from minilab_gen.protocol import keys


def made(store: BatchStore) -> Batch:
    asked = NewBatch("", "/v1/completions", "file-x", None, 3600, None, None, None)
    batch = store.create("batch_x", asked, 3600)
    assert batch is not None
    return batch


def test_a_line_is_written_once_however_often_it_is_recorded(server: redis.Redis) -> None:
    store = BatchStore(server)
    batch = made(store)
    assert store.hold("batch_x", "one")

    for content in (b"first\n", b"second\n"):
        store.record(batch, "one", [Written(1, True, content), Written(2, False, content)])

    assert server.lrange(keys.file_parts(output_file_id("batch_x")), 0, -1) == [b"first\n"]
    (found,) = store.read(["batch_x"])
    assert found is not None
    assert (found.completed, found.failed, found.output_bytes) == (1, 1, 6)


def test_a_driver_without_the_lease_changes_nothing(server: redis.Redis) -> None:
    store = BatchStore(server)
    batch = made(store)
    assert store.hold("batch_x", "one")
    assert not store.hold("batch_x", "two")

    with pytest.raises(LeaseLostError):
        store.record(batch, "two", [Written(1, True, b"x\n")])
    with pytest.raises(LeaseLostError):
        store.move(batch, "two", {"status": "failed"})
    store.release("batch_x", "two")

    (found,) = store.read(["batch_x"])
    assert found is not None
    assert found.to_json() == batch.to_json()
    assert store.done("batch_x") == set()
    assert 0 < server.ttl(keys.batch_driver("batch_x")) <= 10


def test_a_part_that_is_sent_again_is_there_once(server: redis.Redis) -> None:
    files = FileStore(server)

    assert [files.append("file-x", number, b"x") for number in (0, 1, 1)] == [True, True, True]
    assert files.append("file-x", 5, b"x") is False

    assert files.parts("file-x", 0) == [b"x", b"x"]
