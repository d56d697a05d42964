"""Calls of PyTorch's op database on distributed tensors, against one device.

    python op_sweep.py [--full] [NAME ...]

prints what is wrong and what is refused. test_op_db.py is the test.
"""

import argparse
import dataclasses
import itertools
import random
import sys
import traceback
import warnings
from unittest import mock

import torch
from torch.utils import _pytree as pytree

import tessera as ts  # before op_db, which keeps functions of torch.masked
from tessera import Partial, Replicate, Shard

from torch.testing._internal import common_utils  # isort:skip
from torch.testing._internal.common_methods_invocations import op_db  # isort:skip
from torch.testing._internal.opinfo import core  # isort:skip

# Results that are not written, or random: only their shapes can be compared, and
# that replicas are equal.
UNWRITTEN = {"empty_like", "new_empty", "new_empty_strided"}
RANDOM = {
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "nn.functional.alpha_dropout",
    "nn.functional.dropout",
    "nn.functional.dropout2d",
    "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
    "nn.functional.rrelu",
    "normal",
    "rand_like",
    "randint_like",
    "randn_like",
    "uniform",
}

# A random basis: factors are the same up to signs.
LOW_RANK = {"svd_lowrank", "pca_lowrank"}


def determined(u, s, v):
    """What of a decomposition does not depend on the signs of vectors."""
    return s, (u * s.unsqueeze(-2)) @ v.mH


RANKS = (2, 4)


def full_name(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


@dataclasses.dataclass
class Limits:
    samples: int
    layouts: int


QUICK = Limits(samples=2, layouts=4)
FULL = Limits(samples=12, layouts=40)


@dataclasses.dataclass
class Verdict:
    calls: int = 0
    backwards: int = 0
    wrong: list = dataclasses.field(default_factory=list)
    refused: list = dataclasses.field(default_factory=list)
    refused_backward: list = dataclasses.field(default_factory=list)


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def placements_of(tensor):
    """The placements of one tensor on a mesh of one dimension."""
    options = [Replicate()] + [Shard(d) for d in range(tensor.dim())]
    # Numbers of eight bits cannot be added.
    if (tensor.is_floating_point() or tensor.is_complex()) and tensor.element_size() > 1:
        options.append(Partial())
    return options


def layouts_of(tensors, limit, seed):
    """Each tensor by itself in each of its layouts, all alike, then a mixture."""
    options = [placements_of(t) for t in tensors]
    replicated = tuple(Replicate() for _ in tensors)
    chosen = [replicated]
    first = lambda w: w[1] if len(w) > 1 else w[0]
    chosen.append(tuple(first(w) for w in options))
    chosen.append(tuple(w[-1] for w in options))
    single = [
        replicated[:i] + (option,) + replicated[i + 1 :]
        for i in range(len(tensors))
        for option in options[i][1:]
    ]
    rng = random.Random(seed)
    rng.shuffle(single)
    chosen += single
    for _ in range(limit):
        chosen.append(tuple(rng.choice(w) for w in options))
    unique = list(dict.fromkeys(chosen))
    return unique[:limit]


def laid_out(tensor, mesh, placement):
    """The tensor's value in this layout.

    Terms of a sum differ in size and sign, and add up without rounding.
    """
    tensor = tensor.detach()
    if not isinstance(placement, Partial):
        return ts.distribute_tensor(tensor, mesh, [placement])
    finite = torch.isfinite(tensor)
    zeros = torch.zeros_like(tensor)
    terms = [torch.where(finite, -tensor, zeros)]
    terms += [zeros] * (mesh.size() - 2)
    terms += [torch.where(finite, tensor + tensor, tensor)]
    return ts.DTensor.from_local(terms, mesh, [placement])


def whole(value):
    if not is_tensor(value):
        return value
    return value.full_tensor() if isinstance(value, ts.DTensor) else value


def close(actual, expected, precise):
    if is_tensor(expected) != is_tensor(actual):
        return f"{type(actual).__name__} for {type(expected).__name__}"
    if not is_tensor(expected):
        if isinstance(expected, float) and expected != expected:
            return None
        if isinstance(expected, (int, float, complex, bool)):
            return None if abs(actual - expected) < 1e-6 else f"{actual} for {expected}"
        return None if actual == expected else f"{actual} for {expected}"
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return (
            f"{actual.dtype}{list(actual.shape)} for "
            f"{expected.dtype}{list(expected.shape)}"
        )
    if not precise:
        return None
    if expected.layout != torch.strided:
        expected = expected.to_dense()
    if expected.is_floating_point() and expected.element_size() == 1:
        # Of eight bits: comparisons are not implemented.
        actual, expected = actual.float(), expected.float()
    comparable = actual.layout == expected.layout and actual.dtype != torch.chalf
    if comparable and torch.equal(actual, expected):
        return None  # most are, and this is found out fast
    # Terms of a sum round by the size of the largest.
    scale = 0.01
    if expected.numel() and (expected.is_floating_point() or expected.is_complex()):
        scale += float(expected.abs().nan_to_num(posinf=0).max()) * 1e-6
    try:
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-5 * scale, equal_nan=True)
    except AssertionError as error:
        return str(error).strip().splitlines()[0] + " " + str(error).strip().splitlines()[-2]
    return None


