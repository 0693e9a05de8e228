"""What variants of a template change in its text, and that they change nothing else; the texts are in tests/golden."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace

import pytest
from kernel_text import MAIN, changed_lines, kernel_texts

from genkern.gemm.problem import GemmProblem

# Tiles overhang; a bias and an activation.
PROBLEM = GemmProblem(104, 200, 520, bias=True, activation="relu")
TILED = "tiled_BM32_BN32_BK64_GM3_SK1_nW4_nS3"
ON_AMD = "tiled_BM16_BN64_BK64_GM1_SK1_nW4_nS2{}_EU0_mfma16_kP2_schednone"
UPRIGHT = "warp_specialized_BM64_BN48_BK64_GM3_SK{}_nW4_nS6"
SWAPPED = "warp_specialized_BM48_BN64_BK64_GM{1}_SK1_nW4_nS6{0}_swapped"


def only_change(before: dict[str, str], after: dict[str, str]) -> tuple[list[str], list[str]]:
    """The lines that the main kernel loses and gains, where nothing else differs."""
    assert list(before) == list(after)
    assert {name for name in before if before[name] != after[name]} <= {MAIN}
    return changed_lines(before[MAIN], after[MAIN])


@pytest.mark.parametrize("overhang", list(itertools.product((False, True), repeat=3)), ids=str)
def test_masks_are_where_tiles_overhang(overhang: tuple[bool, ...]) -> None:
    """Each dimension that tiles overhang is compared, no other is, and without masks the text is that of none."""
    sizes = ((128, 104), (256, 200), (512, 520))
    m, n, k = (size[too_large] for size, too_large in zip(sizes, overhang, strict=True))
    fitting, masked = (kernel_texts(replace(PROBLEM, M=M, N=N, K=K), TILED) for M, N, K in ((128, 256, 512), (m, n, k)))
    only_change(fitting, masked)
    loop = masked[MAIN].replace("for k in range", "for _ in range")
    assert re.sub(r", mask=.*?(, other=0\.0)?(?=\)($|\.to))", "", loop, flags=re.MULTILINE) == fitting[MAIN]
    assert [re.search(rf"< {size}\b", masked[MAIN]) is not None for size in "MNK"] == list(overhang)


def test_a_split_leaves_the_end_to_the_reduction() -> None:
    """Bias, activation and the cast to C's type are left to the second kernel, which is all that comes."""
    whole, split = (kernel_texts(PROBLEM, TILED.replace("SK1", f"SK{splits}")) for splits in (1, 3))
    assert split.keys() - whole.keys() == {"reduce_splits"}
    for end in ("c_ptr.dtype.element_ty", "activate(", "bias_ptr"):
        assert [end in text for text in (whole[MAIN], split[MAIN], split["reduce_splits"])] == [True, False, True]
    assert "partial_ptr" in split[MAIN]
    assert "tl.float32" in split[MAIN]


@pytest.mark.parametrize(("family", "upright"), [("tiled", "_semaphore"), ("tiled_tma", "")])
def test_swapped_tiles_are_the_transposes(family: str, upright: str) -> None:
    """The same words in another order: A and B, rows and columns, change places, and nothing else comes or goes."""
    config = f"{family}_BM32_BN32_BK64_GM3_SK3_nW4_nS3{upright}"
    texts = [kernel_texts(PROBLEM, config + side) for side in ("", "_swapped")]
    only_change(*texts)
    bodies = [re.sub(r'"""C\[M, N\] = .*?;', "", text[MAIN], flags=re.DOTALL) for text in texts]
    one, other = (Counter(re.findall(r"\w+", re.sub("BLOCK_SIZE_[MN]", "BLOCK", body))) for body in bodies)
    assert one == other
    dots = [re.search(r"tl\.dot\((\w), (\w)", text[MAIN]) for text in texts]
    assert [dot and dot.groups() for dot in dots] == [("a", "b"), ("b", "a")]


def test_a_specialized_loop_says_so() -> None:
    """One word more for Triton's own specialisation of warps."""
    plain = "persistent_tma_BM32_BN32_BK64_GM3_SK1_nW4_nS3"
    texts = kernel_texts(PROBLEM, plain), kernel_texts(PROBLEM, f"{plain}_specialized", "sm_100")
    (gone,), (new,) = only_change(*texts)
    assert new == gone.replace("flatten=True", "flatten=True, warp_specialize=True")


def test_warps_of_swapped_tiles_are_told_by_a_flag() -> None:
    """Of equal tiles one argument differs."""
    gone, new = only_change(kernel_texts(PROBLEM, UPRIGHT.format(1)), kernel_texts(PROBLEM, SWAPPED.format("", 3)))
    assert [line.replace("num_warps, False,", "num_warps, True,") for line in gone] == new
    assert len(new) == 1


def test_programs_that_share_k_have_pointers_to_their_sums() -> None:
    """And how many tiles are shared by how many programs; the rest of the text is the same."""
    gone, new = only_change(kernel_texts(PROBLEM, UPRIGHT.format(1)), kernel_texts(PROBLEM, UPRIGHT.format(2)))
    words = Counter(re.findall(r"\w+", " ".join(line for line in new if not line.startswith('"""'))))
    words -= Counter(re.findall(r"\w+", " ".join(gone)))
    assert words == Counter(dict.fromkeys(("partial_ptr", "ready_ptr", "WHOLE_TILES", "SHARERS"), 2) | {"True": 1})


