"""Reading back what was written, and every way in which a store can be wrong."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from input_pipelines.store.token_store import StoreError, TokenStore
from tests.kits.tiny_stores import FINGERPRINT, make_record, write_store

LENGTHS = [5, 9, 2, 30, 7, 12, 3, 8, 17]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("store"), LENGTHS, shards=3)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A separate store for tests that break it."""
    return write_store(tmp_path / "store", LENGTHS, shards=3)


def shard(folder: Path, number: int) -> Path:
    return sorted(folder.glob("*.array_record-*"))[number]


def test_reads_rows_in_the_order_asked_across_shards(folder: Path) -> None:
    store = TokenStore.open(str(folder), FINGERPRINT)
    rows = np.array([8, 0, 3, 3, 4, 8])
    passages = store.read(rows)
    expected = [make_record(f"p{row}", LENGTHS[row], row) for row in rows.tolist()]
    np.testing.assert_array_equal(passages.tokens, np.concatenate([r.tokens for r in expected]))
    np.testing.assert_array_equal(
        passages.word_starts, np.concatenate([r.word_starts for r in expected])
    )
    np.testing.assert_array_equal(passages.lengths, [LENGTHS[row] for row in rows])
    assert passages.tokens.dtype == np.int32 and passages.word_starts.dtype == np.bool_


def test_knows_its_size_lengths_ids_and_texts(folder: Path) -> None:
    store = TokenStore.open(str(folder))
    assert len(store) == len(LENGTHS) and store.max_length == max(LENGTHS)
    np.testing.assert_array_equal(store.lengths, LENGTHS)
    assert store.ids[4] == "p4" and store.row_of["p4"] == 4
    text = store.text(4)
    assert (text.id, text.title, text.text) == ("p4", "title p4", "text é of p4\0")
    assert text.source == "test"


def test_reading_nothing_gives_nothing(folder: Path) -> None:
    passages = TokenStore.open(str(folder)).read(np.array([], dtype=np.int64))
    assert passages.tokens.shape == passages.word_starts.shape == passages.lengths.shape == (0,)


def test_texts_are_read_without_tensorflow(folder: Path) -> None:
    code = (
        "import sys; from input_pipelines.store.token_store import TokenStore; "
        f"assert TokenStore.open({str(folder)!r}).text(3).id == 'p3'; "
        "assert 'tensorflow' not in sys.modules and 'jax' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_counts_what_it_reads(folder: Path) -> None:
    store = TokenStore.open(str(folder))
    store.read(np.arange(4))
    assert store.records_read == 4


@pytest.mark.parametrize("row", [-1, len(LENGTHS)])
def test_refuses_a_row_that_is_not_there(folder: Path, row: int) -> None:
    with pytest.raises(StoreError, match=f"expected rows from 0 to 8, found {row}"):
        TokenStore.open(str(folder)).read(np.array([row]))


def test_without_manifest_prepare_has_not_finished(damaged: Path) -> None:
    (damaged / "manifest.json").unlink()
    with pytest.raises(StoreError, match="prepare has not finished"):
        TokenStore.open(str(damaged))


def test_a_manifest_that_is_not_json_or_was_edited_is_refused(damaged: Path) -> None:
    path = damaged / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "max_length": 99}))
    with pytest.raises(StoreError, match="changed after it was written"):
        TokenStore.open(str(damaged))
    path.write_text(json.dumps({**manifest, "format_version": 99}))
    with pytest.raises(StoreError, match=r"expected format kennel-token-store version 2.*99"):
        TokenStore.open(str(damaged))
    path.write_text("{")
    with pytest.raises(StoreError, match="is not a token store's manifest"):
        TokenStore.open(str(damaged))


@pytest.mark.parametrize("verify", ["sizes", "full"])
def test_a_shard_cut_short_is_an_error_and_not_an_empty_shard(damaged: Path, verify: str) -> None:
    path = shard(damaged, 1)
    path.write_bytes(path.read_bytes()[:-70])
    with pytest.raises(StoreError, match=f"{path.name} is damaged: bytes: expected .*, found"):
        TokenStore.open(str(damaged), verify=verify)


def test_a_shard_of_the_right_size_that_holds_no_records_is_noticed(damaged: Path) -> None:
    path = shard(damaged, 1)
    path.write_bytes(bytes(len(path.read_bytes())))
    with pytest.raises(StoreError, match=r"records: expected 3, found 0|cannot be opened"):
        TokenStore.open(str(damaged), verify="sizes")


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_flipped_byte_is_noticed_on_opening(damaged: Path, place: float) -> None:
    flip(shard(damaged, 2), place)
    with pytest.raises(StoreError, match=r"sha256: expected .*, found|records: expected|opened"):
        TokenStore.open(str(damaged))


def test_a_flipped_byte_that_opening_did_not_look_for_is_never_read_as_something_else(
    damaged: Path,
) -> None:
    path = shard(damaged, 2)
    clean = path.read_bytes()
    rows = np.array([6, 7, 8])
    expected = TokenStore.open(str(damaged)).read(rows).tokens
    errors = 0
    for at in np.flatnonzero(np.frombuffer(clean, np.uint8))[::7]:
        path.write_bytes(clean[:at] + bytes([clean[at] ^ 1]) + clean[at + 1 :])
        try:
            found = TokenStore.open(str(damaged), verify="sizes").read(rows).tokens
        except StoreError:
            errors += 1
        else:
            np.testing.assert_array_equal(found, expected)
    assert errors


@pytest.mark.parametrize("name", ["lengths.npy", "ids.json"])
def test_a_flipped_byte_in_a_table_is_noticed_even_without_hashing_shards(
    damaged: Path, name: str
) -> None:
    flip(damaged / name, 0.95)
    with pytest.raises(StoreError, match=f"{name} is damaged: sha256"):
        TokenStore.open(str(damaged), verify="sizes")


def test_a_missing_shard_is_named(damaged: Path) -> None:
    path = shard(damaged, 0)
    path.unlink()
    with pytest.raises(StoreError, match=f"{path.name} is missing"):
        TokenStore.open(str(damaged))


def test_another_tokenizer_is_refused(folder: Path) -> None:
    with pytest.raises(StoreError, match="another tokenizer: expected fingerprint abc, found fff"):
        TokenStore.open(str(folder), "abc")


def test_verify_has_three_values(folder: Path) -> None:
    with pytest.raises(StoreError, match="expected 'auto', 'sizes' or 'full', found 'none'"):
        TokenStore.open(str(folder), verify="none")  # type: ignore[arg-type]


def flip(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)
