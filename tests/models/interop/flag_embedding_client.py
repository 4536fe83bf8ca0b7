"""Opens a folder in FlagEmbedding, in the Python that runs this: what it makes of texts, as JSON.

python flag_embedding_client.py FOLDER VECTOR_SIZE LENGTH < texts.json
"""

import json
import sys

from FlagEmbedding import BGEM3FlagModel

if __name__ == "__main__":
    folder, size, length = sys.argv[1:]
    model = BGEM3FlagModel(folder, use_fp16=False, devices="cpu", colbert_dim=int(size))
    made = model.encode(
        json.load(sys.stdin),
        max_length=int(length),
        return_dense=True,
        return_sparse=True,
        return_colbert_vecs=True,
    )
    found = {
        "dense": made["dense_vecs"].tolist(),
        "sparse": [
            {token: float(weight) for token, weight in one.items()}
            for one in made["lexical_weights"]
        ],
        "multi_vector": [one.tolist() for one in made["colbert_vecs"]],
    }
    print(json.dumps(found))
