"""The protocol over HTTP: the only place that knows the web framework.

`app` makes the applications. `streams`, `buckets`, `catalog`, `subscriptions` and `pages` have the routes and
their handlers, `socket` answers messages of sockets, `scopes` says what a token must grant for a route, and
`security` checks that it does. The server, the functions and the local stack import it.
"""
