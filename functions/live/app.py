"""The `live` function: the whole application, served by `run.sh` under Lambda Web Adapter, which streams the
response. `read` and `write` serve the same application through `http/lambda_adapter.py`."""

from __future__ import annotations

import logging
import os

from tidemark.cold_start import garbage_collection_paused

with garbage_collection_paused():
    from tidemark.http.app import create_data_path
    from tidemark.http.backend import threaded_backend
    from tidemark.observability.report import Reporter, Reporting
    from tidemark.service.stores import connect
    from tidemark.settings import Settings

# This process runs without Lambda's Python runtime, which would configure logging.
logging.basicConfig(format="%(message)s")
_settings = Settings.from_environment(os.environ)
_settings.authorization.check_not_open()

#: Storage calls run on threads, although there is one request at a time: heartbeats and a disconnect must not
#: wait for storage.
_stores = connect(_settings)
_served = create_data_path(threaded_backend(_stores, _settings), _stores.check_format)
app = Reporting(_served, Reporter("live", _settings))
