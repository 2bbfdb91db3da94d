"""The server on the loopback with a real client: routes, limits, metrics, shutdown."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lowbit.errors import LowbitError
from lowbit.serve import Limits, make_app, open_served_model, serve
from lowbit.serve.protocol import HEADER_LENGTH
from tests.support.serving import Doubling, doubling_model

httpx = pytest.importorskip("httpx")

INFER = "/v2/models/twice/infer"


def request(values):
    values = np.asarray(values, np.float32)
    one = {"name": "x", "shape": list(values.shape), "datatype": "FP32", "data": values.ravel().tolist()}
    return {"inputs": [one]}


def binary(values):
    values = np.asarray(values, np.float32)
    size = values.nbytes
    head = {"name": "x", "shape": list(values.shape), "datatype": "FP32"}
    head["parameters"] = {"binary_data_size": size}
    text = json.dumps({"inputs": [head], "parameters": {"binary_data_output": True}}).encode()
    return text + values.tobytes(), {HEADER_LENGTH: str(len(text))}


def test_what_the_server_says_of_itself(serving):
    with serving(doubling_model(Doubling())) as url, httpx.Client(base_url=url) as client:
        assert client.get("/v2").json()["extensions"] == ["binary_tensor_data"]
        assert client.get("/v2/health/live").json() == {"live": True}
        assert client.get("/v2/health/ready").json() == {"ready": True}
        assert client.get("/v2/models/twice/ready").json() == {"name": "twice", "ready": True}
        for path in ("/v2/models/twice", "/v2/models/twice/versions/1"):
            assert client.get(path).json() == {
                "name": "twice",
                "versions": ["1"],
                "platform": "lowbit_doubling",
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
                "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
            }
        for path in ("/v2/models/other", "/v2/models/twice/versions/2", "/v2/nothing"):
            found = client.get(path)
            assert found.status_code == 404 and found.json()["error"]
        assert client.get(INFER).status_code == 405


def test_answers_in_json_and_binary(serving):
    values = [[1, 2, 3.5], [-1, 0, 1]]
    with serving(doubling_model(Doubling())) as url, httpx.Client(base_url=url) as client:
        found = client.post(INFER, json=request(values) | {"id": "42"}).json()
        assert found["id"] == "42" and found["outputs"][0]["shape"] == [2, 3]
        assert found["outputs"][0]["data"] == [2, 4, 7, -2, 0, 2]
        content, headers = binary(values)
        answer = client.post("/v2/models/twice/versions/1/infer", content=content, headers=headers)
        length = int(answer.headers[HEADER_LENGTH])
        assert json.loads(answer.content[:length])["outputs"][0]["parameters"] == {"binary_data_size": 24}
        np.testing.assert_array_equal(
            np.frombuffer(answer.content[length:], np.float32).reshape(2, 3), 2 * np.array(values, np.float32)
        )


def test_many_clients_at_once_are_answered_in_batches(serving):
    engine = Doubling(0.01)
    with serving(doubling_model(engine)) as url, httpx.Client(base_url=url) as client:

        def ask(n):
            content, headers = binary([[n, 0, 0]])
            answer = client.post(INFER, content=content, headers=headers)
            return np.frombuffer(answer.content[int(answer.headers[HEADER_LENGTH]) :], np.float32)[0]

        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(ask, range(100))) == [2 * n for n in range(100)]
        metrics = client.get("/metrics").text
    assert len(engine.batches) < 100
    assert 'lowbit_requests_total{code="200",model="twice"} 100.0' in metrics
    assert 'lowbit_samples_total{model="twice"} 100.0' in metrics
    assert "lowbit_request_seconds_bucket" in metrics and "process_resident_memory_bytes" in metrics


def test_a_bad_request_is_400_and_says_why(serving):
    with serving(doubling_model(Doubling())) as url, httpx.Client(base_url=url) as client:
        for content, message in ((b"{}", "inputs"), (b"nonsense", "not JSON")):
            found = client.post(INFER, content=content)
            assert found.status_code == 400 and message in found.json()["error"]
        found = client.post(INFER, json=request(np.zeros((9, 3))))
        assert found.status_code == 400 and "1 to 8" in found.json()["error"]
        found = client.post(INFER, content=b"{}", headers={HEADER_LENGTH: "-1"})
        assert found.status_code == 400
        found = client.post(INFER, content=b"{}", headers={"Content-Encoding": "gzip"})
        assert found.status_code == 415


def test_an_engine_that_fails_is_500(serving):
    with serving(doubling_model(Doubling())) as url, httpx.Client(base_url=url) as client:
        content, headers = binary([[np.nan, 0, 0]])
        found = client.post(INFER, content=content, headers=headers)
        assert found.status_code == 500 and "cannot compute NaN" in found.json()["error"]
        assert client.post(INFER, json=request([[1, 2, 3]])).status_code == 200


def test_a_body_that_is_too_large_is_413_with_and_without_a_length(serving):
    limits = Limits(max_body=1000)
    with serving(doubling_model(Doubling()), limits) as url, httpx.Client(base_url=url) as client:
        assert client.post(INFER, content=b" " * 1001).status_code == 413
        assert client.post(INFER, content=iter([b" " * 600, b" " * 600])).status_code == 413
        assert client.post(INFER, json=request([[1, 2, 3]])).status_code == 200


def test_a_body_that_does_not_arrive_is_408(serving):
    with serving(doubling_model(Doubling()), Limits(timeout=0.3)) as url:
        address = url.removeprefix("http://").split(":")
        with socket.create_connection((address[0], int(address[1])), timeout=10) as one:
            one.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc".encode())
            assert b"408" in one.recv(4096).split(b"\r\n")[0]


def test_an_engine_that_is_too_slow_is_504(serving):
    with (
        serving(doubling_model(Doubling(0.8)), Limits(timeout=0.2)) as url,
        httpx.Client(base_url=url, timeout=10) as client,
    ):
        found = client.post(INFER, json=request([[1, 2, 3]]))
        assert found.status_code == 504 and "in time" in found.json()["error"]


def test_too_many_requests_are_503(serving):
    with (
        serving(doubling_model(Doubling(0.2)), Limits(max_requests=2)) as url,
        httpx.Client(base_url=url, timeout=20) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        found = list(pool.map(lambda _: client.post(INFER, json=request([[1, 2, 3]])), range(8)))
    codes = [one.status_code for one in found]
    assert set(codes) == {200, 503}
    assert next(one for one in found if one.status_code == 503).headers["Retry-After"] == "1"


def test_a_client_that_leaves_harms_nobody(serving):
    with serving(doubling_model(Doubling())) as url:
        address = url.removeprefix("http://").split(":")
        with socket.create_connection((address[0], int(address[1])), timeout=10) as one:
            one.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc".encode())
            time.sleep(0.1)
        with httpx.Client(base_url=url) as client:
            assert client.post(INFER, json=request([[1, 2, 3]])).status_code == 200
            time.sleep(0.1)
            assert 'code="499"' in client.get("/metrics").text


def test_requests_that_run_are_answered_before_the_server_ends(serving):
    found = []

    def ask(url):
        found.append(httpx.post(url + INFER, json=request([[1, 2, 3]]), timeout=10).status_code)

    with serving(doubling_model(Doubling(0.5))) as url:
        thread = threading.Thread(target=ask, args=(url,))
        thread.start()
        time.sleep(0.2)
    thread.join()
    assert found == [200]


def test_limits_that_make_no_sense():
    for values in ({"max_batch": 0}, {"timeout": 0}, {"max_delay": -1}, {"max_body": 0}):
        with pytest.raises(LowbitError, match=next(iter(values))):
            Limits(**values)
    assert Limits().body_bytes(doubling_model(Doubling())) > 8 * 3 * 20


def test_a_port_that_is_taken(tmp_path):
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(LowbitError, match=r"cannot listen on .*another --port"),
    ):
        serve(tmp_path, port=taken.getsockname()[1])


def test_the_protocols_own_client(serving):
    """tritonclient, from another project; it is not among the development packages."""
    triton = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")
    values = np.array([[1, 2, 3]], np.float32)
    with serving(doubling_model(Doubling())) as url:
        client = triton.InferenceServerClient(url.removeprefix("http://"))
        try:
            assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("twice")
            assert client.get_model_metadata("twice")["inputs"][0]["shape"] == [-1, 3]
            for as_binary in (True, False):
                given = triton.InferInput("x", [1, 3], "FP32")
                given.set_data_from_numpy(values, binary_data=as_binary)
                wanted = triton.InferRequestedOutput("y", binary_data=as_binary)
                answer = client.infer("twice", [given], outputs=[wanted])
                np.testing.assert_array_equal(answer.as_numpy("y"), 2 * values)
            with pytest.raises(triton.InferenceServerException, match="no model"):
                client.get_model_metadata("other")
        finally:
            client.close()


def test_make_app_is_an_asgi_application():
    assert callable(make_app(doubling_model(Doubling())))


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(LowbitError, match="lowbit export first"):
        open_served_model(tmp_path)
