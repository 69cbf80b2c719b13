# The application as one process for many waiting readers (container/template.yaml, docs/operations.md).
#   docker buildx build --platform linux/arm64 --build-arg COMMIT=$(git rev-parse --short=12 HEAD) --tag tidemark .
FROM python:3.14-slim
RUN useradd --system --no-create-home tidemark
COPY requirements/container.txt /app/requirements.txt
RUN pip install --no-cache-dir --no-deps --require-hashes --requirement /app/requirements.txt
COPY shared/tidemark /app/tidemark
ARG COMMIT
RUN [ -z "$COMMIT" ] || echo "$COMMIT" > /app/tidemark/commit.txt
# What many readers took is returned to the system when they leave (docs/reliability.md, Memory).
ENV PYTHONMALLOC=malloc
WORKDIR /app
USER tidemark
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ.get(\"PORT\", 8080)}/v1/health')"]
CMD ["python", "-m", "tidemark.local.container"]