class Call:
    """One sample of an op: its tensors apart from the rest."""

    def __init__(self, op, sample):
        self.op = op
        self.sample = sample
        leaves, self.tree = pytree.tree_flatten(
            (sample.input, tuple(sample.args), dict(sample.kwargs))
        )
        self.leaves = leaves
        self.places = [i for i, leaf in enumerate(leaves) if is_tensor(leaf)]
        self.tensors = [leaves[i] for i in self.places]

    def run(self, tensors, backward):
        """Results and, with `backward`, the gradients of tensors."""
        leaves = list(self.leaves)
        given = []
        for place, tensor in zip(self.places, tensors):
            wants = backward and (tensor.is_floating_point() or tensor.is_complex())
            tensor = tensor.detach().requires_grad_(wants)
            given.append(tensor)
            leaves[place] = tensor
        value, args, kwargs = pytree.tree_unflatten(leaves, self.tree)
        # Leaves cannot be written in place; what a call writes is a copy.
        result = self.op(value, *args, **kwargs)
        if self.op.name in LOW_RANK:
            result = determined(*result)
        if backward:
            result = self.sample.output_process_fn_grad(result)
        results = [r for r in pytree.tree_leaves(result)]
        if not backward:
            # What a call writes into its arguments counts too.
            return results + given, []
        roots = [
            r
            for r in results
            if is_tensor(r)
            and r.requires_grad
            and (r.is_floating_point() or r.is_complex())
        ]
        if not roots:
            return results, None
        wanted = [g for g in given if g.requires_grad]
        total = None
        for i, root in enumerate(roots):
            term = root.abs() if root.is_complex() else root
            term = (term * (i + 1.5)).sin() if i % 2 else term * (i + 1.5)
            term = term.sum()
            total = term if total is None else total + term
        grads = torch.autograd.grad(total, wanted, allow_unused=True)
        return results, grads


def compare(actual, expected, precise):
    if len(actual) != len(expected):
        return f"{len(actual)} results for {len(expected)}"
    for i, (a, e) in enumerate(zip(actual, expected)):
        if a is None or e is None:
            zero = a if e is None else e
            if zero is not None and is_tensor(zero) and whole(zero.detach()).abs().sum() != 0:
                return f"{i}: one is None"
            continue
        text = close(whole(a.detach()) if is_tensor(a) else a, e, precise)
        if text:
            return f"{i}: {text}"
    return None


def is_precise(call):
    """Whether the values of the results can be compared."""
    if call.op.name in LOW_RANK and call.sample.kwargs.get("M") is not None:
        return False  # of full rank: an approximation, as good as its basis
    drops = call.sample.kwargs.get("dropout_p", 0) > 0
    if call.op.name == "nn.functional.multi_head_attention_forward":
        drops = call.sample.args[9] > 0 and call.sample.kwargs["training"]
    return call.op.name not in RANDOM | UNWRITTEN and not drops


def is_replicated(value):
    """Whether it is a plain value, or on every rank the same."""
    return (
        not isinstance(value, ts.DTensor) or value.placements == (Replicate(),)
    )


def replicas_differ(value):
    """Whether a replicated result is not the same on every rank."""
    if not isinstance(value, ts.DTensor) or not is_replicated(value):
        return False
    first, *others = value.detach().shards()
    return any(close(other, first, True) for other in others)


def text_of(error):
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{type(error).__name__}: {lines[0][:300]}"


