"""Requests of the Open Inference Protocol to arrays and back, and what is refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowbit.deploy.engines import TensorInfo
from lowbit.serve.protocol import DATATYPES, RequestError, make_response, parse_request

X = TensorInfo("x", np.dtype("float32"), (-1, 3))
IDS = TensorInfo("ids", np.dtype("int8"), (-1, 2))


def body(**changes):
    one = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4.5, 5, 6]} | changes
    return json.dumps({"inputs": [{key: value for key, value in one.items() if value is not None}]}).encode()


def parse(text, header=None, inputs=(X,), max_batch=8):
    return parse_request(text, header, inputs, ["y", "z"], max_batch)


def test_json_data_is_flat_or_nested():
    expected = np.array([[1, 2, 3], [4.5, 5, 6]], np.float32)
    for data in ([1, 2, 3, 4.5, 5, 6], [[1, 2, 3], [4.5, 5, 6]]):
        found = parse(body(data=data)).inputs[0]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)


def test_binary_data_follow_the_json_in_the_order_of_the_request():
    ids, x = np.array([[1, -2]], np.int8), np.array([[1, 2, 3]], np.float32)
    text = json.dumps(
        {
            "inputs": [
                {"name": "ids", "shape": [1, 2], "datatype": "INT8", "parameters": {"binary_data_size": 2}},
                {"name": "x", "shape": [1, 3], "datatype": "FP32", "parameters": {"binary_data_size": 12}},
            ]
        }
    ).encode()
    found = parse(text + ids.tobytes() + x.tobytes(), len(text), inputs=(X, IDS))
    np.testing.assert_array_equal(found.inputs[0], x)  # in the model's order
    np.testing.assert_array_equal(found.inputs[1], ids)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "y"}, 'no input "y"'),
        ({"datatype": "FP64"}, "is FP32, not FP64"),
        ({"shape": [2, 4]}, r"has the shape \[-1, 3\], got \[2, 4\]"),
        ({"shape": [6]}, "has the shape"),
        ({"shape": [2, -3]}, "greater than or equal to 0"),
        ({"data": [1, 2, 3]}, "has 6 values, data holds 3"),
        ({"data": [[1, 2, 3], [4]]}, "not a regular array"),
        ({"data": [1, 2, 3, 4, 5, "6"]}, "no FP32"),
        ({"data": None}, "has no data"),
        ({"data": [], "shape": [0, 3]}, "0 samples"),
        ({"data": [0] * 27, "shape": [9, 3]}, "9 samples; this server takes 1 to 8"),
        ({"parameters": {"binary_data_size": 24}}, "24, 0 bytes are left"),
        ({"parameters": {"binary_data_size": "24"}}, "'24'"),
    ],
)
def test_what_does_not_fit_is_named(changes, message):
    with pytest.raises(RequestError, match=message) as caught:
        parse(body(**changes))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not JSON"),
        (b"[]", "the request"),
        (b'{"inputs": []}', "missing inputs: x"),
        (b"[" * 100_000, "not JSON"),
        (body()[:-1] + b', "outputs": [{"name": "w"}]}', 'no output "w"'),
        (
            b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [NaN, 1, 2]}]}',
            "not JSON",
        ),
    ],
)
def test_a_request_that_is_none(text, message):
    with pytest.raises(RequestError, match=message):
        parse(text)


def test_text_is_refused_before_an_array_is_made_of_it():
    data = ["x" * 40_000] + ["y"] * 10_000  # as an array: 1.6 GB
    with pytest.raises(RequestError, match="no FP32"):
        parse(body(data=data))
    with pytest.raises(RequestError, match="no FP32"):
        parse(body(data=[[1, 2, 3], [4, 5, "6"]]))


def test_numbers_beyond_the_type_are_refused():
    text = json.dumps(
        {"inputs": [{"name": "ids", "shape": [1, 2], "datatype": "INT8", "data": [1, 128]}]}
    ).encode()
    with pytest.raises(RequestError, match="beyond INT8"):
        parse(text, inputs=(IDS,))


def test_binary_sizes_must_fit():
    text = body(data=None, parameters={"binary_data_size": 24})
    assert parse(text + bytes(24), len(text)).samples == 2
    for extra, message in ((20, "20 bytes are left"), (28, "4 bytes of binary data belong to no input")):
        with pytest.raises(RequestError, match=message):
            parse(text + bytes(extra), len(text))
    with pytest.raises(RequestError, match="24 bytes, got 20"):
        text = body(data=None, parameters={"binary_data_size": 20})
        parse(text + bytes(20), len(text))
    with pytest.raises(RequestError, match="the body has"):
        parse(text, len(text) + 1)


@given(st.binary(max_size=200), st.none() | st.integers(0, 250))
def test_any_bytes_are_a_request_or_an_error(content, header):
    try:
        parse(content, header)
    except RequestError as error:
        assert error.status == 400


@pytest.mark.parametrize("datatype", list(DATATYPES))
def test_responses_in_json_and_binary_are_read_back(datatype):
    answer = np.array([[0, 1], [1, 0]]).astype(DATATYPES[datatype])
    other = np.array([[0.5]], np.float32)
    outputs = [{"name": "z"}, {"name": "y", "parameters": {"binary_data": True}}]
    request = parse(body()[:-1] + b', "id": "7", "outputs": ' + json.dumps(outputs).encode() + b"}")
    content, length = make_response(request, [answer, other], ["y", "z"], "m", "1")
    values = json.loads(content[:length])
    assert values["id"] == "7" and values["model_name"] == "m"
    assert [one["name"] for one in values["outputs"]] == ["z", "y"]
    assert values["outputs"][0]["data"] == [0.5]
    assert values["outputs"][1]["datatype"] == datatype
    found = np.frombuffer(content[length:], DATATYPES[datatype]).reshape(values["outputs"][1]["shape"])
    np.testing.assert_array_equal(found, answer)


def test_all_outputs_in_binary():
    request = parse(body()[:-1] + b', "parameters": {"binary_data_output": true}}')
    assert request.outputs == ((0, True), (1, True))
    assert parse(body()).outputs == ((0, False), (1, False))


def test_an_answer_that_json_cannot_hold():
    answers = [np.array([[np.nan]], np.float32)] * 2
    with pytest.raises(RequestError, match="NaN or Inf") as caught:
        make_response(parse(body()), answers, ["y", "z"], "m", "1")
    assert caught.value.status == 500
