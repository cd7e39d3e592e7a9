"""The inference protocol over gRPC, through the package tritonclient."""

from __future__ import annotations

from typing import Any

import numpy as np
import tritonclient.grpc as client
from tritonclient.utils import InferenceServerException

from serving.fleet.protocol import (
    TYPES,
    Connection,
    Inference,
    RefusedError,
    UnansweredError,
    as_array,
)
from serving.fleet.wording import from_message

# Status codes that a server gives to a request it has looked at and not stepped for. All others may
# come from anything on the way, or leave open what became of the request.
_REFUSALS = ("INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "ALREADY_EXISTS")

# Those may be our model's own words, or a failure within the server.
_WORDS = ("INTERNAL", "UNKNOWN", "UNAVAILABLE")


class GrpcConnection(Connection):
    """A channel of its own, without retries of any kind.

    Args:
        url: host:port.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = self._connect()

    def _connect(self) -> client.InferenceServerClient:
        # Channels to one address share a connection unless told otherwise.
        options: list[tuple[str, Any]] = [
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", 2**31 - 1),
            ("grpc.max_receive_message_length", 2**31 - 1),
        ]
        return client.InferenceServerClient(self._url, channel_args=options)

    def model_parameters(self, model: str, timeout_s: float) -> dict[str, str]:
        """See `Connection`."""
        try:
            answer = self._client.get_model_config(model, client_timeout=timeout_s)
        except InferenceServerException as error:
            raise _translated(error) from error
        parameters: Any = answer.config.parameters  # pyright: ignore
        return {key: parameters[key].string_value for key in parameters}

    def infer(self, request: Inference, timeout_s: float) -> dict[str, np.ndarray]:
        """See `Connection`."""
        inputs = []
        for name, value in request.inputs:
            tensor = client.InferInput(name, list(value.shape), TYPES[value.dtype.name])
            tensor.set_data_from_numpy(value)
            inputs.append(tensor)
        parameters = dict(request.parameters)
        sequence: dict[str, Any] = {
            key: parameters.pop(key)
            for key in ("sequence_id", "sequence_start", "sequence_end")
            if key in parameters
        }
        try:
            answer: Any = self._client.infer(
                request.model,
                inputs,
                outputs=[client.InferRequestedOutput(name) for name in request.outputs],
                parameters=parameters,
                client_timeout=timeout_s,
                **sequence,
            )
        except InferenceServerException as error:
            raise _translated(error) from error
        message = answer.get_response()
        pairs = zip(message.outputs, message.raw_output_contents, strict=False)
        return {
            output.name: as_array(content, output.datatype, output.shape)
            for output, content in pairs
        }

    def renew(self) -> None:
        """See `Connection`."""
        self._client.close()
        self._client = self._connect()

    def close(self) -> None:
        """See `Connection`."""
        self._client.close()


def _translated(error: InferenceServerException) -> Exception:
    status = str(error.status() or "").removeprefix("StatusCode.")
    message = str(error.message() or "")
    if status in _REFUSALS:
        return RefusedError(message)
    if status in _WORDS:
        ours = from_message(message) is not None
        return RefusedError(message) if ours else UnansweredError(message)
    return UnansweredError(f"{status}: {message}")
