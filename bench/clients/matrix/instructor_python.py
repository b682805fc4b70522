import instructor
import openai
from pydantic import BaseModel

from cells import ANN, MODEL, URL, cell, run, same


class Person(BaseModel):
    name: str
    age: int


def ask(mode, text):
    client = instructor.from_openai(openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0), mode=mode)
    return client.chat.completions.create(model=MODEL, response_model=Person, max_retries=0, messages=[{"role": "user", "content": text}])


@cell("plain")
def plain():
    same(ask(instructor.Mode.MD_JSON, f"Repeat: ```json\n{ANN}\n```").model_dump(), {"name": "Ann", "age": 7})


@cell("JSON schema")
def schema():
    same(ask(instructor.Mode.JSON_SCHEMA, "Repeat: " + ANN).model_dump(), {"name": "Ann", "age": 7})


run("instructor", "instructor")
