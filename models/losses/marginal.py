"""The likelihood of masked tokens when a document is retrieved first and summed over.

REALM (Guu et al. 2020, arXiv:2002.08909): p(y|x) = sum over documents z of p(z|x) p(y|z,x), where
p(z|x) is a softmax over the candidates' relevance f(x,z). The gradient of log p(y|x) with respect
to f(x,z) is [p(y|z,x) / p(y|x) - 1] p(z|x): a document that helps becomes more likely.

Letters: B examples, K candidates, M masked tokens of an example.
"""

import jax
import jax.numpy as jnp

from t5x_style.interfaces.metrics import MetricSum

MARGINALS = ("token", "span")


def require_marginal(marginal: str, where: str) -> None:
    """Raises ValueError unless `marginal` is one of MARGINALS."""
    if marginal not in MARGINALS:
        raise ValueError(f"{where}: expected one of {MARGINALS}, found {marginal!r}")


def marginal_likelihood(
    relevance: jax.Array, gold: jax.Array, mask: jax.Array, marginal: str
) -> tuple[MetricSum, dict[str, MetricSum]]:
    """Minus log p(y|x), in nats.

    Args:
        relevance: [B, K] float32, f(x,z). Candidate 0 is the null document; -inf where there is no
            candidate.
        gold: [B, K, M] float32, log p(y_m|z,x) of each masked token.
        mask: [B, M] bool, which of the M are tokens; an example without any counts nothing.
        marginal: 'token' sums over documents for each token, the loss being the mean over tokens,
            as the official code has it; 'span' for all tokens of an example together, the mean
            being over examples, as the paper's formula.

    Returns:
        The loss, and metrics over examples (over tokens: `retrieval_utility` of 'token'):
        retrieval_utility, log p(y|x) - log p(y|null,x); document_entropy, of p(z|x) in nats;
        null_probability, p(null|x); null_share, p(null|x,y), the null document's part in p(y|x).
    """
    require_marginal(marginal, "marginal_likelihood: marginal")
    prior = jax.nn.log_softmax(relevance.astype(jnp.float32), axis=1)  # [B, K]
    gold = jnp.where(mask[:, None, :], gold.astype(jnp.float32), 0.0)
    counts = jnp.any(mask, axis=1)  # [B]
    if marginal == "token":
        together = gold  # each token by itself
        weight = mask
    else:
        together = jnp.sum(gold, axis=2, keepdims=True)
        weight = counts[:, None]
    joint = prior[:, :, None] + together  # [B, K, M or 1]
    likelihood = jax.nn.logsumexp(joint, axis=1)  # [B, M or 1]
    utility = likelihood - together[:, 0]
    null_share = jnp.exp(joint[:, 0] - likelihood)
    metrics = {
        "retrieval_utility": MetricSum.of(utility, weight),
        "document_entropy": MetricSum.of(_entropy(prior), counts),
        "null_probability": MetricSum.of(jnp.exp(prior[:, 0]), counts),
        "null_share": MetricSum.of(null_share, weight),
    }
    return MetricSum.of(-likelihood, weight), jax.lax.stop_gradient(metrics)


def _entropy(log_probability: jax.Array) -> jax.Array:
    """[B] from [B, K]; a candidate that is not there adds nothing."""
    probability = jnp.exp(log_probability)
    there = probability > 0
    return -jnp.sum(jnp.where(there, probability * jnp.where(there, log_probability, 0.0), 0.0), 1)
