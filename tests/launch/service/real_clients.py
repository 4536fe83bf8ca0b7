"""Calls a server with the clients of others; run by their Python, prints JSON of those that agree.

python tests/launch/service/real_clients.py http://127.0.0.1:8000
"""

import json
import sys
import urllib.request

TEXTS = ["Salt comes from the sea.", "Bread is made of flour, water and salt.", "of the hills"]
QUERY = "where does the river go"
DONE = []


def post(url: str, body: dict) -> dict:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def encoded(server: str, texts: list, side: str) -> list:
    found = post(f"{server}/encode", {"texts": texts, "side": side, "kinds": ["dense"]})
    return [item["dense"] for item in found["items"]]


def check(name: str, found: list, expected: list) -> None:
    pairs = [pair for both in zip(found, expected, strict=True) for pair in zip(*both, strict=True)]
    worst = max(abs(one - other) for one, other in pairs)
    assert worst < 1e-6, (name, worst)
    DONE.append(name)


def order(server: str) -> list:
    """Of TEXTS, best first, as `/encode` says."""
    query = encoded(server, [QUERY], "query")[0]
    given = encoded(server, TEXTS, "passage")
    scores = [sum(a * b for a, b in zip(query, one, strict=True)) for one in given]
    return sorted(range(len(TEXTS)), key=lambda n: -scores[n])


def main(server: str) -> None:
    expected, best = encoded(server, TEXTS, "passage"), order(server)

    import openai

    client = openai.OpenAI(base_url=f"{server}/v1", api_key="none")
    found = client.embeddings.create(model="kennel", input=TEXTS)
    check("openai", [one.embedding for one in found.data], expected)
    plain = client.embeddings.create(model="kennel", input=TEXTS, encoding_format="float")
    check("openai, float", [one.embedding for one in plain.data], expected)

    from langchain_openai import OpenAIEmbeddings

    settings = {"base_url": f"{server}/v1", "api_key": "none", "model": "kennel"}
    chain = OpenAIEmbeddings(check_embedding_ctx_length=False, **settings)
    check("langchain_openai", chain.embed_documents(TEXTS), expected)
    try:
        client.embeddings.create(model="kennel", input=[[1, 2, 3]])
    except openai.UnprocessableEntityError as error:
        assert "check_embedding_ctx_length=False" in str(error), error
    else:
        raise AssertionError("token ids were taken")

    import cohere

    ranked = cohere.ClientV2(api_key="none", base_url=server).rerank(
        model="kennel", query=QUERY, documents=TEXTS
    )
    assert [one.index for one in ranked.results] == best, (ranked.results, best)
    DONE.append("cohere")

    from huggingface_hub import InferenceClient

    hub = InferenceClient(base_url=f"{server}/embed")
    vectors = [hub.feature_extraction(text).ravel().tolist() for text in TEXTS]
    check("huggingface_hub", vectors, expected)

    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    index = TextEmbeddingsInference(model_name="kennel", base_url=server)
    check("llama_index embedding", index.get_text_embedding_batch(TEXTS), expected)

    from llama_index.core.schema import NodeWithScore, TextNode
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
    ranker = TextEmbeddingInference(base_url=server, top_n=len(TEXTS))
    found = ranker.postprocess_nodes(nodes, query_str=QUERY)
    assert [TEXTS.index(one.node.get_content()) for one in found] == best, found
    DONE.append("llama_index rerank")
    print(json.dumps({"clients": DONE}))


if __name__ == "__main__":
    main(sys.argv[1])
