from smolagents import OpenAIServerModel, tool
from smolagents.models import ChatMessage, MessageRole

from cells import MODEL, PLAIN, URL, cell, run, same

model = OpenAIServerModel(MODEL, api_base=URL + "/v1", api_key="none")


@tool
def get_weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: the city.
    """
    return "sunny"


def said(text):
    return [ChatMessage(role=MessageRole.USER, content=text)]


@cell("plain")
def plain():
    same(model.generate(said("plain")).content, PLAIN)


@cell("stream")
def stream():
    same("".join(d.content or "" for d in model.generate_stream(said("plain"))), PLAIN)


@cell("tools")
def tools():
    m = model.generate(said("glm 4.7"), tools_to_call_from=[get_weather], tool_choice="auto")
    same([c.function.name for c in m.tool_calls], ["get_weather"])


@cell("usage")
def usage():
    assert model.generate(said("plain")).token_usage.output_tokens > 0


run("smolagents", "smolagents")
