"""The protocol over HTTP: the only package that imports the web framework.

`app` makes the applications, and `paths` finds the operation of a request. `streams`, `buckets`, `catalog`,
`subscriptions` and `pages` have the handlers, and `socket` answers messages of sockets. `dependencies`
declares the required scopes, and `security` checks them. The server and the functions import this package.
"""
