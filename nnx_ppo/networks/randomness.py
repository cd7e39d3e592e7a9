"""Which random stream a stochastic module draws from."""

import jax
from flax import nnx


def resolve_stream(owner: str, rng: nnx.Rngs | nnx.RngStream, stream_name: str) -> nnx.RngStream:
    """Returns the stream that a module keeps.

    A stream given directly is used. Of several streams the one called ``stream_name`` is used,
    else ``default``.

    Args:
        owner: Name of the module's class, for the error.
        rng: One stream, or a set of named ones.
        stream_name: The name this kind of module prefers.

    Raises:
        ValueError: ``rng`` has neither stream.
    """
    if isinstance(rng, nnx.RngStream):
        return rng
    if stream_name not in rng and "default" not in rng:
        # Flax would only complain at the first draw, far from the line that is wrong.
        raise ValueError(
            f"{owner} draws from the random stream {stream_name!r} or 'default', but the given "
            f"nnx.Rngs has only {sorted(rng)}. Construct it as nnx.Rngs(seed, ...) or "
            f"nnx.Rngs({stream_name}=seed, ...)."
        )
    return rng[stream_name]


def peek_key(stream: nnx.RngStream) -> jax.Array:
    """Returns a key from the stream's present position without advancing it.

    The key differs from the one the next draw returns, so that the two are independent.
    """
    next_draw = jax.random.fold_in(stream.key[...], stream.count[...])
    return jax.random.fold_in(next_draw, 1)
