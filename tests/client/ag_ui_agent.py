"""An agent that stops in the middle of its answer until a test goes on, and fails if it is asked to."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from ag_ui.core import BaseEvent, RunAgentInput, TextMessageChunkEvent
from agent import serve  # type: ignore[import-not-found]

WORDS = [f"{number}🌊 " for number in range(40)]


async def agent(run: RunAgentInput) -> AsyncIterator[BaseEvent]:
    for number, word in enumerate(WORDS):
        yield TextMessageChunkEvent(message_id=f"{run.run_id}-answer", role="assistant", delta=word)
        while number == 19 and not Path(os.environ["GATE"]).exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.05)
        if run.run_id == "fails":
            raise RuntimeError("on purpose")


app = serve(agent)
