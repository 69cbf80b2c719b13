"""The table's schema: every kind of key and value, written and read side by side, in a module for each kind
of item. Other packages import all names from here. Those of subscriptions, down to the signing key, are
written and read by `subscriptions/records.py`.

| item     | pk                                       | sk                                             |
| -------- | ---------------------------------------- | ---------------------------------------------- |
| bucket   | `bucket/<bucket>`                        | `.`                                            |
| stream   | `bucket/<bucket>`                        | `stream/<stream id>`                           |
| entry    | `buckets`                                | `<bucket>`                                     |
| end mark | that of the bucket, its entry or the     | the same                                       |
|          | stream that ended                        |                                                |
| batch    | `log/<bucket>/<stream id>#<incarnation>` | start offset, 16 digits; with `.` behind it: a |
|          |                                          | closed stream's tombstone                      |
| producer | `producer/<incarnation>`                 | producer id                                    |
| mail     | `mail/<format>/<incarnation>/<start      | mail id, 16 hexadecimal digits                 |
|          | offset>`                                 |                                                |
| receipt  | that of the mail that a batch took       | `.`                                            |
| due      | `due/<shard>`                            | `<due ms>/<incarnation>[/<mark>]`              |
| waiter   | `wait/<shard>`                           | `<incarnation>/<queue url>`; of a socket:      |
|          |                                          | `<incarnation>.<connection>/`                  |
| connec-  | `wait/<shard>`                           | `+<connection>`                                |
| tion     |                                          |                                                |
| subscrip-| `sub/<subscription id>`                  | `.`                                            |
| tion     |                                          |                                                |
| roster   | `roster`                                 | `/<incarnation of the subscription>`           |
| entry    |                                          |                                                |
| follower | `follow/<stream id>`                     | `/<incarnation of the subscription>`           |
| link     | `link/<incarnation of the subscription>` | `/<stream id>`                                 |
| pending  | `pending/<incarnation of the             | `/<stream id>`                                 |
| mark     | subscription>`                           |                                                |
| signing  | `keys`                                   | `<created ms>/<kid>`                           |
| key      |                                          |                                                |
| format   | `format`                                 | `.`                                            |

The writer of each item, whether it changes, and what removes it:

| item     | written by                 | changes                            | removed by                    |
| -------- | -------------------------- | ---------------------------------- | ----------------------------- |
| bucket   | the bucket's creation      | the count, as streams are created  | its deletion, while empty: an |
|          |                            | and end                            | end mark takes its place      |
| stream   | the stream's creation      | touched, by reads; the snapshot    | its deletion or expiry: an    |
|          |                            | and what is retained, by publishes | end mark takes its place, or  |
|          |                            | and trims; forks, by their         | the new stream of that name   |
|          |                            | creation and end;                  |                               |
|          |                            | deleted, where forks still need it;|                               |
|          |                            | packed, with each pack; compacted, |                               |
|          |                            | with a pass                        |                               |
| entry    | the bucket's creation      | never                              | its deletion: an end mark     |
|          |                            |                                    | takes its place               |
| end mark | a deletion or an expiry    | never                              | DynamoDB, by `ttl`; a later   |
|          |                            |                                    | creation of the same name     |
| batch    | an append, a creation with | never; but a pack takes the place  | the janitor: below what is    |
|          | content; a tombstone by a  | of the first of those that it      | retained, with the whole log  |
|          | deletion or an expiry; a   | stands for                         | (the tombstone last), or once |
|          | pack by the janitor        | (`docs/internals/packs.md`)        | a pack stands for it          |
| producer | the append whose batch     | epoch and sequence rise            | the janitor, with the log     |
|          | carries it no longer       |                                    |                               |
| mail     | a writer of a crowded      | never                              | DynamoDB, by `ttl`            |
|          | stream                     |                                    |                               |
| receipt  | who has committed mail     | never                              | DynamoDB, by `ttl`            |
| due      | the change that leaves     | the kind: settled by the use of an | the janitor, once it is done  |
|          | work for later             | upload, claimed by the janitor     |                               |
| waiter   | a process with readers at  | its end, while readers wait        | its process; DynamoDB, by     |
|          | the tail; a socket's watch |                                    | `ttl`; the notifier, the      |
|          |                            |                                    | janitor                       |
| connec-  | the first watch of a       | with streams that it asks for      | DynamoDB, by `ttl`            |
| tion     | socket, before the waiter  |                                    |                               |
| subscrip-| the subscription's creation| with each step of a delivery;      | its deletion: an end mark     |
| tion     |                            | its version rises                  | takes its place               |
| roster   | the creation, after the    | when a stream is named one by one  | the delivery function, once   |
| entry    | subscription's item        |                                    | the subscription has ended    |
| follower | naming a stream, before    | never                              | as the roster entry; removing |
|          | its link                   |                                    | the stream by name            |
| link     | the creation, naming a     | acked, by acks; named or matched   | as the roster entry; the end  |
|          | stream, a first append     |                                    | of a stream that only matched |
| pending  | the delivery function, for | start rises                        | the delivery function, where  |
| mark     | each append that concerns  |                                    | nothing is left to process    |
|          | the subscription           |                                    |                               |
| signing  | the first creation of a    | never                              | an operator, after a rotation |
| key      | webhook; a rotation        |                                    |                               |
| format   | a process that writes, at  | the least epoch rises              | nobody                        |
|          | its start                  |                                    |                               |

Attribute names are short because DynamoDB bills a write by the kilobyte of the whole item.
An attribute that says nothing (not closed, no producers) is left out.
"""

from __future__ import annotations

from tidemark.log.schema.batches import *
from tidemark.log.schema.items import *
from tidemark.log.schema.mail import *
from tidemark.log.schema.streams import *
