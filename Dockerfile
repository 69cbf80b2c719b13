# The application as one process for many waiting readers (container/template.yaml, docs/operations/readers.md).
#   docker buildx build --platform linux/arm64 --build-arg COMMIT=$(git rev-parse --short=12 HEAD) --tag tidemark .
# A single node with its streams on a volume:
#   docker run --env DATA_DIR=/data --volume tidemark:/data --env AUTH_SECRET --publish 8080:8080 tidemark
# The digest is that of all platforms together, as docker-library/repo-info records it for images of 5 August 2026 (Python 3.14.7).
# It was not pulled where it was written down. `make base-image` renews it, with the fixes of Debian and Python since.
FROM python:3.14-slim@sha256:e11c17f46f87983eb946b121694dedba6290ee2b0dd5294d137d82943502d179
RUN useradd --system --no-create-home tidemark && install --directory --owner=tidemark /data
COPY requirements/container.txt /app/requirements.txt
RUN pip install --no-cache-dir --no-deps --require-hashes --requirement /app/requirements.txt
COPY shared/tidemark /app/tidemark
ARG COMMIT
RUN [ -z "$COMMIT" ] || echo "$COMMIT" > /app/tidemark/commit.txt
# What many readers took is returned to the system when they leave (docs/internals/reliability.md, Memory).
ENV PYTHONMALLOC=malloc
WORKDIR /app
USER tidemark
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ.get(\"PORT\", 8080)}/v1/health')"]
CMD ["python", "-m", "tidemark.server.container"]
