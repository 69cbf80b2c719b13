#!/bin/sh
# Lambda Web Adapter runs this and sends it the requests. PYTHONPATH: the layer is not on it in a process of our own.
cd "$(dirname "$0")"
export PYTHONPATH="/opt/python${PYTHONPATH:+:$PYTHONPATH}"
exec python3 -m uvicorn app:app --host 127.0.0.1 --port "${AWS_LWA_PORT:-8080}" \
    --log-level warning --no-access-log --no-server-header --timeout-keep-alive 900
