"""Names that stay in fingerprints after the code has other ones, so that finished versions count.

A fingerprint holds names of three kinds: jobs (declared), functions and classes as `module.name`
(free to move to another package), and parameters. After a rename add the new name here, with the
one under which versions were made. After adding a parameter whose default means the old behaviour,
add it to `ADDED` with that value: while it has it, it is left out.
"""

from collections.abc import Mapping

# "module.name" in the code -> in fingerprints
KINDS: Mapping[str, str] = {}
# "module.name.parameter" in the code -> the parameter's name in fingerprints
PARAMETERS: Mapping[str, str] = {}
# "module.name.parameter" in the code -> text of the value that means what was done without it
ADDED: Mapping[str, str] = {
    "tokenization.train_tokenizer.split_case": "False",
    "bert.BertConfig.table_stddev": "None",
    "bert.BertConfig.position_stddev": "None",
    "bert.BertConfig.kernel_stddev": "None",
    "bert.BertConfig.attention_stddev": "None",
    "bert.BertConfig.mlp_stddev": "None",
}
