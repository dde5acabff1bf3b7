# ortkit for CPUs: docker build -t ortkit . && docker run --rm -v "$PWD:/models" ortkit optimize model.onnx
FROM python:3.12-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++
COPY . /ortkit
RUN pip wheel --no-deps --wheel-dir /wheels /ortkit

FROM python:3.12-slim-bookworm
# The linker of kernel libraries is called through the C compiler.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
  && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /tmp/wheels
RUN pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /tmp/wheels/ortkit-*.whl)[cpu]" \
  && rm -rf /tmp/wheels
RUN useradd --create-home ortkit
USER ortkit
WORKDIR /models
ENTRYPOINT ["ortkit"]
CMD ["--help"]
