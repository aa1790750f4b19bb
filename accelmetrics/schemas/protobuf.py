"""Protocol-buffer messages defined by a table. Generated code is avoided, because it requires one release of protobuf.

Fields are optional, so that a missing field can be told from one that was sent. If the table says ``bytes`` for a text, invalid UTF-8
spoils only that field.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any


@lru_cache
def message_classes(package: str, table: str) -> dict[str, Any]:
    """Return protobuf's classes for the messages of a table. Cached.

    Args:
        package: A unique package name for them; it is not transmitted.
        table: A line for each message, with its fields: ``Node: bytes name = 1; repeated Device devices = 2``. Numbers and types are
            defined by the protocol; names are free.

    Raises:
        ImportError: protobuf is not installed.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name=package, package=package)
    kinds = descriptor_pb2.FieldDescriptorProto
    schema = dict(line.split(": ", 1) for line in table.splitlines())
    for message, fields in schema.items():
        described = file.message_type.add(name=message)
        for words in fields.split(";"):
            *repeated, kind, name, _, number = words.split()
            field = described.field.add(name=name, number=int(number), label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL)
            if kind in schema:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in schema}


def parse_message(package: str, table: str, name: str, data: bytes) -> Any:
    """Parse a message that a table defines; see :func:`message_classes`.

    Raises:
        ValueError: The data is not a valid message.
    """
    from google.protobuf.message import DecodeError

    try:
        return message_classes(package, table)[name].FromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from error
