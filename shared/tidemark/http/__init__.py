"""The protocol over HTTP: the only place that knows the web framework."""
