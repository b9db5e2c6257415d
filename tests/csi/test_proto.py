"""csi.proto says what the published specification says, csi_pb2.py says what csi.proto says, and the bytes are those of CSI."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from csi.proto import csi_pb2, registration_pb2
from tests.csi.wire import Raw, read_fields, written

ROOT = Path(__file__).parents[2]
_TYPES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}


def test_every_name_type_and_number_is_the_specification_s() -> None:
    expected = Path(__file__).with_name("specification.txt").read_text().splitlines()
    assert sorted(_said()) == expected


@pytest.mark.parametrize("module", [csi_pb2, registration_pb2], ids=["csi", "registration"])
def test_the_generated_module_is_that_of_the_proto_file(tmp_path: Path, module: ModuleType) -> None:
    made = tmp_path / "made.pb"
    argv = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={made}"]
    subprocess.run([*argv, module.DESCRIPTOR.name], cwd=ROOT, check=True, capture_output=True, timeout=60)
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file
    generated = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for message in file.message_type:
        _forget_json_names(message)
    assert file == generated, "run `make proto`"


def test_a_request_written_byte_by_byte_is_understood() -> None:
    raw = written(
        {
            1: "vol-1",
            4: "/var/lib/kubelet/pods/x/mount",
            5: {2: {1: "fuse", 2: "ro"}, 3: {1: 5}},
            6: 1,
            8: {1: "source", 2: "dir:///srv"},
        }
    )
    request = csi_pb2.NodePublishVolumeRequest.FromString(raw)
    assert (request.volume_id, request.target_path) == ("vol-1", "/var/lib/kubelet/pods/x/mount")
    assert request.volume_capability.access_mode.mode == 5
    assert request.volume_capability.WhichOneof("access_type") == "mount"
    assert list(request.volume_capability.mount.mount_flags) == ["ro"]
    assert request.readonly
    assert dict(request.volume_context) == {"source": "dir:///srv"}


def test_an_answer_read_byte_by_byte_says_what_was_meant() -> None:
    answer = csi_pb2.NodeGetVolumeStatsResponse(
        usage=[csi_pb2.VolumeUsage(total=4096, used=1024, available=3072, unit="BYTES")],
        volume_condition=csi_pb2.VolumeCondition(abnormal=True, message="dead"),
    )
    fields = read_fields(answer.SerializeToString())
    usage, condition = read_fields(_only(fields[1])), read_fields(_only(fields[2]))
    assert usage == {1: [3072], 2: [4096], 3: [1024], 4: [1]}
    assert condition == {1: [1], 2: [b"dead"]}


def _forget_json_names(message: descriptor_pb2.DescriptorProto) -> None:
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        _forget_json_names(nested)


def _only(found: list[Raw]) -> bytes:
    (one,) = found
    assert isinstance(one, bytes)
    return one


def _said() -> list[str]:
    lines = [line for message in _messages() for line in _of_message(message)]
    for service in csi_pb2.DESCRIPTOR.services_by_name.values():
        lines += [
            f"{service.name}.{method.name}({method.input_type.name}) -> {method.output_type.name}"
            for method in service.methods
        ]
    return lines


def _messages() -> list[Descriptor]:
    waiting = list(csi_pb2.DESCRIPTOR.message_types_by_name.values())
    found = []
    while waiting:
        message = waiting.pop()
        if not message.GetOptions().map_entry:
            found.append(message)
            waiting += message.nested_types
    return found


def _of_message(message: Descriptor) -> list[str]:
    name = message.full_name.removeprefix("csi.v1.")
    lines = [f"{name}.{field.name} = {field.number} {_type(field)}" for field in message.fields] or [name]
    for enum in message.enum_types:
        lines += [f"{name}.{enum.name}.{value.name} = {value.number}" for value in enum.values]
    return lines


def _type(field: FieldDescriptor) -> str:
    named = field.message_type or field.enum_type
    kind = named.full_name.removeprefix("csi.v1.") if named else _TYPES[field.type]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return "map"
    oneof = f" oneof {field.containing_oneof.name}" if field.containing_oneof else ""
    return f"{'repeated ' if field.is_repeated else ''}{kind}{oneof}"
