"""Reads what W&B has written offline: its .wandb file is a log of protobuf records in the format
of LevelDB's log."""

import json
import struct

# bytes; the file's own header and that of each part of a record are of the same length
BLOCK, HEADER = 32768, 7


def records(path):
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:  # the end of a block is left empty
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)  # checksum, length, kind
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def read(folder):
    """Of an offline run's folder: run's id, config, history (a list of dicts), names of saved
    files, exit status."""
    (path,) = folder.glob("*.wandb")
    run_id, config, history, files, status = None, {}, [], [], None
    for record in records(path):
        if record.HasField("run"):
            run_id = record.run.run_id
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if record.HasField("history"):
            items = record.history.item
            history.append(
                {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in items
                }
            )
        if record.HasField("files"):
            files += [file.path for file in record.files.files]
        if record.HasField("exit"):
            status = record.exit.exit_code
    return run_id, config, history, files, status
