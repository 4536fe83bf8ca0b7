# The image of runs on GKE (docs/gke.md): Kennel and the packages of its lock, for TPUs.
#
#   docker buildx build --push --tag=REGISTRY/kennel .
#
# The base is pinned by its tag only. To pin it by its digest, which the command below prints, add
# --build-arg=BASE=python@sha256:DIGEST to the command above:
#
#   docker buildx imagetools inspect python:3.11-slim
ARG BASE=python:3.11-slim
FROM ${BASE}

WORKDIR /kennel
ENV PYTHONPATH=/kennel PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# Packages first: they change less often than the code.
COPY launch/cloud/uv_pin.txt launch/cloud/tpu.lock ./launch/cloud/
RUN python -m pip install --no-cache-dir --require-hashes -r launch/cloud/uv_pin.txt \
    && uv pip install --system --no-cache --require-hashes -r launch/cloud/tpu.lock

COPY setup.py pyproject.toml LICENSE ./
COPY t5x_style ./t5x_style
COPY models ./models
COPY input_pipelines ./input_pipelines
COPY gin_configs ./gin_configs
COPY launch ./launch
