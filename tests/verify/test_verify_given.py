"""Input sets of the user: files, folders, ONNX's test data, and expected outputs."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import model, proto, random_weights, save

from ortkit.cli.main import run as main
from ortkit.errors import UserError
from ortkit.verify.inputs.given import load_feeds, load_given
from ortkit.verify.pair import verify_models
from ortkit.verify.user_tolerance import UserTolerance

DECLARED = "g (float[n, 3] x, bfloat16[n] h, int64[n] ids) => (float[] y) { y = Identity(x) }"


def arrays(**changed: object) -> dict[str, object]:
    good = {"x": np.ones((2, 3), np.float32), "h": np.ones(2, np.uint16), "ids": np.arange(2)}
    return {k: v for k, v in {**good, **changed}.items() if v is not None}


def test_a_file_that_fits_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", **arrays(h=np.array([1, 2], ml_dtypes.bfloat16).view(np.uint16)))
    feeds = load_feeds(tmp_path / "in.npz", model(DECLARED))
    assert np.asarray(feeds["h"]).dtype == ml_dtypes.bfloat16
    assert np.asarray(feeds["h"]).tolist() == [1, 2]
    assert np.asarray(feeds["ids"]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": None}, "input 'x' is missing; add an array so named"),
        ({"ids": None, "idz": np.ones(2)}, "the model has no input 'idz'; did you mean 'ids'"),
        ({"x": np.ones((2, 3))}, "input 'x' is float64, the model wants float32; save it as"),
        (
            {"h": np.ones(2, np.float32)},
            "'h' is float32, the model wants bfloat16; save it as uin",
        ),
        ({"x": np.ones(3, np.float32)}, "input 'x' has shape [3], the model wants [n, 3]"),
        ({"x": np.ones((2, 4), np.float32)}, "has shape [2, 4], the model wants [n, 3]"),
        ({"ids": np.arange(5)}, "size 'n' is 2 in 'x' and 5 in 'ids'"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    np.savez(tmp_path / "in.npz", **arrays(**changed))
    with pytest.raises(UserError) as caught:
        load_feeds(tmp_path / "in.npz", model(DECLARED))
    assert message in str(caught.value)
    assert "in.npz" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"text"])
def test_a_file_that_is_no_npz_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "in.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not an npz file"):
        load_feeds(path, model(DECLARED))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_feeds(tmp_path / "none.npz", model(DECLARED))


def test_arrays_that_nothing_is_called_like_are_ignored_with_a_note(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", **arrays(labels=np.ones(4), idz=np.ones(2)))
    (given,) = load_given(tmp_path / "in.npz", model(DECLARED))
    assert set(given.feeds) == {"x", "h", "ids"}
    assert given.note == f"{tmp_path / 'in.npz'}: no input is called labels, idz; ignored"
    with pytest.raises(UserError, match="the model has no input 'labels'"):
        load_feeds(tmp_path / "in.npz", model(DECLARED))


def test_an_npy_file_is_the_only_input(tmp_path: Path) -> None:
    one = model("g (float[n] x) => (float[n] y) { y = Relu(x) }")
    np.save(tmp_path / "in.npy", np.ones(3, np.float32))
    assert np.asarray(load_feeds(tmp_path / "in.npy", one)["x"]).tolist() == [1, 1, 1]
    with pytest.raises(UserError, match="holds one array, and the model has 3 inputs"):
        load_feeds(tmp_path / "in.npy", model(DECLARED))
    (tmp_path / "in.npy").write_bytes(b"\x93NUMPY nonsense")
    with pytest.raises(UserError, match="not an npy file"):
        load_feeds(tmp_path / "in.npy", one)


def test_folders_of_files(tmp_path: Path) -> None:
    one = model("g (float[n] x) => (float[n] y) { y = Relu(x) }")
    with pytest.raises(UserError, match="the folder holds no inputs"):
        load_given(tmp_path, one)
    np.save(tmp_path / "x.npy", np.ones(3, np.float32))
    np.save(tmp_path / "other.npy", np.ones(3, np.float32))
    (given,) = load_given(tmp_path, one)
    assert (set(given.feeds), given.ignored) == ({"x"}, ("other",))
    for number in range(3):
        np.savez(tmp_path / f"{number}.npz", x=np.full(number + 1, number, np.float32))
    sizes = [np.shape(each.feeds["x"]) for each in load_given(tmp_path, one)]
    assert sizes == [(1,), (2,), (3,)]


# ---- ONNX's test data -------------------------------------------------------------------------

PAIR = "g (float[n, 4] a, int64[n] b) => (float[n, 4] y, int64[n] z) { y = Neg(a) z = Neg(b) }"


def write_data(folder: Path, *, off: float = 0.0, named: bool = False, rows: int = 2) -> None:
    """Write an input set and what the model `PAIR` gives for it."""
    folder.mkdir(parents=True)
    a = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
    b = np.arange(rows)
    files = {"input_0": (a, "a"), "input_1": (b, "b"), "output_0": (off - a, "y"),
             "output_1": (-b, "z")}  # fmt: skip
    for file, (array, name) in files.items():
        tensor = numpy_helper.from_array(array.astype(array.dtype), name if named else None)
        (folder / f"{file}.pb").write_bytes(tensor.SerializeToString())


def test_test_data_folders_are_input_sets(tmp_path: Path) -> None:
    for number in (0, 1, 10, 2):
        write_data(tmp_path / f"test_data_set_{number}", rows=number + 1, named=number == 1)
    found = load_given(tmp_path, model(PAIR))
    assert [np.shape(each.feeds["b"]) for each in found] == [(1,), (2,), (3,), (11,)]
    assert all(set(each.expected) == {"y", "z"} for each in found)
    (alone,) = load_given(tmp_path / "test_data_set_1", model(PAIR))
    np.testing.assert_array_equal(np.asarray(alone.feeds["b"]), np.arange(2))


def test_names_in_test_data_decide_over_numbers(tmp_path: Path) -> None:
    write_data(tmp_path / "d", named=True)
    (tmp_path / "d" / "input_0.pb").rename(tmp_path / "d" / "x")
    (tmp_path / "d" / "input_1.pb").rename(tmp_path / "d" / "input_0.pb")
    (tmp_path / "d" / "x").rename(tmp_path / "d" / "input_1.pb")
    (given,) = load_given(tmp_path / "d", model(PAIR))
    assert np.shape(given.feeds["a"]) == (2, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("input_1.pb", None), "input 'b' is missing: there are 1 of 2 inputs"),
        (("input_2.pb", b""), "the model has 2 inputs"),
        (("input_0.pb", b"\xff\xff nonsense"), "input 'a' cannot be read from it"),
        (("output_0.pb", b"\xff\xff nonsense"), "output 'y' cannot be read from it"),
        (("input_0.pb", "int32"), "input 'a' is int32, the model wants float32"),
        (("input_0.pb", "external"), "input 'a' cannot be read from it"),
    ],
)
def test_test_data_that_does_not_fit_is_refused(
    tmp_path: Path, change: tuple[str, str | bytes | None], message: str
) -> None:
    write_data(tmp_path / "d")
    file, content = tmp_path / "d" / change[0], change[1]
    tensor = numpy_helper.from_array(np.ones((2, 4), np.int32))
    if content == "external":
        tensor = TensorProto(data_type=1, dims=[2, 4], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="/etc/passwd")
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content if isinstance(content, bytes) else tensor.SerializeToString())
    with pytest.raises(UserError) as caught:
        load_given(tmp_path / "d", model(PAIR))
    assert message in str(caught.value)


def test_sequences_and_optionals_in_test_data(tmp_path: Path) -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    inputs = [
        helper.make_value_info("s", helper.make_sequence_type_proto(tensor)),
        helper.make_value_info("o", helper.make_optional_type_proto(tensor)),
        helper.make_value_info("p", helper.make_optional_type_proto(tensor)),
    ]
    built = ir.from_proto(helper.make_model(helper.make_graph([], "g", inputs, [])))
    one = np.ones(2, np.float32)
    values = (
        numpy_helper.from_list([one, 2 * one], "s"),
        numpy_helper.from_optional(one, "o"),
        onnx.OptionalProto(name="p"),
    )
    for number, each in enumerate(values):
        (tmp_path / f"input_{number}.pb").write_bytes(each.SerializeToString())
    feeds = load_feeds(tmp_path, built)
    assert isinstance(feeds["s"], list)
    assert [each.tolist() for each in feeds["s"]] == [[1, 1], [2, 2]]
    assert np.asarray(feeds["o"]).tolist() == [1, 1]
    assert feeds["p"] is None


# ---- expected outputs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("off", "tolerance", "verdict"),
    [
        (0.0, None, "yes"),
        (1e-5, None, "yes"),
        (0.1, None, "partly"),
        (0.1, UserTolerance(atol=0.2), "yes"),
        (1e-4, UserTolerance(atol=1e-6), "partly"),
        (0.1, UserTolerance(atol_of={"z": 1.0}), "partly"),
    ],
)
def test_expected_outputs_are_compared_with_the_original(
    tmp_path: Path, off: float, tolerance: UserTolerance | None, verdict: str
) -> None:
    write_data(tmp_path / "d", off=off)
    built = model(PAIR)
    found = verify_models(built, built, inputs=tmp_path / "d", tolerance=tolerance)
    assert found.verdict == verdict, found.reason
    assert found.samples == 1
    gaps = [gap.what for gap in found.not_compared]
    wanted = [f"the expected output 'y' of {tmp_path / 'd'}"]
    assert gaps == (wanted if verdict == "partly" else [])


def test_the_commands_say_what_was_ignored_and_what_differs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path, "m", proto(PAIR))
    values = {"a": np.ones((2, 4), np.float32), "b": np.arange(2), "labels": np.ones(2)}
    np.savez(tmp_path / "in.npz", **values, y=np.zeros((2, 4), np.float32))
    for command in (["verify", str(path), str(path)], ["optimize", str(path)]):
        code = main([*command, "--inputs", str(tmp_path / "in.npz")])
        said = capfd.readouterr().err
        assert code == 3
        assert f"ortkit: {tmp_path / 'in.npz'}: no input is called labels; ignored" in said
        assert f"the expected output 'y' of {tmp_path / 'in.npz'}" in said
        assert "the original gives another" in said


# ---- tolerances of the user ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tolerance", "actual", "answer"),
    [
        (UserTolerance(), [2.0, 200.0], ""),
        (UserTolerance(atol=0.5), [1.4, 100.4], ""),
        (UserTolerance(atol=0.5), [1.4, 100.6], "1 of 2 elements are beyond atol 0.5 and rtol 0"),
        (UserTolerance(rtol=0.01), [1.005, 101], ""),
        (UserTolerance(rtol=0.01), [1.1, 101], "the furthest at [0]: 1.1"),
        (UserTolerance(atol=0.1, rtol=0.01), [1.1, 101], ""),
        (UserTolerance(atol=5, atol_of={"y": 0.1}), [1, 102], "beyond atol 0.1"),
        (UserTolerance(atol=0.1, atol_of={"y": 5}), [1, 102], ""),
        (UserTolerance(atol=0.1), [np.nan, 100], "the furthest at [0]: nan instead of 1.0"),
        (UserTolerance(atol=0.1), [np.inf, 100], "the furthest at [0]: inf"),
    ],
)
def test_user_tolerances_are_those_of_allclose(
    tolerance: UserTolerance, actual: list[float], answer: str
) -> None:
    expected = np.array([1, 100], np.float32)
    found = tolerance.exceeds("y", expected, np.array(actual, np.float32))
    assert answer in found
    assert bool(found) == bool(answer)


def test_nan_and_infinity_equal_themselves() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 3])
    assert not UserTolerance(atol=0.0).exceeds("y", values, values.copy())
    assert UserTolerance(rtol=1.0).exceeds("y", values, values[[0, 2, 1, 3]])


def test_a_user_tolerance_makes_a_no_and_never_a_yes(tmp_path: Path) -> None:
    text = "g (float[n, 8] x) => (float[n, 8] y) { y = MatMul(x, w) }"
    w = random_weights(8, 8)
    near, far = w.copy(), w.copy()
    near[0, 0] *= 1 + 1e-5
    far[0, 0] *= 1.01
    original = model(text, {"w": w})
    strict, loose = UserTolerance(atol=1e-12), UserTolerance(atol=1e6, rtol=1e6)
    assert verify_models(original, model(text, {"w": near})).verdict == "yes"
    found = verify_models(original, model(text, {"w": near}), tolerance=strict)
    assert found.verdict == "no"
    assert "beyond atol 1e-12 and rtol 0" in found.reason
    assert verify_models(original, model(text, {"w": far}), tolerance=loose).verdict == "no"


def test_the_flags_of_tolerances(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = "g (float[n, 8] x) => (float[n, 8] y) { y = MatMul(x, w) }"
    w = random_weights(8, 8)
    one = save(tmp_path, "a", proto(text, {"w": w}))
    two = save(tmp_path, "b", proto(text, {"w": w * np.float32(1 + 1e-6)}))
    command = ["verify", str(one), str(two)]
    assert main(command) == 0
    assert main([*command, "--rtol", "1e-3", "--atol", "y=1e-9"]) == 0
    assert main([*command, "--atol", "y=1e-12"]) == 1
    assert "output 'y' with optimizations off" in capfd.readouterr().err
    for flags, message in (
        (("--atol", "z=1"), "the model has no output 'z'"),
        (("--rtol", "much"), "cannot read 'much'"),
        (("--rtol", "-1"), "cannot read '-1'"),
        (("--atol", "=1"), "cannot read '=1'"),
        (("--atol", "nan"), "cannot read 'nan'"),
    ):
        assert main([*command, f"{flags[0]}={flags[1]}"]) == 2
        assert message in capfd.readouterr().err
