#!/bin/sh
# Lambda Web Adapter runs this and sends it the requests. A process of our own does not have the layer on its path.
# It may be frozen for long between two requests, and has two seconds to end in.
cd "$(dirname "$0")"
export PYTHONPATH="/opt/python${PYTHONPATH:+:$PYTHONPATH}"
exec python3 -m uvicorn app:app --host 127.0.0.1 --port "${AWS_LWA_PORT:-8080}" \
    --log-level warning --no-access-log --no-server-header --timeout-keep-alive 900 --timeout-graceful-shutdown 1
