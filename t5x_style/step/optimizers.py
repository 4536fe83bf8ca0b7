"""The optimizer: schedule, AdamW with decay by path, clipping; and which parameters are frozen."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from t5x_style.interfaces.encoder import EncoderConfig

DECAYS = ("linear", "cosine", "constant", "warmup_stable_decay")
NO_DECAY = (r"bias$", r"scale$")  # an encoder may have no biases, or no norms


# Width of an encoder -> rate at which E5 was fine-tuned (https://arxiv.org/abs/2212.03533, A.2)
_FINE_TUNING_RATES = {384: 3e-5, 768: 2e-5}
_LARGE_RATE = 1e-5


class PatternError(ValueError):
    """A path pattern matches no parameter: it is mistyped, or the architecture has changed."""


@dataclasses.dataclass(frozen=True)
class AdamW:
    """AdamW (Loshchilov & Hutter 2019) with linear warm-up, as BERT-like models are trained.

    Attributes:
      learning_rate: at the peak.
      warmup_steps: steps from 0 to the peak.
      total_steps: at which the decay ends.
      decay: 'linear' or 'cosine' to 0 from the end of the warm-up, 'constant', or
        'warmup_stable_decay' (MiniCPM, Hu et al. 2024, arXiv:2404.06395): constant, then linear
        to 0 in the last `decay_steps`. A training with one of the last two can be continued.
      b1, b2, epsilon: of Adam.
      weight_decay: decoupled; times the learning rate.
      no_decay: regular expressions searched in parameter paths ('encoder/layers/.*/bias'); each
        has to match one, but those of the default.
      clip_norm: global norm that gradients are cut to; None does not clip.
      frozen: regular expressions searched in parameter paths; what they match is not trained and
        carries no moments. What an objective leaves `frozen_paths` is not, either way.
      rates: regular expression searched in parameter paths -> factor of the learning rate there;
        the first that matches counts, 1 where none does.
      decay_steps: of 'warmup_stable_decay', and 0 for every other decay.
    """

    learning_rate: float
    warmup_steps: int
    total_steps: int
    decay: Literal["linear", "cosine", "constant", "warmup_stable_decay"] = "linear"
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    no_decay: tuple[str, ...] = NO_DECAY
    clip_norm: float | None = 1.0
    frozen: tuple[str, ...] = ()
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    decay_steps: int = 0

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise ValueError(f"AdamW.learning_rate: expected > 0, found {self.learning_rate}")
        self._check_schedule()
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"AdamW.{name}: expected at least 0 and below 1, found {getattr(self, name)}"
                )
        if not self.epsilon > 0:
            raise ValueError(f"AdamW.epsilon: expected > 0, found {self.epsilon}")
        if not self.weight_decay >= 0:
            raise ValueError(f"AdamW.weight_decay: expected >= 0, found {self.weight_decay}")
        if not all(factor > 0 for factor in self.rates.values()):
            raise ValueError(
                f"AdamW.rates: expected factors > 0 (frozen trains nothing), found {self.rates}"
            )
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"AdamW.clip_norm: expected > 0 or None, found {self.clip_norm}")

    def _check_schedule(self) -> None:
        if self.decay not in DECAYS:
            raise ValueError(f"AdamW.decay: expected one of {DECAYS}, found {self.decay!r}")
        if not 0 <= self.warmup_steps <= self.total_steps:
            raise ValueError(
                "AdamW.warmup_steps: expected between 0 and total_steps "
                f"({self.total_steps}), found {self.warmup_steps}"
            )
        if self.decay != "warmup_stable_decay":
            if self.decay_steps:
                raise ValueError(
                    f"AdamW.decay_steps: expected 0 for decay = {self.decay!r}, found "
                    f"{self.decay_steps}; only 'warmup_stable_decay' has it"
                )
            return
        if not 1 <= self.decay_steps <= self.total_steps - self.warmup_steps:
            raise ValueError(
                "AdamW.decay_steps: expected at least 1 and, together with warmup_steps "
                f"({self.warmup_steps}), at most total_steps ({self.total_steps}) for decay = "
                f"'warmup_stable_decay', found {self.decay_steps}"
            )

    def schedule(self, step: jax.Array) -> jax.Array:
        """[] float32: the learning rate of update number `step`, counted from 0."""
        # The first update already moves: at step s of w warm-up steps the rate is (s + 1) / w.
        warmup = self.learning_rate * (step + 1) / max(1, self.warmup_steps)
        later = self._after_warmup()(step - self.warmup_steps)
        return jnp.asarray(jnp.where(step < self.warmup_steps, warmup, later), jnp.float32)

    def _after_warmup(self) -> optax.Schedule:
        """The rate by the number of updates since the warm-up."""
        rest = max(1, self.total_steps - self.warmup_steps)
        if self.decay == "linear":
            return optax.linear_schedule(self.learning_rate, 0.0, rest)
        if self.decay == "cosine":
            return optax.cosine_decay_schedule(self.learning_rate, rest)
        if self.decay == "constant":
            return optax.constant_schedule(self.learning_rate)
        return optax.linear_schedule(
            self.learning_rate, 0.0, self.decay_steps, transition_begin=rest - self.decay_steps
        )

    def branch_step(self) -> int | None:
        """Return the last step that trainings of every length share.

        Returns:
          the number of updates after which the state does not yet depend on `total_steps` or
          `decay_steps`: a longer training may continue from there. None where the rate of the
          first updates depends on `total_steps` already.
        """
        if self.decay == "constant":
            return self.total_steps
        if self.decay == "warmup_stable_decay":
            return self.total_steps - self.decay_steps
        return None

    def build(self, params: Any) -> optax.GradientTransformation:
        """The update rule for `params`, an nnx.State of the trainable parameters.

        Raises:
          PatternError: a pattern of `no_decay`, other than those of its default, or of `rates`
            matches no parameter.
        """
        named = tuple(pattern for pattern in self.no_decay if pattern not in NO_DECAY)
        require_matches(named, paths_of(params), "AdamW.no_decay")
        require_matches(tuple(self.rates), paths_of(params), "AdamW.rates")
        mask = decay_mask(params, self.no_decay)
        chain = [] if self.clip_norm is None else [optax.clip_by_global_norm(self.clip_norm)]
        return optax.chain(
            *chain,
            optax.scale_by_adam(self.b1, self.b2, self.epsilon),
            optax.add_decayed_weights(self.weight_decay, mask),
            optax.scale_by_learning_rate(self.schedule),
            *([scale_by_path(self.rates)] if self.rates else []),
        )

    def trainable(self, frozen_paths: tuple[str, ...]) -> Callable[[tuple[Any, ...], Any], bool]:
        """An nnx filter: a parameter that no pattern of `frozen` nor of `frozen_paths` matches.

        Args:
          frozen_paths: `Objective.frozen_paths` of the module that is split.
        """
        patterns = self.frozen + frozen_paths

        def matches(path: tuple[Any, ...], variable: Any) -> bool:
            if not issubclass(getattr(variable, "type", type(variable)), nnx.Param):
                return False
            return not _matches(patterns, path_string(path))

        return matches


def path_string(path: Iterable[Any]) -> str:
    """('encoder', 'layers', 0) -> 'encoder/layers/0'."""
    return "/".join(str(part) for part in path)


def paths_of(state: nnx.State) -> list[str]:
    """The paths of all variables of a state."""
    return [path_string(path) for path, _ in nnx.to_flat_state(state)]


def decay_mask(params: nnx.State, no_decay: tuple[str, ...]) -> Any:
    """A state like `params` with True where weight decay applies."""
    flat = nnx.to_flat_state(params)
    return nnx.from_flat_state(
        [(path, leaf.replace(not _matches(no_decay, path_string(path)))) for path, leaf in flat]
    )


def scale_by_path(rates: Mapping[str, float]) -> optax.GradientTransformation:
    """Multiplies the updates of a parameter by the factor of the first pattern in its path."""

    def factor(path: str) -> float:
        return next((rate for pattern, rate in rates.items() if re.search(pattern, path)), 1.0)

    def scaled(updates: Any, params: Any) -> Any:
        flat = nnx.to_flat_state(updates)
        return nnx.from_flat_state(
            [(path, leaf.replace(leaf[...] * factor(path_string(path)))) for path, leaf in flat]
        )

    return optax.stateless(scaled)


def require_matches(patterns: tuple[str, ...], paths: list[str], where: str) -> None:
    """Raises PatternError for a pattern that is found in none of the paths."""
    for pattern in patterns:
        if not any(re.search(pattern, path) for path in paths):
            raise PatternError(
                f"{where}: {pattern!r} matches no parameter. Paths look like: "
                + ", ".join(sorted(paths)[:8])
            )


def _matches(patterns: tuple[str, ...], path: str) -> bool:
    return any(re.search(pattern, path) for pattern in patterns)


def fine_tuning_rate(
    config: EncoderConfig, rate: float | None = None, factor: float = 1.0
) -> float:
    """A learning rate that suits the fine-tuning of an encoder: the wider it is, the lower.

    Args:
      config: of the encoder.
      rate: at the peak, used unchanged; None: by the width.
      factor: times the rate by width; above 1 where a head is fresh.
    """
    if rate is not None:
        return rate
    rates = (found for width, found in _FINE_TUNING_RATES.items() if config.hidden <= width)
    return factor * next(rates, _LARGE_RATE)
