# The control plane: web, worker and beat are one image with different commands.
# Build from the repository root: docker build -f docker/platform.Dockerfile -t yoco-platform .

FROM node:22-bookworm-slim AS pages
WORKDIR /src/frontend
COPY frontend/package.json frontend/package-lock.json ./
RUN npm ci --no-audit --no-fund
COPY frontend/ ./
RUN npm run build

FROM python:3.11-slim-bookworm AS packages
WORKDIR /src
RUN python -m venv /opt/yoco
COPY pyproject.toml requirements.lock README.md ./
COPY yoco_platform/ yoco_platform/
COPY nodes/ nodes/
COPY jobs/ jobs/
COPY sla/ sla/
COPY agent/ agent/
COPY yoco/ yoco/
COPY frontend/ frontend/
COPY --from=pages /src/frontend/dist/ frontend/dist/
RUN /opt/yoco/bin/pip install --no-cache-dir --constraint requirements.lock .

FROM python:3.11-slim-bookworm
RUN useradd --uid 10001 --user-group --create-home yoco \
    && install --directory --owner yoco --group yoco --mode 0700 /var/lib/yoco /var/lib/yoco-tokens
COPY --from=packages /opt/yoco /opt/yoco
ENV PATH=/opt/yoco/bin:$PATH YOCO_DATA_DIR=/var/lib/yoco
WORKDIR /var/lib/yoco
USER 10001:10001
EXPOSE 8000
ENTRYPOINT ["yoco"]
CMD ["web", "--host", "0.0.0.0", "--port", "8000"]
