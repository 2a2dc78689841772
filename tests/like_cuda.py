"""A GPU in name only: CPU tensors that count as CUDA tensors, to find what a GPU would refuse where
there is none.

Inside `cuda()`, mixing both kinds of tensors and numpy() of a CUDA tensor are errors, and so is,
while a CUDA graph is captured, what waits for the GPU or copies from the CPU's memory. Graphs
are not replayed, and nothing is compiled.
"""

import contextlib
from unittest import mock

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

# may take both kinds
BOTH = "copy_", "__setitem__", "_foreach_copy_", "__getitem__", "__get__", "__set__", "view_as"
WAIT = "item", "tolist", "__bool__", "__float__", "__int__", "__index__", "cpu", "nonzero", "equal"
capturing = False


class Cuda(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return call(function, args, kwargs or {})

    def __deepcopy__(self, memo):
        copied = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
        return memo.setdefault(id(self), copied)


class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return call(function, args, kwargs or {})


def refused(name, args, tensors, to):
    """Why a GPU would refuse this call, or None. `tensors`: all arguments that are tensors."""
    others = [x for x in tensors if not isinstance(x, Cuda) and x.ndim]
    if name in ("numpy", "__array__") and isinstance(args[0], Cuda):
        return "numpy() of a CUDA tensor"
    if len(others) < len(tensors) and others and name not in (*BOTH, "to"):
        return "CUDA and CPU tensors"
    if (
        name in ("__getitem__", "__setitem__")
        and not isinstance(args[0], Cuda)
        and len(others) < len(tensors)
    ):
        return "a CPU tensor with a CUDA tensor as index"
    if (
        capturing
        and len(others) < len(tensors)
        and (name in WAIT or (name in BOTH and name != "view_as" and others))
    ):
        return "waiting, or a copy from the CPU, in a CUDA graph"
    if (
        capturing
        and to == "cuda"
        and (name in ("tensor", "as_tensor") or (name == "to" and others))
    ):
        return "a copy from the CPU in a CUDA graph"
    if capturing and name in ("__getitem__", "__setitem__"):
        indices = args[1] if isinstance(args[1], tuple) else [args[1]]
        if any(isinstance(index, list | np.ndarray) for index in indices):
            return "an index from the CPU in a CUDA graph"


def call(function, args, kwargs):
    name, tensors = (
        getattr(function, "__name__", ""),
        [x for x in tree_leaves((args, kwargs)) if torch.is_tensor(x)],
    )
    on_cuda, to = any(isinstance(x, Cuda) for x in tensors), None
    if kwargs.get("device") is not None:
        to, kwargs = torch.device(kwargs["device"]).type, kwargs | dict(device="cpu")
    elif name == "to" and (
        device := next((x for x in args[1:] if isinstance(x, str | torch.device)), None)
    ):
        to, args = (
            torch.device(device).type,
            [torch.device("cpu") if x is device else x for x in args],
        )
    forced = name == "numpy" and kwargs.get("force")
    if not forced and (reason := refused(name, args, tensors, to)):
        raise RuntimeError(f"{name}: {reason}")
    if name == "__get__" and isinstance(args[0], Cuda):
        known = dict(device=torch.device("cuda"), is_cuda=True)
        if function.__self__.__name__ in known:
            return known[function.__self__.__name__]
    with torch._C.DisableTorchFunctionSubclass():
        result = function(*args, **kwargs)
        if name in ("cpu", "to") and result is args[0] and (to or name == "cpu"):
            result = result.clone()  # from one kind to the other
    on_cuda = (
        isinstance(args[0], Cuda) if name in ("copy_", "__setitem__") else name != "cpu" and on_cuda
    )
    kind = Cuda if (to == "cuda" if to else on_cuda) else torch.Tensor
    if isinstance(result, torch.Size) or (not tensors and not to):
        return result
    return tree_map(lambda x: x.as_subclass(kind) if type(x) in (Cuda, torch.Tensor) else x, result)


def to(module, device=None, **_):
    if device is None:  # another memory format
        return module
    for part in module.modules() if device.type == "cuda" else ():
        for name, param in part._parameters.items():
            if param is not None:
                copy = param.detach().clone()
                with torch._C.DisableTorchFunction():  # a leaf, as torch.optim wants it
                    leaf = torch.Tensor._make_subclass(Cuda, copy, param.requires_grad)
                leaf._is_param = True
                part._parameters[name] = leaf
        part._buffers |= {name: x.clone().as_subclass(Cuda) for name, x in part._buffers.items()}
    return module


class Graph:
    def replay(self):
        pass


@contextlib.contextmanager
def graph(_):
    global capturing
    capturing = True
    try:
        yield
    finally:
        capturing = False


@contextlib.contextmanager
def cuda():
    """torch as if this machine had a GPU."""
    fakes = dict(
        is_available=lambda: True, device_count=lambda: 0, mem_get_info=lambda: (10**12, 10**12)
    )
    fakes |= dict(
        get_rng_state_all=list, set_rng_state_all=lambda _: None, CUDAGraph=Graph, graph=graph
    )
    with (
        mock.patch.multiple(torch.cuda, **fakes),
        mock.patch.object(torch.nn.Module, "to", to),
        Mode(),
    ):
        yield
