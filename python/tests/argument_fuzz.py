"""Calls of PyTorch's op database with wrong arguments, against one device.

    python argument_fuzz.py [--calls N] [--seed N] [NAME ...]

makes N calls of each op and prints what ended otherwise than it may:
test_argument_fuzz.py is the test. A call may end in an error or in one device's
value, never in a signal; so the calls are made in a child process, which says
what it is about to do. Where one device dies by a signal itself, the call
counts as skipped.
"""

import argparse
import copy
import dataclasses
import faulthandler
import math
import os
import random
import resource
import signal
import sys
import time
import warnings

import op_sweep
import torch
from torch.utils import _pytree as pytree

import tessera as ts

# A call that takes longer than this is one that runs away with its memory.
SECONDS = 30
GIGABYTES = 12

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
)
# Others round in another order.
COMPARED = (torch.float64, torch.complex128)
MOST_ELEMENTS = 1 << 20
# The kernels of these follow the values of a tensor wherever they lead: offsets,
# labels, pivots. No layout makes that better or worse.
NOT_CALLED = {"_segment_reduce", "linalg.ldl_solve", "nn.functional.ctc_loss"}
# Of these one device takes arguments without looking: it reads and writes
# foreign memory (sizes that do not fit, modes that it does not know), or what it
# gives is not determined (edges that are not sorted, bases). It is not asked what
# it makes of the call.
UNCHECKED = {
    "_batch_norm_with_update",
    "_native_batch_norm_legit",
    "bucketize",
    "grid_sampler_2d",
    "grid_sampler_3d",
    "lu_unpack",
    "native_batch_norm",
    "pca_lowrank",
    "searchsorted",
    "svd_lowrank",
}
# Where it is one device that is wrong: the op, what is found, and a part of the
# error or of the call.
ACCIDENTS = (
    # A bias of two dimensions broadcasts to the rows of a flattened batch.
    ("nn.functional.linear", "ours raises", "broadcast"),
    # Of no elements pixel_unshuffle gives what it is given, in its shape.
    ("nn.functional.pixel_shuffle", "wrong value", "[1, 0, 1, 1]"),
    ("nn.functional.pixel_unshuffle", "plain raises", "pixel_shuffle expects"),
    ("nn.functional.pixel_unshuffle", "values", "0"),
    # By chunks it takes labels and weights that do not fit.
    ("nn.functional.linear_cross_entropy", "ours raises", "options="),
    # No kernel for halves on the CPU.
    ("nn.functional.rrelu", "plain raises", "not implemented for 'Half'"),
    # No sparse gradients of complex tables.
    ("nn.functional.embedding", "plain raises", "outputs with complex dtype"),
    # Bags that end before they begin.
    ("nn.functional.embedding_bag", "ours raises", "offsets must not decrease"),
    # An input_dtype that no gradient has: torch's meta kernel gives the result
    # this dtype, the kernel on the CPU that of the gradient.
    ("_softmax_backward_data", "ours raises", "torch."),
    ("_softmax_backward_data", "wrong value", "torch.float16"),
    # Below zero is no dropout in the one of its kernels that is made of others.
    (
        "nn.functional.scaled_dot_product_attention",
        "ours raises",
        "dropout probability has to be between 0 and 1",
    ),
)
INTEGERS = (0, 1, -1, 2, 3, -2, 5, -7, 64, 1000)
NUMBERS = (0.0, 1.0, -1.0, 0.5, 2.0, -3.5, float("inf"), float("nan"))


def is_list_of_numbers(value):
    return isinstance(value, (list, tuple)) and all(
        isinstance(item, (int, float)) for item in value
    )


# Makers of wrong values. Each takes the random numbers and a right value.


def wrong_tensor(draw, tensor):
    ways = [
        lambda: tensor.new_ones(()),
        lambda: tensor.new_ones(draw.randrange(5)),
        lambda: tensor.new_ones([draw.randrange(4) for _ in range(draw.randrange(6))]),
        lambda: tensor.unsqueeze(draw.randrange(tensor.dim() + 1)),
        lambda: tensor.to(draw.choice(DTYPES)),
        lambda: tensor * -1,
        lambda: tensor * 8,
    ]
    if tensor.dim() > 0:
        dim = draw.randrange(tensor.dim())
        ways += [
            lambda: tensor.narrow(dim, 0, 0),
            lambda: tensor.narrow(dim, 0, draw.randrange(tensor.size(dim) + 1)),
            lambda: torch.cat([tensor, tensor], dim),
            lambda: tensor.transpose(0, dim),
            lambda: tensor.flatten(),
        ]
        if tensor.size(dim) > 0:
            ways += [lambda: tensor.select(dim, 0)] * 2
    # A copy: views of one element would overlap where a call writes.
    return draw.choice(ways)().clone(memory_format=torch.contiguous_format)


