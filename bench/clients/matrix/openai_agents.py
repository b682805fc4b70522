import asyncio

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, SQLiteSession, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from cells import MODEL, PLAIN, URL, cell, run, same

set_tracing_disabled(True)


def models():
    """Makes the models anew for each loop of events, because a client belongs to one."""
    client = AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    return [OpenAIResponsesModel(MODEL, client), OpenAIChatCompletionsModel(MODEL, client)]


@function_tool
def get_weather(city: str) -> str:
    """Tells the weather."""
    return "sunny"


@function_tool
def now() -> str:
    """Tells the time."""
    return "sunny"


def ask(kind, text, tools=()):
    return Runner.run_sync(Agent(name="a", model=models()[kind], tools=list(tools)), text)


@cell("plain")
def plain():
    for kind in range(2):
        same(ask(kind, "plain").final_output, PLAIN)


@cell("stream")
def stream():
    async def read(kind):
        text, r = "", Runner.run_streamed(Agent(name="a", model=models()[kind]), "plain")
        async for e in r.stream_events():
            if e.type == "raw_response_event" and e.data.type == "response.output_text.delta":
                text += e.data.delta
        return text
    for kind in range(2):
        same(asyncio.run(read(kind)), PLAIN)


@cell("multi-turn")
def turns():
    async def both():
        session = SQLiteSession("x")
        a = Agent(name="a", model=models()[0])
        await Runner.run(a, "plain", session=session)
        return (await Runner.run(a, "reasoning", session=session)).final_output
    same(asyncio.run(both()), "Yes.")


@cell("tools")
def tools():
    for kind in range(2):
        same(ask(kind, "glm 4.7", [get_weather, now]).final_output, "Done: sunny")


@cell("parallel tools")
def parallel():
    for kind in range(2):
        same(ask(kind, "deepseek v3.1", [get_weather, now]).final_output, "Done: sunny")


@cell("usage")
def usage():
    assert ask(0, "plain").context_wrapper.usage.output_tokens > 0


run("openai-agents", "openai-agents")
