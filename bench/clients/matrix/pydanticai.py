import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from cells import ANN, MODEL, PLAIN, URL, cell, run, same

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL + "/v1", api_key="none"))


class Person(BaseModel):
    name: str
    age: int


@cell("plain")
def plain():
    same(Agent(model).run_sync("plain").output, PLAIN)


@cell("stream")
def stream():
    async def read():
        async with Agent(model).run_stream("plain") as r:
            return [t async for t in r.stream_text(debounce_by=None)][-1]
    same(asyncio.run(read()), PLAIN)


@cell("multi-turn")
def turns():
    first = Agent(model).run_sync("plain")
    same(Agent(model).run_sync("reasoning", message_history=first.all_messages()).output, "Yes.")


def agent():
    a = Agent(model)

    @a.tool_plain
    def get_weather(city: str = "", days: int = 0) -> str:
        """Tells the weather."""
        return "sunny"

    @a.tool_plain
    def now() -> str:
        """Tells the time."""
        return "sunny"
    return a


@cell("tools")
def tools():
    same(agent().run_sync("glm 4.7").output, "Done: sunny")


@cell("parallel tools")
def parallel():
    same(agent().run_sync("deepseek v3.1").output, "Done: sunny")


@cell("JSON schema")
def schema():
    same(Agent(model, output_type=NativeOutput(Person)).run_sync("Repeat: " + ANN).output, Person(name="Ann", age=7))


@cell("reasoning")
def reasoning():
    parts = Agent(model).run_sync("reasoning").all_messages()[-1].parts
    same([p.content for p in parts if p.part_kind == "thinking"], ["Is it 2 < 3?"])


@cell("usage")
def usage():
    assert Agent(model).run_sync("plain").usage.output_tokens > 0


run("pydantic-ai", "pydantic-ai-slim")