def wrong_list(draw, values):
    values = list(values)
    place = draw.randrange(len(values)) if values else 0
    at = lambda value: [*values[:place], value, *values[place + 1 :]]
    ways = [
        list,
        lambda: values[:-1],
        lambda: values[:1],
        lambda: [*values, draw.choice(INTEGERS)],
        lambda: [draw.choice(INTEGERS)] * len(values),
        lambda: [*values, *values],
        lambda: draw.choice(INTEGERS),
        lambda: at(0),
        lambda: at(draw.choice(INTEGERS)),
        lambda: at(draw.choice(INTEGERS)),
    ]
    return draw.choice(ways)()


def wrong_value(draw, value):
    if op_sweep.is_tensor(value):
        return wrong_tensor(draw, value)
    if is_list_of_numbers(value):
        return wrong_list(draw, value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        # A list, where it may be one for all dimensions.
        one = draw.choice(INTEGERS)
        return draw.choice((one, one, one, one, [one], [one] * 4))
    if isinstance(value, (float, complex)):
        return draw.choice(NUMBERS)
    if isinstance(value, str):
        return draw.choice(("mean", "sum", "none", "nonsense", ""))
    if isinstance(value, torch.dtype):
        return draw.choice(DTYPES)
    return draw.choice((value, 0, 1, -1, [0], [-1, 5]))


class WrongCall(op_sweep.Call):
    """A sample of an op with one argument, or two, replaced."""

    def __init__(self, op, sample, draw):
        self.op = op
        self.sample = copy.copy(sample)
        args = tuple(sample.args)
        leaves, self.tree = pytree.tree_flatten(
            (sample.input, args, dict(sample.kwargs)),
            is_leaf=lambda value: value is not args and is_list_of_numbers(value),
        )
        for _ in range(draw.choice((1, 1, 1, 2))):
            place = draw.randrange(len(leaves))
            leaves[place] = wrong_value(draw, leaves[place])
        self.leaves = leaves
        _, self.sample.args, self.sample.kwargs = pytree.tree_unflatten(
            leaves, self.tree
        )
        self.places = [i for i, leaf in enumerate(leaves) if op_sweep.is_tensor(leaf)]
        self.tensors = [leaves[i] for i in self.places]

    def __str__(self):
        def text(leaf):
            if not op_sweep.is_tensor(leaf):
                return repr(leaf)
            return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"

        first, args, keywords = pytree.tree_unflatten(
            [text(leaf) for leaf in self.leaves], self.tree
        )
        named = [f"{name}={value}" for name, value in keywords.items()]
        return f"({', '.join(map(str, [first, *args, *named]))})"


@dataclasses.dataclass
class Findings:
    """What became of calls: how many ended how, and those that may not."""

    calls: int = 0
    counts: dict = dataclasses.field(default_factory=dict)
    bad: list = dataclasses.field(default_factory=list)

    def add(self, kind, text=""):
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if text:
            self.bad.append(f"{kind}: {text}")


def outcome_of(call, tensors, backward):
    """("value", results) or ("error", the error)."""
    try:
        results, grads = call.run(tensors, backward)
    except Exception as error:
        return "error", error
    if backward:
        return "value", list(grads or ())
    return "value", results


def is_comparable(call, layout, results):
    """Whether the values of the results follow from the arguments alone."""
    numbers = [leaf for leaf in call.leaves if isinstance(leaf, float)]
    if not op_sweep.is_precise(call) or not all(map(math.isfinite, numbers)):
        return False  # inf times 0 follows from the order of sums
    tensors = [r for r in [*call.tensors, *results] if op_sweep.is_tensor(r)]
    tensors = [t for t in tensors if t.is_floating_point() or t.is_complex()]
    # Terms of a pending sum may be finite where the sum is not, and the other
    # way round.
    pending = any(isinstance(p, ts.Partial) for p in layout)
    return not any(
        t.dtype not in COMPARED
        or (pending and not t.detach().isfinite().all())
        for t in tensors
    )


def is_strict(call):
    """Whether torch refuses elsewhere what its CPU kernel takes.

    Many kernels return at once where there are no elements; meta functions look.
    """
    if any(t.numel() == 0 for t in call.tensors):
        return True
    tensors = [t.to("meta") for t in call.tensors]
    return outcome_of(call, tensors, False)[0] == "error"


def judge(call, layout, plain, ours):
    """How a call ended, and what is wrong about it if anything is."""
    if plain is None:
        return "one device is not asked", ""
    if ours[0] == "error" and "can't allocate memory" in str(ours[1]):
        return "large", ""
    if ours[0] == "error":
        text = op_sweep.text_of(ours[1])
        if "INTERNAL ASSERT" in str(ours[1]) and (
            plain[0] == "value" or "INTERNAL ASSERT" not in str(plain[1])
        ):
            return "internal assert", text
        if plain[0] == "error":
            return "both raise", ""
        if isinstance(ours[1], NotImplementedError) or "got mixed torch.Tensor" in text:
            return "refused", ""
        if is_strict(call):
            return "torch does not look", ""
        return "ours raises", text
    if plain[0] == "error":
        return "plain raises", op_sweep.text_of(plain[1])
    tensors = [r for r in plain[1] if op_sweep.is_tensor(r)]
    if any(t.numel() > MOST_ELEMENTS for t in tensors):
        return "large", ""
    try:
        precise = is_comparable(call, layout, plain[1])
        text = op_sweep.compare(ours[1], plain[1], precise)
    except Exception as error:  # what cannot be compared is not compared
        return "values", "" if isinstance(error, NotImplementedError) else str(error)
    return ("wrong value", text) if text else ("values", "")


class Child:
    """Makes the calls of one op, and says which before each."""

    def __init__(self, op, calls, seed, first, say):
        self.op, self.calls, self.seed, self.first, self.say = op, calls, seed, first, say

    def run(self):
        resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES << 30,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        samples = self.samples()
        if not samples:
            return
        for number in range(self.first, self.calls):
            self.call(number, samples)

    def samples(self):
        op = self.op
        if not op.dtypes or op.name in NOT_CALLED:
            return []
        dtype = torch.float64 if torch.float64 in op.dtypes else sorted(op.dtypes, key=str)[0]
        # As many as are asked for, up to where the first ones say it all.
        limit = min(40, max(4, self.calls))
        found = []
        samples = op_sweep.samples_of(op, dtype, limit)
        while True:
            try:
                sample = next(samples)
            except Exception:  # the last, or it is for another device
                return found
            leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
            tensors = [leaf for leaf in leaves if op_sweep.is_tensor(leaf)]
            if tensors and all(t.layout == torch.strided for t in tensors):
                found.append(sample)

    def is_accident(self, kind, text):
        return any(
            self.op.name == name and kind == found and part in text
            for name, found, part in ACCIDENTS
        )

    def call(self, number, samples):
        draw = random.Random(f"{op_sweep.full_name(self.op)} {self.seed} {number}")
        torch.manual_seed(draw.randrange(1 << 30))
        sample = samples[number % len(samples)]
        try:
            call = WrongCall(self.op, sample, draw)
        except Exception:  # such a tensor cannot be made
            return
        if not call.tensors:
            return
        ranks = draw.choice((1, 2, 2, 3))
        backward = draw.random() < 0.25
        layout = [draw.choice(op_sweep.placements_of(t)) for t in call.tensors]
        text = f"{number} {call} on {ranks} ranks, {', '.join(map(str, layout))}"
        text += ", with its gradient" if backward else ""
        signal.alarm(SECONDS)
        self.say("plain", number, text)
        plain = None
        if self.op.name not in UNCHECKED:
            plain = outcome_of(call, [t.clone() for t in call.tensors], backward)
        self.say("ours", number, text)
        with ts.simulate(ranks), ts.EmbeddingScope(max_norm=True):
            mesh = ts.init_device_mesh("cpu", (ranks,))
            try:
                tensors = [op_sweep.laid_out(t, mesh, p) for t, p in zip(call.tensors, layout)]
            except Exception:  # such a tensor cannot be distributed
                return
            ours = outcome_of(call, tensors, backward)
            kind, wrong = judge(call, layout, plain, ours)
            if wrong and self.is_accident(kind, f"{text}: {wrong}"):
                kind, wrong = "accident", ""
        signal.alarm(0)
        self.say("end", number, f"{kind}\t{text}: {wrong}" if wrong else kind)


def fuzz(op, calls, seed=0):
    """Makes this many calls of an op in a child process, or in several."""
    findings = Findings()
    first = 0
    while first < calls:
        first = _run_child(op, calls, seed, first, findings)
    return findings


def _run_child(op, calls, seed, first, findings):
    """Reads what a child says until it ends; returns the call to go on with."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            faulthandler.disable()  # the signal is told by the parent
            os.close(reading)
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            say = lambda *words: os.write(
                writing, ("\t".join(map(str, words)).replace("\n", " ") + "\n").encode()
            )
            Child(op, calls, seed, first, say).run()
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    last = None
    with os.fdopen(reading, errors="replace") as lines:
        for line in lines:
            stage, number, *rest = line.rstrip("\n").split("\t")
            last = stage, int(number), rest
            if stage == "end":
                findings.calls += 1
                findings.add(rest[0], rest[1] if len(rest) > 1 else "")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == 0:
        return calls
    if last is None or last[0] == "end":
        findings.add("child failed", f"status {status} after {last}")
        return calls
    stage, number, rest = last
    findings.calls += 1
    if stage == "plain" or status == -signal.SIGALRM:
        findings.add("skipped")
    else:
        name = signal.Signals(-status).name if status < 0 else f"exit {status}"
        findings.add(name, rest[0])
    return number + 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=80, help="of each op")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", dest="start", type=int, default=0)
    parser.add_argument("--to", type=int, default=None)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    total = Findings()
    began = time.monotonic()
    for op in op_sweep.op_db[options.start : options.to]:
        name = op_sweep.full_name(op)
        if options.names and name not in options.names and op.name not in options.names:
            continue
        found = fuzz(op, options.calls, options.seed)
        for text in found.bad:
            print(f"{name} {text}", flush=True)
        total.calls += found.calls
        for kind, count in found.counts.items():
            total.counts[kind] = total.counts.get(kind, 0) + count
    print(f"{total.calls} calls in {time.monotonic() - began:.0f} s: {total.counts}")


if __name__ == "__main__":
    main()
