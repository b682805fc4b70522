"""Compares /openapi.json with the types of the official libraries.

Every parameter that a library can send is a field of the document, and every field that a library
requires of an answer is one that the answer always has.
"""
import json
import os
import typing
import unittest
import urllib.request

import anthropic.types as anthropic_types
import openai.types as openai_types
import openai.types.chat as chat
import openai.types.responses as responses

with urllib.request.urlopen((os.environ["KRATER_REAL_URL"] or os.environ["KRATER_URL"]) + "/openapi.json") as page:
    DOCUMENT = json.load(page)
SCHEMAS = DOCUMENT["components"]["schemas"]


def resolved(schema):
    return SCHEMAS[schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema


def request(path):
    return resolved(DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"])


def answer(path, kind="application/json", method="post"):
    return resolved(DOCUMENT["paths"][path][method]["responses"]["200"]["content"][kind]["schema"])


class Document(unittest.TestCase):
    def sends(self, path, *params):
        known = request(path)["properties"]
        for p in params:
            for name in typing.get_type_hints(p):
                with self.subTest(f"{path} {name}"):
                    self.assertIn(name, known)

    def gets(self, schema, model):
        known = schema["properties"]
        for name, field in model.model_fields.items():
            if field.is_required():
                with self.subTest(f"{model.__name__} {name}"):
                    self.assertIn(field.alias or name, known)

    def test_chat(self):
        self.sends("/v1/chat/completions", chat.completion_create_params.CompletionCreateParamsBase)
        self.gets(answer("/v1/chat/completions"), chat.ChatCompletion)
        self.gets(answer("/v1/chat/completions", "text/event-stream"), chat.ChatCompletionChunk)

    def test_completions(self):
        self.sends("/v1/completions", openai_types.completion_create_params.CompletionCreateParamsBase)
        self.gets(answer("/v1/completions"), openai_types.Completion)

    def test_responses(self):
        self.sends("/v1/responses", responses.response_create_params.ResponseCreateParamsBase)
        self.gets(answer("/v1/responses"), responses.Response)

    @unittest.skipUnless("/v1/batches" in DOCUMENT["paths"], "the server has no Batch API")
    def test_others(self):
        self.sends("/v1/batches", openai_types.batch_create_params.BatchCreateParams)
        self.gets(answer("/v1/batches"), openai_types.Batch)
        self.gets(answer("/v1/files"), openai_types.FileObject)
        self.gets(answer("/v1/models/{id}", method="get"), openai_types.Model)

    def test_messages(self):
        self.sends("/v1/messages", anthropic_types.message_create_params.MessageCreateParamsBase)
        self.gets(answer("/v1/messages"), anthropic_types.Message)


if __name__ == "__main__":
    unittest.main()