def samples_of(op, dtype, limit):
    """The first samples of an op, made when they are asked for.

    torch seeds every generator before each: they do not depend on what is
    computed in between.
    """
    # It looks through the whole stack for a test of torch's own, to seed by its
    # name: there is none.
    with (
        mock.patch.object(common_utils, "extract_test_fn", lambda: None),
        mock.patch.object(core, "extract_test_fn", lambda: None),
    ):
        samples = op.sample_inputs("cpu", dtype, requires_grad=False)
    yield from itertools.islice(samples, limit)


def check(op, limits, backward=True):
    """Tries an op on the samples and layouts that the limits allow."""
    verdict = Verdict()
    name = full_name(op)
    if not op.dtypes:
        return verdict  # for another device
    dtype = torch.float64 if torch.float64 in op.dtypes else sorted(op.dtypes, key=str)[0]
    differentiable = backward and op.supports_autograd and dtype in (torch.float64,)
    tried = 0
    samples = enumerate(samples_of(op, dtype, limits.samples * 4))
    while tried < limits.samples:
        try:
            number, sample = next(samples)
        except Exception:
            break  # that was the last, or it is for another device
        call = Call(op, sample)
        if not call.tensors or any(t.layout != torch.strided for t in call.tensors):
            continue
        try:
            copies = [t.detach().clone() for t in call.tensors]
            expected, _ = call.run(copies, False)
            precise = is_precise(call)
        except Exception:
            continue  # one device refuses it too
        grads = None
        if differentiable and precise:
            try:
                copies = [t.detach().clone() for t in call.tensors]
                _, grads = call.run(copies, True)
            except Exception:
                grads = None
        ranks = RANKS[tried % len(RANKS)]
        tried += 1
        # A table with max_norm is written by its lookups, which is to be allowed.
        with ts.simulate(ranks), ts.EmbeddingScope(max_norm=True):
            mesh = ts.init_device_mesh("cpu", (ranks,))
            for k, layout in enumerate(layouts_of(call.tensors, limits.layouts, number)):
                where = f"sample {number} on {ranks} ranks, {', '.join(map(str, layout))}"
                arrange = lambda: [
                    laid_out(t, mesh, p) for t, p in zip(call.tensors, layout)
                ]
                verdict.calls += 1
                try:
                    actual, _ = call.run(arrange(), False)
                    text = compare(actual, expected, precise)
                    if call.op.name not in UNWRITTEN and any(map(replicas_differ, actual)):
                        text = "differs from rank to rank"
                except Exception as error:
                    verdict.refused.append(f"{where}: {text_of(error)}")
                    continue
                if text:
                    verdict.wrong.append(f"{where}: result {text}")
                    continue
                if grads is None:
                    continue
                verdict.backwards += 1
                try:
                    _, given = call.run(arrange(), True)
                    if given is None:
                        text = "none"
                    else:
                        text = compare(given, grads, precise)
                except Exception as error:
                    verdict.refused_backward.append(f"{where}: {text_of(error)}")
                    continue
                if text:
                    verdict.wrong.append(f"{where}: gradient {text}")
    return verdict


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument("--from", dest="start", type=int, default=0)
    parser.add_argument("--to", type=int, default=None)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    limits = FULL if options.full else QUICK
    counts = dict(right=0, partly=0, refused=0, wrong=0, untried=0, back=0, backall=0)
    for op in op_db[options.start : options.to]:
        name = full_name(op)
        if options.names and name not in options.names and op.name not in options.names:
            continue
        print("..", name, flush=True, file=sys.stderr)
        try:
            verdict = check(op, limits, not options.no_backward)
        except Exception:
            print(f"{name}: SWEEP FAILED")
            traceback.print_exc(limit=3)
            continue
        for text in verdict.wrong[:3]:
            print(f"WRONG {name}: {text}")
        for text in verdict.refused[:2]:
            print(f"refused {name}: {text}")
        for text in verdict.refused_backward[:2]:
            print(f"refused-backward {name}: {text}")
        if not verdict.calls:
            counts["untried"] += 1
            print(f"untried {name}")
        elif verdict.wrong:
            counts["wrong"] += 1
        elif len(verdict.refused) == verdict.calls:
            counts["refused"] += 1
        elif verdict.refused:
            counts["partly"] += 1
        else:
            counts["right"] += 1
        if verdict.backwards:
            counts["backall"] += 1
            counts["back"] += not verdict.refused_backward and not verdict.wrong
        sys.stdout.flush()
    print(counts)


if __name__ == "__main__":
    main()
