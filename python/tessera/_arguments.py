"""What is wrong with the arguments of a call, in a sentence.

Asked by the bindings after a call has failed; see bindings/arguments.cpp.
"""

import dataclasses
import re
from typing import Any

import torch

# What functions of tessera._C are called by users.
_NAMES = {
    "from_local": "DTensor.from_local",
    "redistribute": "DTensor.redistribute",
    "to_local": "DTensor.to_local",
    "full_tensor": "DTensor.full_tensor",
    "shards": "DTensor.shards",
    "shard": "DTensor.shard",
    "local_range": "DTensor.local_range",
    "owners": "DTensor.owners",
    "device_mesh": "DTensor.device_mesh",
    "placements": "DTensor.placements",
    "spec": "DTensor._spec",
}


def describe(value: Any) -> str:
    """A value in a few words: never a whole tensor."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, (list, tuple)) and any(
        isinstance(item, torch.Tensor) for item in value
    ):
        return f"a {type(value).__name__} of {len(value)} with tensors in it"
    text = repr(value)
    if len(text) > 60 or "\n" in text:
        return f"an object of type {type(value).__name__}"
    if value is None or isinstance(value, (bool, type)):
        return text
    return f"{text} ({type(value).__name__})"


@dataclasses.dataclass
class _Parameter:
    name: str
    type: str
    optional: bool
    named_only: bool


def sentence(
    name: str, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """What to say of a call that no signature in pybind's text fits."""
    signatures = [
        _parse(line) for line in re.findall(r"^ {4}\d+\. (.*)$", text, re.M)
    ]
    if "incompatible constructor arguments" in text:
        args = args[1:]  # the object that is made; no signature names it
    # The complaint about the signature that fits best.
    complaints = [_complaint(s, args, kwargs) for s in signatures]
    _, complaint = max(complaints, default=(0, "the arguments do not fit"))
    return f"[{_NAMES.get(name, name)}] {complaint}"


def _parse(signature: str) -> list[_Parameter]:
    inner = signature[signature.index("(") + 1 :]
    inner = inner.split(") -> ")[0].removesuffix(")")
    parameters = []
    named_only = False
    for part in _split(inner):
        if part == "*":
            named_only = True
        elif part and not part.startswith("*") and part != "/":
            name, _, rest = part.partition(": ")
            type_name, _, default = rest.partition(" = ")
            parameters.append(
                _Parameter(name, type_name, bool(default), named_only)
            )
    return parameters


def _split(text: str) -> list[str]:
    """At the commas that are in no brackets and no quotes."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        if character in "([{<":
            depth += 1
        elif character in ")]}>":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return parts


def _complaint(
    parameters: list[_Parameter], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, str]:
    """How many arguments fit, and what is wrong with the first that does not."""
    if parameters and parameters[0].name in ("self", "arg0"):
        if args and not _fits(parameters[0].type, args[0]):
            return 0, _wrong(parameters[0], args[0])
        parameters, args = parameters[1:], args[1:]
    by_order = [p for p in parameters if not p.named_only]
    names = ", ".join(p.name for p in parameters) or "none"
    if len(args) > len(by_order):
        return 0, (
            f"expected at most {len(by_order)} arguments without a name, got "
            f"{len(args)}: its arguments are {names}"
        )
    given = dict(zip([p.name for p in by_order], args))
    for name in kwargs:
        if name in given:
            return 0, f"argument '{name}' was given twice"
        if name not in [p.name for p in parameters]:
            return 0, f"got no argument '{name}': its arguments are {names}"
    given.update(kwargs)
    there = [p for p in parameters if p.name in given]
    wrong = [p for p in there if not _fits(p.type, given[p.name])]
    fitting = 1 + len(there) - len(wrong)
    if wrong:
        return fitting, _wrong(wrong[0], given[wrong[0].name])
    for p in parameters:
        if p.name not in given and not p.optional:
            return fitting, (
                f"argument '{p.name}' is missing: expected {_words(p.type)}"
            )
    got = ", ".join(f"{name}={describe(v)}" for name, v in given.items())
    return 0, f"the arguments {names} do not fit, got {got}"


def _wrong(parameter: _Parameter, value: Any) -> str:
    return (
        f"expected {_words(parameter.type)} as '{parameter.name}', got "
        f"{describe(value)}"
    )


def _alternatives(type_name: str) -> list[str]:
    optional = re.fullmatch(r"(?:typing\.)?Optional\[(.*)\]", type_name)
    if optional:
        return [*_alternatives(optional[1]), "None"]
    return [part.strip() for part in type_name.split(" | ")]


def _kind(type_name: str) -> str:
    if type_name in ("object", "handle", "typing.Any", "Any"):
        return "anything"
    if "[" in type_name:
        of = _kind(type_name[type_name.index("[") + 1 : -1])
        return f"list of {of}"
    for part, kind in (
        ("SupportsInt", "int"),
        ("SupportsIndex", "int"),
        ("SupportsFloat", "float"),
    ):
        if part in type_name:
            return kind
    return type_name.rpartition(".")[2]


_WORDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "True or False",
    "str": "a string",
    "Tensor": "a tensor",
    "dtype": "a torch.dtype",
    "None": "None",
    "list of str": "a list of strings",
    "list of int": "a list of integers",
    "list of Tensor": "a list of tensors",
    "Callable": "something to call",
    "function": "something to call",
}


def _words(type_name: str) -> str:
    kinds = dict.fromkeys(_kind(part) for part in _alternatives(type_name))
    if "float" in kinds:
        kinds.pop("int", None)
    return " or ".join(_WORDS.get(kind, f"a {kind}") for kind in kinds)


def _fits(type_name: str, value: Any) -> bool:
    return any(_is(_kind(part), value) for part in _alternatives(type_name))


def _is(kind: str, value: Any) -> bool:
    if kind == "anything":
        return True
    if kind == "None":
        return value is None
    if kind == "int":
        return hasattr(value, "__index__") and (
            not isinstance(value, int) or -(2**63) <= value < 2**63
        )
    if kind == "float":
        return hasattr(value, "__float__") or hasattr(value, "__index__")
    if kind == "bool":
        return value is None or hasattr(value, "__bool__")
    if kind.startswith("list of "):
        return isinstance(value, (list, tuple)) and all(
            _is(kind.removeprefix("list of "), item) for item in value
        )
    if kind == "Tensor":
        return isinstance(value, torch.Tensor)
    if kind == "function":
        return callable(value)
    return kind in [base.__name__ for base in type(value).__mro__]
