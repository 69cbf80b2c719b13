"""One environment of a function, as a process: `python invoke.py read`, with a JSON list of events to read.

Its variables are its own, as Lambda's are. Says what was answered, and what was imported for it.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from pathlib import Path


class Context:
    function_name = aws_request_id = "invoked"
    memory_limit_in_mb = "512"
    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:invoked"

    def get_remaining_time_in_millis(self) -> int:
        return 60_000


def main() -> None:
    asyncio.set_event_loop(asyncio.new_event_loop())
    file = Path(__file__).parents[2] / "functions" / sys.argv[1] / "app.py"
    handler = runpy.run_path(str(file))["handler"]
    answers = [handler(event, Context()) for event in json.load(sys.stdin)]
    print("REPORT" + json.dumps({"answers": answers, "imported": sorted(sys.modules)}))


if __name__ == "__main__":
    main()
