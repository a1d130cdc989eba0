"""Table of the protocols over HTTP: a name, and the function that makes its endpoints.

Each is one file that parses and renders; none imports another (except chariot-v2, whose `/infer` takes V2's requests,
too), and all reach the server only through `Serving`.
"""

from collections.abc import Iterator

import msgspec

from quadriga.proto.http.operations import Operation, WireOptions
from quadriga.proto.messages import Serving
from quadriga.proto.outcomes import wire_protocol
from quadriga.tasks.references import resolve

PROTOCOLS: dict[str, str] = {
    "v2": "quadriga.proto.http.v2_rest:operations",
    "chariot-v2": "quadriga.proto.http.chariot_v2:operations",
    "generate": "quadriga.proto.http.generate:operations",
    "v1": "quadriga.proto.http.v1_rest:operations",
    "v2-extensions": "quadriga.proto.http.v2_extensions:operations",
}
"""Functions (serving, options) -> operations, as `module:attribute`, by name of the protocol; the frequent ones come
first."""


def all_operations(serving: Serving, options: WireOptions) -> Iterator[Operation]:
    """Yield the endpoints of all protocols, each with the protocol that its requests count for."""
    for name in PROTOCOLS:
        for operation in resolve(name, PROTOCOLS, "a protocol")(serving, options):
            infers = operation.need == "infer" and operation.method == "POST"
            protocol = wire_protocol(name) if infers and operation.in_thread else "state"
            yield msgspec.structs.replace(operation, protocol=protocol)
