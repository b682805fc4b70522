import os

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from cells import cell, run

REAL = os.environ["KRATER_REAL_URL"]  # a server with a model: it scores texts


def text():
    return LocalCompletionsAPI(model="krater-tiny", base_url=REAL + "/v1/completions", tokenizer_backend="remote", max_retries=1, max_length=2048)


def instance(kind, *arguments):
    return Instance(kind, {}, arguments, 0)


@cell("plain")
def plain():
    ask = [instance("generate_until", "A lighthouse is", {"max_gen_toks": 8, "until": ["\n\n"]})]
    assert text().generate_until(ask)[0]


@cell("scoring")
def scoring():
    pairs = [("A lighthouse is a", " tower"), ("A lighthouse is a", " xylophone")]
    likely, unlikely = text().loglikelihood([instance("loglikelihood", *p) for p in pairs])
    assert likely[0] > unlikely[0], (likely, unlikely)
    [rolling] = text().loglikelihood_rolling([instance("loglikelihood_rolling", "A lighthouse is a tower.")])
    assert rolling < 0


run("lm-eval", "lm_eval")
