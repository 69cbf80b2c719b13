"""The protocol over HTTP: the only place that knows the web framework.

`app` makes the applications, and `paths` finds the operation of a request. `streams`, `buckets`, `catalog`,
`subscriptions` and `pages` have the handlers, and `socket` answers messages of sockets. `dependencies` says
what a token must grant, and `security` checks that it does. The server and the functions import it.
"""
