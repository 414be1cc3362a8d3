"""Which of kvd's devices a worker takes memory of: the GPU that it computes on.

kvd counts its devices in the order of its configuration, and a process counts GPUs as
CUDA_VISIBLE_DEVICES says. So a worker asks by the GPU's UUID: ranks of one model that compute on
different GPUs each get memory of their own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import kvd_client

# More than a node has.
_MOST_DEVICES = 64


def client_of_gpu(open_client: Callable[[int], kvd_client.Client], wanted: uuid.UUID) -> kvd_client.Client:
    """The session with the one of kvd's devices that is the wanted GPU. `open_client` takes the
    number of a device. Raises Unsupported with the remedy where kvd lends memory only of other
    GPUs."""
    found: list[str] = []
    fault: kvd_client.Unsupported | None = None
    for number in range(_MOST_DEVICES):
        try:
            client = open_client(number)
        except kvd_client.InvalidArgument:
            if number == 0:
                raise
            break  # kvd has no more
        except kvd_client.Unsupported as error:  # a GPU that this process does not see, or no GPU
            fault = error
            continue
        if client.session().device_uuid == wanted:
            return client
        found.append(f"GPU {client.session().device_uuid}")
        client.close()
    if fault is not None and not found:
        raise fault
    raise kvd_client.Unsupported(
        f"kvd lends memory of {', '.join(found)}, and vLLM runs on GPU {wanted}: name that one in kvd's "
        "cuda.device or in a [[device]] table, or start vLLM with CUDA_VISIBLE_DEVICES"
    )
