"""Prices, us-east-1, in dollars per million unless named otherwise. Look them up before you rely on them."""

from __future__ import annotations

from typing import Final

WRITE_UNIT: Final = 0.625
READ_UNIT: Final = 0.125
S3_WRITE: Final = 5.00
S3_READ: Final = 0.40
S3_GB_MONTH: Final = 0.023
SQS_CALL: Final = 0.40
HTTP_API: Final = 1.00
#: A WebSocket API bills each 32 KB of a message, sent or received, and each minute of a connection.
SOCKET_MESSAGE: Final = 1.00
SOCKET_PART_BYTES: Final = 32 * 1024
SOCKET_MESSAGE_BYTES: Final = 128 * 1024
SOCKET_MINUTE: Final = 0.25
LAMBDA_REQUEST: Final = 0.20
#: Per GB-second, arm64.
LAMBDA_GB_SECOND: Final = 13.3334e-6
EDGE_REQUEST: Final = 1.00
EDGE_FUNCTION: Final = 0.10
#: A request that AWS WAF inspects; CloudFront does not bill a request that WAF blocks.
FIREWALL_REQUEST: Final = 0.60
#: Per GB that leaves AWS, up to ten terabytes a month: by CloudFront (North America, Europe), and without it.
EDGE_OUT_GB: Final = 0.085
REGION_OUT_GB: Final = 0.09
#: Per GB of request bodies that CloudFront sends to an origin.
EDGE_TO_ORIGIN_GB: Final = 0.02
#: Per hour: ECS Fargate on arm64; a public IPv4 address; a load balancer and a unit of its capacity (25 new
#: connections a second, or 3,000 open ones).
FARGATE_VCPU_HOUR: Final = 0.03238
FARGATE_GB_HOUR: Final = 0.00356
ADDRESS_HOUR: Final = 0.005
BALANCER_HOUR: Final = 0.0225
BALANCER_UNIT_HOUR: Final = 0.008
#: The task of container/template.yaml.
TASK_VCPU: Final = 0.25
TASK_GB: Final = 0.5

#: The template's defaults, in GB.
MEMORY_GB: Final = 0.5
LIVE_GB: Final = 0.25
PROXY_GB: Final = 0.25
#: Duration of a request in a function: one call to storage and the Python around it.
REQUEST_SECONDS: Final = 0.008
#: The extra duration of a page of a listing: 100 queries, 16 at a time.
LISTING_SECONDS: Final = 0.05
#: From a request to a model until its first token.
FIRST_TOKEN_SECONDS: Final = 1.0
NOTIFIER_SECONDS: Final = 0.005
#: Records that an invocation of the notifier gets: five to ten where appends go to many streams, because ten
#: batches of each shard are worked on at once; a hundred only where one stream is hot.
RECORDS_AN_INVOCATION: Final = 5
#: The extra duration of an invocation that posts to sockets: a post takes about 10 ms, several at a time.
POSTING_SECONDS: Final = 0.010
#: The extra duration of a request for each megabyte of a page, at a third of a processor.
PAGE_SECONDS_PER_MB: Final = 0.075
#: An HTTP API counts a request for every 512 KB.
HTTP_API_BYTES: Final = 512 * 1024
#: Bytes of uncompressed HTTP/1.1 headers: of a request, with those that CloudFront adds; of a response to a
#: write and to a read, with those of API Gateway; and those that CloudFront adds to each response.
REQUEST_HEADER_BYTES: Final = 700
WRITE_HEADER_BYTES: Final = 400
READ_HEADER_BYTES: Final = 1120
EDGE_HEADER_BYTES: Final = 210
#: A listed stream as JSON.
LISTED_BYTES: Final = 350
