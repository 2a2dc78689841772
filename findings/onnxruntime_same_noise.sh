#!/usr/bin/env bash
# onnxruntime 1.31.1: all sessions of a process draw the same noise.
#
# Expected: an exported policy that samples its actions (torch.randn_like and normal_ become RandomNormalLike) explores
# otherwise in every session, as actors in threads of one process should. The generators of the nodes are seeded with
# one number of the process and the node's place in the graph: sessions of the same model act with the same noise, step
# for step, and a session that is made later begins with the noise of the first one again. Eight actors are one.
#
# Output seen on 2026-11-28 (x + noise for x = 0, two steps of each session; the numbers vary from run to run):
#     first session: -0.64 -0.25 0.80, then -0.13 0.10 0.18
#     second session: -0.64 -0.25 0.80, then -0.13 0.10 0.18
#     made later: -0.64 -0.25 0.80, then -0.13 0.10 0.18
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "onnx==1.23.0" "onnxruntime==1.31.1" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

value = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in ("x", "y")}
nodes = [helper.make_node("RandomNormalLike", ["x"], ["noise"]), helper.make_node("Add", ["x", "noise"], ["y"])]
graph = helper.make_graph(nodes, "policy", [value["x"]], [value["y"]])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def steps(session):
    return [session.run(None, {"x": np.zeros((1, 3), np.float32)})[0][0] for _ in range(2)]


sessions = [onnxruntime.InferenceSession(model) for _ in range(2)]
found = [steps(session) for session in sessions]
found.append(steps(onnxruntime.InferenceSession(model)))
for name, noise in zip(("first session", "second session", "made later"), found):
    print(f"{name}:", ", then ".join(" ".join(f"{x:.2f}" for x in step) for step in noise))
same = all(np.array_equal(found[0], other) for other in found[1:])
raise SystemExit(0 if same and not np.array_equal(*found[0]) else "the behaviour has changed")
PY
