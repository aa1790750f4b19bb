"""The messages of the runtime's service, as Google's generated code writes them, and anything at all in their place."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from accelmetrics.backends.tpu.runtime import MAX_ELEMENTS, DistributionMessage, metric_request, metric_response, supported_metrics
from tests.simulators.tpu import About, Exponential, Histogram, Linear, Quantiles, encode, entry, response

# Written by the protobuf package with the message classes of tpu-info 0.14.2.
WRITTEN_BY_GOOGLE = bytes.fromhex(
    "0ad1020a016d1201641a260a0f0a096465766963652d696412021800120b0880f7c4d50610c096b1021a061080808080401a1d0a100a09646576696365"
    "2d6964120318ac021a090900000000000029401a700a390a0178123432320a150a0e6465766963655f6f7264696e616c12030a01310a190a09636f7265"
    "5f74797065120c0a0a54656e736f72436f72652a33080411000000000000044021000000000000224032161214080311000000000000004019000000"
    "000000f03f3a0500010201001a21321f08021100000000000008401a1209000000000000e03f11000000000000f83f1a0b0a04120210011a031a0173"
    "1a1a0a0b120921000000000000f8bf1a0b10ffffffffffffffffff011a202a1e080132141a120a10000000000000f03f00000000000000403a0400ac"
    "02011a1c2a1a080132162214080211000000000000144019000000000000f03f1a0422021007"
)
READ = [
    ({"device-id": 0}, 1_790_000_000, 17_179_869_184),
    ({"device-id": 300}, 0, 12.5),
    ({"device_ordinal": "1", "core_type": "TensorCore"}, 0, DistributionMessage(4, 2.5, 9.0, (1.0, 2.0, 4.0, 8.0), (0, 1, 2, 1, 0))),
    ({}, 0, DistributionMessage(2, 1.5, quantiles=((0.5, 1.5),))),
    ({"": True}, 0, "s"),
    ({"": -1.5}, 0, -1),
    ({}, 0, DistributionMessage(1, 0.0, 0.0, (1.0, 2.0), (0, 300, 1))),
    ({}, 0, DistributionMessage(1, 0.0, 0.0, (1.0, 6.0, 11.0), ())),
    ({}, 0, 7),
]


def test_what_google_s_own_code_writes_is_read() -> None:
    assert metric_response(WRITTEN_BY_GOOGLE) == READ
    assert supported_metrics(bytes.fromhex("0a050a03612e620a030a0163")) == {"a.b", "c"}


def test_a_request_is_what_google_s_own_code_writes() -> None:
    assert metric_request("a.b") == bytes.fromhex("0a03612e62")
    assert metric_request("n" * 200)[:3] == b"\x0a\xc8\x01"


def test_the_stand_in_writes_what_google_s_own_code_writes() -> None:
    core = About("x", (("device_ordinal", "1"), ("core_type", "TensorCore")))
    histogram = Histogram(4, 2.5, Exponential(3, 2.0, 1.0), [0, 1, 2, 1, 0], 9.0)
    stamped = entry(About("device-id", 0), 17_179_869_184, 1_790_000_000)
    ours = response("m", stamped, entry(About("device-id", 300), 12.5), entry(core, histogram), description="d")
    assert WRITTEN_BY_GOOGLE[3:].startswith(ours[3:])


@pytest.mark.parametrize("packed", [True, False])
def test_lists_are_read_packed_and_one_by_one(packed: bool) -> None:
    said = Histogram(3, 1.5, encode.Explicit([1.0, 2.0], packed), [1, 300, 2], packed=packed)
    (one,) = metric_response(response("m", entry(None, said)))
    assert one[2] == DistributionMessage(3, 1.5, 0.0, (1.0, 2.0), (1, 300, 2))


def test_fields_that_are_not_known_are_passed_over() -> None:
    unknown = (
        encode.whole(900, 2**63)
        + encode.double(901, 1.0)
        + encode.block(902, b"\xff\xff")
        + encode.base128(903 * 8 + 5)
        + b"\x01\x02\x03\x04"
    )
    about = encode.block(1, About("device-id", 3).encode(), unknown)
    inside = encode.block(3, about, encode.block(3, encode.whole(2, 5), unknown), unknown)
    assert metric_response(encode.block(1, inside, unknown) + unknown) == [({"device-id": 3}, 0, 5)]


def test_text_that_is_no_utf_8_is_replaced() -> None:
    inside = encode.block(1, encode.block(1, b"\xff"), encode.block(2, encode.block(1, b"a\xffb")))
    assert metric_response(encode.block(1, encode.block(3, inside))) == [({"\ufffd": "a\ufffdb"}, 0, None)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x0a",
        b"\x0a\x05\x01",
        b"\x0a\x02\x1a\x05",
        b"\x00\x01",
        b"\x0b",
        b"\x0f",
        b"\xff" * 11,
        b"\x09\x01",
        b"<!doctype html><html><body>404</body></html>",
        b"\x08\x05",
        encode.block(1, encode.block(3, encode.block(5, encode.block(7, b"\xff")))),
        encode.block(1, encode.block(3, encode.block(5, encode.whole(1, -1)))),
        encode.block(1, encode.block(3, encode.block(5, encode.whole(7, -1)))),
        encode.block(1, encode.block(3, encode.block(5, encode.block(6, encode.block(3, encode.block(1, b"1234567")))))),
    ],
    ids=range(15),
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        metric_response(data)


def test_every_cut_of_an_answer_is_refused_or_shorter() -> None:
    for end in range(len(WRITTEN_BY_GOOGLE)):
        with pytest.raises(ValueError, match=r"\w"):
            metric_response(WRITTEN_BY_GOOGLE[:end])


def test_attributes_below_attributes_name_nothing_and_have_an_end() -> None:
    def nested(depth: int) -> bytes:
        inside = encode.string(1, "a")
        for _ in range(depth):
            inside = encode.block(2, encode.block(6, encode.block(1, inside)))
        return encode.block(1, encode.block(3, encode.block(1, inside)))

    assert metric_response(nested(3)) == [({"": None}, 0, None)]
    with pytest.raises(ValueError, match=r"\w"):
        metric_response(nested(2000))


@pytest.mark.parametrize(
    "data",
    [
        encode.block(1, encode.block(3) * (MAX_ELEMENTS + 1)),
        response("m", entry(None, Histogram(1, 1.0, Linear(1, 1.0, 0.0), [1] * (MAX_ELEMENTS + 1)))),
        response("m", entry(None, Histogram(1, 1.0, Linear(2**31 - 1, 1.0, 0.0), [1]))),
        response("m", entry(None, Histogram(1, 1.0, Exponential(-5, 1.0, 1.0), [1]))),
    ],
    ids=["entries", "counts", "finite buckets", "fewer than no bucket"],
)
def test_more_elements_than_any_honest_answer_has_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=f"elements, at most {MAX_ELEMENTS}"):
        metric_response(data)


def test_bounds_beyond_a_float_are_infinite() -> None:
    (one,) = metric_response(response("m", entry(None, Histogram(1, 1.0, Exponential(3, 1e200, 1e200), [1]))))
    assert isinstance(one[2], DistributionMessage)
    assert one[2].bounds == (1e200, math.inf, math.inf, math.inf)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert all(isinstance(name, str) for name in supported_metrics(data))
    try:
        metric_response(data)
    except ValueError as error:
        assert str(error)


@given(st.integers(0, len(WRITTEN_BY_GOOGLE) - 1), st.integers(0, 255))
def test_any_wrong_byte_is_read_or_refused(position: int, byte: int) -> None:
    changed = bytearray(WRITTEN_BY_GOOGLE)
    changed[position] = byte
    try:
        entries = metric_response(bytes(changed))
    except ValueError as error:
        assert str(error)
    else:
        assert all(isinstance(about, dict) and isinstance(seconds, int) for about, seconds, _ in entries)


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1),
            st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=9) | st.booleans(),
            st.integers(0, 2**40),
        ),
        max_size=6,
    )
)
def test_what_is_written_is_read(said: list[tuple[int, int | float | str | bool, int]]) -> None:
    written = response("m", *(entry(About("device-id", number), value, seconds) for number, value, seconds in said))
    assert metric_response(written) == [({"device-id": number}, seconds, value) for number, value, seconds in said]


@given(st.integers(0, 2**63 - 1), st.floats(allow_nan=False), st.lists(st.integers(0, 2**63 - 1), max_size=8), st.booleans())
def test_distributions_that_are_written_are_read(count: int, mean: float, counts: list[int], packed: bool) -> None:
    (one,) = metric_response(response("m", entry(None, Histogram(count, mean, None, counts, packed=packed))))
    assert one[2] == DistributionMessage(count, mean, 0.0, (), tuple(counts))


@given(st.integers(1, 2**40), st.floats(-1e9, 1e9), st.dictionaries(st.floats(0, 1), st.floats(-1e9, 1e9), max_size=4))
def test_summaries_that_are_written_are_read(count: int, total: float, quantiles: dict[float, float]) -> None:
    (one,) = metric_response(response("m", entry(None, Quantiles(count, total, quantiles))))
    assert one[2] == DistributionMessage(count, total / count, quantiles=tuple(quantiles.items()))
