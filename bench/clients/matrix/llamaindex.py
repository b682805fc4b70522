import gc

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from cells import MODEL, PLAIN, URL, cancelled, cell, run, same

llm = OpenAILike(api_base=URL + "/v1", api_key="none", model=MODEL, is_chat_model=True, is_function_calling_model=True, max_retries=0, context_window=8192)


def get_weather(city: str) -> str:
    """Tells the weather."""
    return "sunny"


def now() -> str:
    """Tells the time."""
    return "noon"


TOOLS = [FunctionTool.from_defaults(fn=get_weather), FunctionTool.from_defaults(fn=now)]


@cell("plain")
def plain():
    same(llm.chat([ChatMessage(role="user", content="plain")]).message.content, PLAIN)


@cell("stream")
def stream():
    same("".join(r.delta for r in llm.stream_chat([ChatMessage(role="user", content="plain")])), PLAIN)


@cell("multi-turn")
def turns():
    history = [ChatMessage(role="system", content="s"), ChatMessage(role="user", content="plain"), ChatMessage(role="assistant", content="a")]
    same(llm.chat(history + [ChatMessage(role="user", content="reasoning")]).message.content, "Yes.")


@cell("tools")
def tools():
    r = llm.chat_with_tools(TOOLS, user_msg="glm 4.7")
    same([(c.tool_name, c.tool_kwargs) for c in llm.get_tool_calls_from_response(r)], [("get_weather", {"city": "Bonn"})])


@cell("parallel tools")
def parallel():
    r = llm.chat_with_tools(TOOLS, user_msg="hermes", allow_parallel_tool_calls=True)
    same([c.tool_name for c in llm.get_tool_calls_from_response(r)], ["get_weather", "now"])


@cell("cancel")
def cancel():
    s = llm.stream_chat([ChatMessage(role="user", content="forever")])
    next(s)
    del s  # its close() leaves the connection open
    gc.collect()
    cancelled()


@cell("usage")
def usage():
    assert llm.chat([ChatMessage(role="user", content="plain")]).raw.usage.completion_tokens > 0


run("LlamaIndex", "llama-index-llms-openai-like")
