from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage

from cells import MODEL, PLAIN, TOOLS, URL, cell, run, same

llm = ChatAnthropic(base_url=URL, api_key="none", model=MODEL, max_tokens=1000, max_retries=0)


@cell("plain")
def plain():
    same(llm.invoke("plain").text, PLAIN)


@cell("stream")
def stream():
    same("".join(c.text for c in llm.stream("plain")), PLAIN)


@cell("tools")
def tools():
    own = llm.bind_tools(TOOLS)
    m = own.invoke("glm 4.7")
    same([(c["name"], c["args"]) for c in m.tool_calls], [("get_weather", {"city": "Bonn"})])
    same(own.invoke([HumanMessage("x"), m, ToolMessage("sunny", tool_call_id=m.tool_calls[0]["id"])]).text, "Done: sunny")


@cell("usage")
def usage():
    assert llm.invoke("plain").usage_metadata["output_tokens"] > 0


run("LangChain, Anthropic", "langchain-anthropic")
