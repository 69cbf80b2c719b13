"""A LangGraph graph as the agent of `agent.py`: its `astream_events` become AG-UI events.

.venv/bin/pip install ag-ui-protocol langgraph
.venv/bin/uvicorn --app-dir docs/examples/ag-ui langgraph_agent:app
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

from ag_ui.core import (
    BaseEvent,
    RunAgentInput,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageChunkEvent,
    ToolCallChunkEvent,
    ToolCallResultEvent,
)
from agent import serve
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph

# Your model. The built-in one needs no key, and has one answer.
model = GenericFakeChatModel(
    messages=itertools.cycle([AIMessage("High tide in Bristol is at 7:31 and 19:52.")])
)


@tool
async def high_tide(port: str) -> str:
    """Look up the times of high tide in a port."""
    return f"{port}: 7:31, 19:52"


async def look_up(_: MessagesState) -> dict[str, Any]:
    return {"messages": [("system", await high_tide.ainvoke({"port": "Bristol"}))]}


async def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await model.ainvoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node("look_up", look_up)
builder.add_node("answer", answer)
builder.add_edge(START, "look_up")
builder.add_edge("look_up", "answer")
builder.add_edge("answer", END)
graph = builder.compile()


async def agent(run: RunAgentInput) -> AsyncIterator[BaseEvent]:
    texts = [each for each in run.messages if each.role in {"user", "assistant", "system"} and each.content]
    asked = {"messages": [(each.role, each.content) for each in texts]}
    async for event in graph.astream_events(asked, version="v2"):
        name, run_id, data = event["name"], event["run_id"], event["data"]
        is_node = event.get("metadata", {}).get("langgraph_node") == name
        match event["event"]:
            case "on_chain_start" if is_node:
                yield StepStartedEvent(step_name=name)
            case "on_chain_end" if is_node:
                yield StepFinishedEvent(step_name=name)
            case "on_chat_model_stream" if data["chunk"].text:
                yield TextMessageChunkEvent(message_id=run_id, role="assistant", delta=data["chunk"].text)
            case "on_tool_start":
                arguments = json.dumps(data["input"])
                yield ToolCallChunkEvent(tool_call_id=run_id, tool_call_name=name, delta=arguments)
            case "on_tool_end":
                content = str(getattr(data["output"], "content", data["output"]))
                yield ToolCallResultEvent(message_id=f"{run_id}-result", tool_call_id=run_id, content=content)


app = serve(agent)
