"""Context managers that are entered and left by hand, in any order and thread."""

import threading

import pytest
import torch

import tessera as ts
from tessera import Shard
from tessera.debug import CommDebugMode

SCOPES = {
    "EmbeddingScope": lambda: ts.EmbeddingScope(max_norm=True),
    "implicit_replication": ts.implicit_replication,
    "CommDebugMode": CommDebugMode,
    "World": lambda: ts.simulate(2),
    "DeviceMesh": lambda: ts.init_device_mesh("cpu", (4,)),
}
# Those that change something only of their thread.
OF_A_THREAD = ["EmbeddingScope", "implicit_replication", "DeviceMesh"]
NOTHING = (None, None, None)


def in_a_thread(call):
    """Calls in another thread; what was raised there, if anything."""
    raised = []

    def body():
        try:
            call()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return raised[0] if raised else None


@pytest.fixture(params=SCOPES)
def scope(request, world):
    return SCOPES[request.param]()


def test_exit_without_enter(scope):
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^\[.*not entered"):
            scope.__exit__(*NOTHING)


def test_exit_once_too_often(scope):
    with scope:
        pass
    with pytest.raises(RuntimeError, match="not entered"):
        scope.__exit__(*NOTHING)
    # It still works.
    with scope:
        pass


@pytest.mark.parametrize("name", ["CommDebugMode", "World"])
def test_entered_twice(name, world):
    scope = SCOPES[name]()
    with scope:
        with pytest.raises(RuntimeError, match="entered already"):
            scope.__enter__()


@pytest.mark.parametrize("name", OF_A_THREAD)
def test_nested_in_itself(name, mesh):
    scope = SCOPES[name]()
    with scope, scope, scope:
        assert is_on(name, mesh)
    assert not is_on(name, mesh)


@pytest.mark.parametrize("name", OF_A_THREAD)
def test_left_in_another_thread(name, mesh):
    scope = SCOPES[name]()
    with scope:
        error = in_a_thread(lambda: scope.__exit__(*NOTHING))
        assert isinstance(error, RuntimeError) and "thread" in str(error)
        assert is_on(name, mesh)
        assert in_a_thread(lambda: check_off(name, mesh)) is None
    assert not is_on(name, mesh)


@pytest.mark.parametrize("name", ["EmbeddingScope", "implicit_replication"])
def test_left_in_the_wrong_order(name, mesh):
    outer, inner = SCOPES[name](), SCOPES[name]()
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RuntimeError, match="leave that first"):
        outer.__exit__(*NOTHING)
    inner.__exit__(*NOTHING)
    assert is_on(name, mesh)
    outer.__exit__(*NOTHING)
    assert not is_on(name, mesh)


def test_meshes_left_in_the_wrong_order(mesh):
    other = ts.DeviceMesh("cpu", [0, 1])
    with mesh:
        with other:
            with pytest.raises(RuntimeError, match="leave that first"):
                mesh.__exit__(*NOTHING)
        assert ts.zeros(4).device_mesh == mesh


@pytest.mark.parametrize("name", ["EmbeddingScope", "implicit_replication"])
def test_entered_and_forgotten(name, mesh):
    SCOPES[name]().__enter__()
    assert not is_on(name, mesh)
    # Its last reference goes in another thread: nothing is restored there.
    kept = [SCOPES[name]()]
    in_a_thread(lambda: kept[0].__enter__())
    kept.clear()
    assert not is_on(name, mesh)


@pytest.mark.parametrize("name", ["CommDebugMode", "World"])
def test_of_the_process(name, world):
    """Any thread may leave them."""
    scope = SCOPES[name]()
    scope.__enter__()
    assert in_a_thread(lambda: scope.__exit__(*NOTHING)) is None
    with pytest.raises(RuntimeError, match="not entered"):
        scope.__exit__(*NOTHING)


def is_on(name, mesh):
    """Whether a scope of this kind is in force in this thread."""
    if name == "DeviceMesh":
        try:
            return ts.zeros(4).device_mesh == mesh
        except ValueError:
            return False
    x = ts.distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
    try:
        if name == "implicit_replication":
            x + torch.ones(4, 2)
        else:
            ids = ts.distribute_tensor(torch.tensor([0]), mesh)
            with torch.no_grad():
                torch.embedding_renorm_(x, ids, 1.0, 2.0)
    except (NotImplementedError, RuntimeError):
        return False
    return True


def check_off(name, mesh):
    assert not is_on(name, mesh)
