# The node agent with torch, for the workers it starts. No Django: it installs only what agent/ and yoco/ import.
# Build from the repository root: docker build -f docker/agent.Dockerfile -t yoco-agent .
# For GPU nodes: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126

FROM python:3.11-slim-bookworm AS packages
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
RUN python -m venv /opt/yoco
COPY pyproject.toml requirements.lock README.md ./
RUN /opt/yoco/bin/pip install --no-cache-dir --constraint requirements.lock --extra-index-url "$TORCH_INDEX" \
    cryptography httpx msgspec numpy rich setuptools structlog torch torchdata websockets xxhash
COPY agent/ agent/
COPY yoco/ yoco/
RUN /opt/yoco/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && rm /opt/yoco/bin/yoco

FROM python:3.11-slim-bookworm
RUN useradd --uid 10001 --user-group --create-home yoco \
    && install --directory --owner yoco --group yoco --mode 0700 /var/lib/yoco-agent
COPY --from=packages /opt/yoco /opt/yoco
ENV PATH=/opt/yoco/bin:$PATH YOCO_STATE_DIR=/var/lib/yoco-agent
WORKDIR /home/yoco
USER 10001:10001
ENTRYPOINT ["yoco-agent"]
CMD ["run"]
