import pytest

from engine_patch.chunks import chunk_places


def test_with_one_block_per_chunk_each_block_has_its_own() -> None:
    assert chunk_places([3], [5], [9, 2, 4], 1) == [[(9, 0), (2, 0), (4, 0)]]


def test_a_group_may_begin_in_the_middle_of_its_first_chunk_and_end_in_the_middle_of_its_last() -> None:
    assert chunk_places([4], [6], [7, 8], 4) == [[(7, 2), (7, 3), (8, 0), (8, 1)]]


def test_each_group_takes_its_chunks_where_the_one_before_has_ended() -> None:
    places = chunk_places([3, 2], [1, 4], [5, 6, 7], 2)
    assert places == [[(5, 1), (6, 0), (6, 1)], [(7, 0), (7, 1)]]


def test_a_group_without_blocks_has_no_chunks_wherever_it_stands() -> None:
    assert chunk_places([0, 1], [3, 0], [5], 2) == [[], [(5, 0)]]


def test_chunks_left_over_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 blocks needs 1 chunks, and names 2"):
        chunk_places([2], [0], [1, 2], 2)


def test_missing_chunks_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 blocks needs 2 chunks, and names 1"):
        chunk_places([3], [0], [1], 2)
