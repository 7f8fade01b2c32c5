"""Stop strings in a growing text: where the text ends, and what of it may be shown before."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ensemble.decode.sequences import Pieces, first_stop, held_back

letters = st.sampled_from([b"a", b"b", b"\n"])
text = st.lists(letters, max_size=12).map(b"".join)
strings = st.lists(st.lists(letters, min_size=1, max_size=5).map(b"".join), max_size=4)
LONG = [b"ab" * 30_000 + bytes([number]) for number in range(16)]


@given(st.lists(text, max_size=6), strings)
def test_the_first_stop_string_is_that_of_a_plain_search(parts: list[bytes], stops: list[bytes]) -> None:
    for before, data in itertools.pairwise(itertools.accumulate(parts, initial=b"")):
        places = [data.find(stop) for stop in stops]
        wanted = min((place for place in places if place >= 0), default=None)
        assert first_stop(data, len(before), tuple(stops)) == wanted
        # A text ends at its first stop string.
        if wanted is not None:
            break


@given(text, strings)
def test_the_longest_end_that_may_begin_a_stop_string_is_held_back(data: bytes, stops: list[bytes]) -> None:
    beginnings = {stop[:count] for stop in stops for count in range(1, len(stop))}
    assert held_back(data, stops) == max((len(each) for each in beginnings if data.endswith(each)), default=0)


@given(st.lists(text, max_size=6), strings)
def test_pieces_hold_back_the_same_bytes_in_whatever_parts_the_text_comes(
    parts: list[bytes], stops: list[bytes]
) -> None:
    pieces = Pieces(stops)
    for data in itertools.accumulate(parts):
        # The last byte of a whole stop string is not read: the text ends there.
        if any(stop in data for stop in stops):
            break
        pieces.grow(data)
        assert pieces.read == len(data) - held_back(data, stops)


def test_long_stop_strings_are_found_where_they_end() -> None:
    stop = LONG[3]
    data = b"b" + stop + b"a"
    assert first_stop(data, len(data) - 4, tuple(LONG)) == 1
    assert first_stop(data[:-2], len(data) - 6, tuple(LONG)) is None


def test_a_text_that_may_begin_a_long_stop_string_is_shown_as_soon_as_it_does_not() -> None:
    pieces = Pieces(LONG)
    beginning = LONG[0][:-1]
    # In many parts: none of them may take the time to try all beginnings of all stop strings.
    assert not any(pieces.grow(beginning[:length]) for length in range(1, len(beginning), 7))
    assert pieces.grow(beginning + b"c") == (beginning + b"c").decode()
