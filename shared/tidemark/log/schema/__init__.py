"""The table's schema: every kind of key and value, each encoder beside its decoder, with one module for each
kind of item (docs/internals/schema.md). Other packages import all names from here."""

from __future__ import annotations

from tidemark.log.schema.batches import *
from tidemark.log.schema.items import *
from tidemark.log.schema.mail import *
from tidemark.log.schema.streams import *
