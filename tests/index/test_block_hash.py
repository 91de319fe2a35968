import struct
from array import array

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from index.block_hash import (
    Media,
    block_keys,
    event_extras,
    extra_bytes,
    media_extras,
    root_key,
    salt_extra,
)

ROOT = root_key("model", 4)
TOKENS = list(range(1, 13))


def test_a_key_is_the_seeded_digest_of_little_endian_ids() -> None:
    first = xxhash.xxh3_64_intdigest(struct.pack("<4I", 1, 2, 3, 4), seed=ROOT)
    second = xxhash.xxh3_64_intdigest(struct.pack("<4I", 5, 6, 7, 8), seed=first)
    assert block_keys(TOKENS[:8], 4, ROOT) == [first, second]


def test_a_partial_last_block_has_no_key() -> None:
    assert block_keys(TOKENS[:11], 4, ROOT) == block_keys(TOKENS[:8], 4, ROOT)
    assert block_keys([], 4, ROOT) == block_keys(TOKENS[:3], 4, ROOT) == []


def test_roots_differ_by_namespace_and_block_size() -> None:
    assert len({root_key("a", 16), root_key("b", 16), root_key("a", 32), root_key("", 16)}) == 4


@pytest.mark.parametrize("typecode", ["I", "Q", "i"])
def test_an_array_has_the_keys_of_the_list(typecode: str) -> None:
    assert block_keys(array(typecode, TOKENS), 4, ROOT) == block_keys(TOKENS, 4, ROOT)


def test_an_id_that_is_no_uint32_raises() -> None:
    with pytest.raises(struct.error):
        block_keys([2**32, 0, 0, 0], 4, ROOT)


def test_an_extra_changes_its_block_and_all_after_it() -> None:
    plain = block_keys(TOKENS, 4, ROOT)
    salted = block_keys(TOKENS, 4, ROOT, {1: b"x"})
    assert salted[0] == plain[0]
    assert salted[1] != plain[1]
    assert salted[2] != plain[2]


def test_an_extra_of_a_block_that_is_not_full_is_ignored() -> None:
    assert block_keys(TOKENS[:5], 4, ROOT, {0: b"x", 1: b"y"}) == block_keys(TOKENS[:4], 4, ROOT, {0: b"x"})


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=64), st.integers(1, 5), st.integers(0, 20))
def test_keys_chain_so_a_suffix_can_be_keyed_alone(tokens: list[int], size: int, cut: int) -> None:
    keys = block_keys(tokens, size, 7)
    cut = min(cut, len(keys))
    parent = keys[cut - 1] if cut else 7
    assert keys[cut:] == block_keys(tokens[cut * size :], size, parent)


def test_the_salt_of_a_request_is_the_salt_of_an_event() -> None:
    assert event_extras([["secret"], None], None) == {0: salt_extra("secret")}


def test_the_lora_name_is_left_out_of_extras() -> None:
    assert event_extras([["adapter", "secret"], ["adapter"]], "adapter") == {0: salt_extra("secret")}
    assert event_extras([["adapter"], ["adapter"]], "adapter") is None


def test_a_salt_that_equals_no_lora_name_stays() -> None:
    assert event_extras([["adapter"]], None) == {0: salt_extra("adapter")}
    assert event_extras([["other"]], "adapter") == {0: salt_extra("other")}


def test_media_and_salt_are_kept_in_their_order() -> None:
    assert event_extras([[["image", 3], "secret", b"digest"], []], None) == {
        0: extra_bytes([("image", 3), "secret", b"digest"])
    }


@pytest.mark.parametrize("extra_keys", [None, [], [None, None], [[], None]])
def test_no_values_are_no_extras(extra_keys: list[object] | None) -> None:
    assert event_extras(extra_keys, "adapter") is None


def test_blocks_that_media_touch_have_what_the_engine_announces() -> None:
    media = [Media("a", 14, 20), Media("b", 34, 1), Media("c", 64, 16)]
    assert media_extras(media, 16, None) == {
        0: extra_bytes([("a", 14)]),
        1: extra_bytes([("a", -2)]),
        2: extra_bytes([("a", -18), ("b", 2)]),
        4: extra_bytes([("c", 0)]),
    }
    assert media_extras(media[2:], 16, "salt") == {0: salt_extra("salt"), 4: extra_bytes([("c", 0)])}
    assert media_extras(media[:1], 16, "salt")[0] == extra_bytes([("a", 14), "salt"])
    assert media_extras([], 16, None) == {}


def test_media_of_a_prompt_and_of_an_event_come_to_the_same_keys() -> None:
    tokens, media = list(range(100, 164)), [Media("digest", 20, 20)]
    event = event_extras([None, [["digest", 4]], [["digest", -12]], None], None)
    assert block_keys(tokens, 16, 7, media_extras(media, 16, None)) == block_keys(tokens, 16, 7, event)
