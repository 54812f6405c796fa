# One image for every part of Ferry; docker-compose.yml says which command each part runs.
#   docker build --build-arg ACCELERATOR=cpu .     for machines without a GPU
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE}
ARG ACCELERATOR=gpu

# vLLM compiles small kernels at run time.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ libc6-dev libnuma1 \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home ferry
WORKDIR /app
COPY --chown=ferry ops/__init__.py ops/install.py ops/
COPY --chown=ferry requirements/ requirements/
RUN ACCELERATOR=${ACCELERATOR} python ops/install.py && chown -R ferry .venv

COPY --chown=ferry . .
RUN mkdir -p var && chown ferry var
USER ferry
ENV PATH=/app/.venv/bin:$PATH \
    PYTHONPATH=/app:/app/platform \
    PYTHONUNBUFFERED=1 \
    DJANGO_SETTINGS_MODULE=controlplane.settings \
    RAY_worker_niceness=0 \
    RAY_USAGE_STATS_ENABLED=0 \
    VLLM_NO_USAGE_STATS=1
