"""The `live` function: the whole application, served by `run.sh` under Lambda Web Adapter, so
that an answer leaves as it is made. `read` and `write` serve the same one through Mangum."""

from __future__ import annotations

import logging
import os

from tidemark.cold_start import garbage_collection_paused

with garbage_collection_paused():
    from tidemark.http.app import create_data_path
    from tidemark.http.backend import many_at_once
    from tidemark.observability.report import Reporter, Reporting
    from tidemark.service.stores import connect
    from tidemark.settings import Settings

# Lambda's own Python runtime writes a log; this process is a server's.
logging.basicConfig(format="%(message)s")
_settings = Settings.from_environment(os.environ)
_settings.authorization.check_not_open()

#: Storage calls on threads, though there is one request at a time: heartbeats and the end of the
#: connection must not wait for them.
_stores = connect(_settings)
_served = create_data_path(many_at_once(_stores, _settings), _stores.check_format)
app = Reporting(_served, Reporter("live", _settings))
