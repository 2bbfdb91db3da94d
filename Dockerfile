# lowbit with its C++ kernels. Build: docker build -t lowbit .   Run: docker run --rm -it -v "$PWD:/data" lowbit --help
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN LOWBIT_REQUIRE_KERNELS=1 pip wheel --no-cache-dir --no-deps -w /wheels /src

FROM python:3.11-slim
# libgomp: OpenMP, which Paddle's wheel links to
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir -c /tmp/constraints.txt "$(echo /wheels/*.whl)[all]" && rm -rf /wheels /tmp/constraints.txt
WORKDIR /data
ENTRYPOINT ["lowbit"]