@pytest.mark.parametrize("size", [3, 4, 5, 8])
def test_clusters_differ_in_their_size(size: int) -> None:
    """And in the descriptors of the parts of C that each program stores: all that are taken are handed on."""
    problem = replace(PROBLEM, M=48)
    two, more = (kernel_texts(problem, SWAPPED.format(f"_ck{programs}", 1)) for programs in (2, size))
    only_change(two, more)
    plain = [re.sub(r"c_desc_\d+,|\s", "", text[MAIN]) for text in (two, more)]
    assert plain[1] == plain[0].replace("aclusterof2", f"aclusterof{size}").replace(
        "num_warps,2,", f"num_warps,{size},"
    )
    named = re.findall(r"c_desc_(\d+)", more[MAIN])
    assert named == 2 * [str(part) for part in range(len(named) // 2)]


def test_tiles_beside_each_other_are_told_by_two_numbers() -> None:
    """Two below each other, or two side by side."""
    form = "warp_specialized_BM64_BN48_BK64_GM1_SK1_nW4_nS6_cl{}"
    (gone,), (new,) = only_change(*(kernel_texts(PROBLEM, form.format(cluster)) for cluster in ("2x1", "1x2")))
    assert (gone[-6:], new[-6:]) == (" 2, 1,", " 1, 2,")
    assert new[:-6] == gone[:-6]


@pytest.mark.parametrize(
    "config",
    [
        "tiled_tma_BM32_BN32_BK64_GM3_SK1_nW4_nS3",
        "tiled_tma_BM64_BN64_BK64_GM3_SK4_nW4_nS4_kernel",
        UPRIGHT.format(1),
        SWAPPED.format("", 3),
    ],
)
def test_realigned_kernels_are_those_of_their_base(config: str) -> None:
    """What copies rows comes first; the kernel that multiplies is the same to the letter."""
    base, realigned = kernel_texts(PROBLEM, config), kernel_texts(replace(PROBLEM, K=523), f"{config}_realigned")
    assert realigned.keys() - base.keys() == {"copy_numbers", "copy_block", "realign_ba"}
    assert {name: realigned[name] for name in base} == base


def test_tiles_of_one_xcd() -> None:
    """A program's number is remapped before it is a tile's, by the count of XCDs, which is an argument."""
    base, remapped = (kernel_texts(PROBLEM, ON_AMD.format(part), "gfx942") for part in ("", "_xcd1"))
    assert remapped.keys() - base.keys() == {"on_one_xcd"}
    gone, new = changed_lines(base[MAIN], remapped[MAIN])
    assert new[0] == "NUM_XCDS,"
    assert new[-1] == gone[0].replace(
        "tl.program_id(0)", "on_one_xcd(tl.program_id(0), tiles_m * tiles_n, NUM_XCDS)"
    ).replace("tl.cdiv(M, BLOCK_SIZE_M), tl.cdiv(N, BLOCK_SIZE_N)", "tiles_m, tiles_n")
    assert (len(gone), len(new)) == (1, 4)


def test_a_cache_modifier_is_of_the_weights_load() -> None:
    """Of B alone, which no other program reads soon."""
    (gone,), (new,) = only_change(*(kernel_texts(PROBLEM, ON_AMD.format(part), "gfx942") for part in ("", "_cmcg")))
    assert gone.startswith("b = tl.load(b_ptrs, ")
    assert new == gone.removesuffix(")") + ', cache_modifier=".cg")'


def test_what_follows_the_products() -> None:
    """Bias and activation are a line each, and where they are not wanted, none; so are scales."""
    plain = kernel_texts(replace(PROBLEM, bias=False, activation="none"), TILED)
    biased = kernel_texts(replace(PROBLEM, activation="none"), TILED)
    gone, new = only_change(plain, biased)
    assert gone == []
    assert new[0] == "bias_ptr,"
    assert [line.partition("(")[0] for line in new[1:]] == ["acc += tl.load"]
    active = kernel_texts(PROBLEM, TILED)
    assert active.keys() - biased.keys() == {"activate"}
    assert changed_lines(biased[MAIN], active[MAIN]) == ([], ["acc = activate(acc)"])
    scaled = replace(PROBLEM, op="a8w8", dtype_a="fp8e4m3fn", dtype_b="fp8e4m3fn", activation="none", bias=False)
    gone, new = only_change(plain, kernel_texts(scaled, TILED))
    assert gone == []
    assert new == [
        *("scale_a_ptr,", "scale_b_ptr,"),
        "acc = acc.to(tl.float32) * (tl.load(scale_a_ptr) * tl.load(scale_b_ptr))",
    ]


@pytest.mark.parametrize("operand", ["a", "b"])
def test_layouts_change_the_strides(operand: str) -> None:
    """The leading dimension goes with the other index, and along the steps over K."""
    flipped = {"a": replace(PROBLEM, row_major_a=False), "b": replace(PROBLEM, row_major_b=not PROBLEM.row_major_b)}
    texts = kernel_texts(PROBLEM, TILED), kernel_texts(flipped[operand], TILED)
    gone, new = only_change(*texts)
    assert {line.split()[0] for line in (*gone, *new)} == {f"{operand}_ptrs"}
    steps = [line for line in (*gone, *new) if "+=" in line]
    assert sorted(steps) == [f"{operand}_ptrs += BLOCK_SIZE_K", f"{operand}_ptrs += BLOCK_SIZE_K * ld{operand}"]
