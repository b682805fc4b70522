from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from cells import ANN, MODEL, PERSON, PLAIN, TOOLS, URL, cancelled, cell, run, same

llm = ChatOpenAI(base_url=URL + "/v1", api_key="none", model=MODEL, max_retries=0)


@cell("plain")
def plain():
    same(llm.invoke("plain").content, PLAIN)


@cell("stream")
def stream():
    same("".join(c.content for c in llm.stream("plain")), PLAIN)


@cell("multi-turn")
def turns():
    same(llm.invoke([("system", "s"), ("user", "plain"), ("assistant", "a"), ("user", "reasoning")]).content, "Yes.")


@cell("tools")
def tools():
    own = llm.bind_tools(TOOLS)
    m = own.invoke("glm 4.7")
    same([(c["name"], c["args"]) for c in m.tool_calls], [("get_weather", {"city": "Bonn"})])
    same(own.invoke([HumanMessage("x"), m, ToolMessage("sunny", tool_call_id=m.tool_calls[0]["id"])]).content, "Done: sunny")


@cell("parallel tools")
def parallel():
    whole = None
    for chunk in llm.bind_tools(TOOLS).stream("hermes"):
        whole = chunk if whole is None else whole + chunk
    same([c["name"] for c in whole.tool_calls], ["get_weather", "now"])


@cell("JSON schema")
def schema():
    own = llm.with_structured_output({"title": "person", **PERSON}, method="json_schema")
    same(own.invoke("Repeat: " + ANN), {"name": "Ann", "age": 7})


@cell("cancel")
def cancel():
    s = llm.stream("forever")
    next(s)
    s.close()
    cancelled()


@cell("usage")
def usage():
    assert llm.invoke("plain").usage_metadata["output_tokens"] > 0


run("LangChain", "langchain-openai")
