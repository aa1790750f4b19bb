"""Messages of protocol buffers whose fields stand in a table: no generated code, which would be bound to one release of the package.

Fields are optional, so that what was sent can be told from what was not. Where the table says ``bytes`` for a text, one that is no UTF-8
costs nothing else.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any


@lru_cache
def message_classes(package: str, table: str) -> dict[str, Any]:
    """Make the protobuf package's classes for the messages of a table, once.

    Args:
        package: A name of its own for them; it is not sent.
        table: A line for each message, with its fields: ``Node: bytes name = 1; repeated Device devices = 2``. Numbers and types are
            the protocol's; names are free.

    Raises:
        ImportError: The package is not installed.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name=package, package=package)
    kinds = descriptor_pb2.FieldDescriptorProto
    schema = dict(line.split(": ", 1) for line in table.splitlines())
    for message, fields in schema.items():
        described = file.message_type.add(name=message)
        for words in fields.split(";"):
            *repeated, kind, name, _, number = words.split()
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            field = described.field.add(name=name, number=int(number), label=label)
            if kind in schema:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in schema}


def parse_message(package: str, table: str, name: str, data: bytes) -> Any:
    """Read a message of a table that :func:`message_classes` takes.

    Raises:
        ValueError: It is none.
    """
    from google.protobuf.message import DecodeError

    try:
        return message_classes(package, table)[name].FromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from error
