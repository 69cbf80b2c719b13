"""The protocol over HTTP: the only place that knows the web framework.

`operations` is the table of all endpoints, `routes` and its siblings are their handlers, and `security` says
who may. The server, the functions and the local stack import it; it imports the service and the hub of
`wake`, and touches storage only through them.
"""
