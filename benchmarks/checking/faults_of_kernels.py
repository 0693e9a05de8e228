"""Faults for mutants.py: edits of a generated module's text, each of which makes a kernel compute wrongly.

A fault applies to all kernels whose text its pattern is found in. Where families write the same thing in different
ways, several entries have one name, and the first that applies is taken. No fault is here that a kernel could have and
still compute the same: a lost fence between a store and a copy, say, may never show.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """An edit: the first `count` places of `pattern` (0: all) become `replacement`, in the manner of re.sub.

    A text that has `unless` would compute the same with it; where kernels run one after the other, as the interpreter's
    do, any text would that is `overlapping`.
    """

    name: str
    pattern: str
    replacement: str
    count: int = 0
    unless: str = ""
    overlapping: bool = False


_OFFSET = r"\[[^\]]*\]"

FAULTS = (
    # Masks.
    Fault("M: the last row of A is not loaded", rf"(a = tl\.load\(.*offs_m{_OFFSET} < M)\)", r"\1 - 1)"),
    Fault("N: the last column of B is not loaded", rf"(b = tl\.load\(.*offs_n{_OFFSET} < N)\)", r"\1 - 1)"),
    Fault("N: the last column of B is not loaded", rf"(mask = .*offs_n{_OFFSET} < N)\)", r"\1 - 1)"),
    Fault("K: the last element of a row is not loaded", r"(offs_k[^<\n]*< K - k)", r"\1 - 1"),
    Fault("K: one element too many is loaded", r"(offs_k[^<\n]*< K - k)", r"\1 + 1"),
    Fault("M: the last row of C is not stored", rf"(tl\.store\(.*offs_m{_OFFSET} < M)\)", r"\1 - 1)"),
    Fault("N: the last column of C is not stored", rf"(tl\.store\(.*offs_n{_OFFSET} < N)\)", r"\1 - 1)"),
    Fault("N: the last column of C is not stored", r"(tl\.store\(c_ptr \+ .*mask=offs_n < N)\)", r"\1 - 1)"),
    Fault("the last element of C is not stored", r"^( +)inside = offs < elements$", r"\1inside = offs < elements - 1"),
    Fault("store beyond C: no mask", r"(tl\.store\(c_ptrs, c), mask=.*\)$", r"\1)"),
    Fault("store beyond C: no mask", r"(tl\.store\(c_ptr \+ offs_n, .*), mask=offs_n < N\)$", r"\1)"),
    Fault("store beyond C: no mask", r"(tl\.store\(c_ptr \+ offs_m .*), mask=inside\)$", r"\1)"),
    Fault(
        "a partial sum's last row is not stored", r"(tl\.store\(partial_ptrs, .*offs_m\[:, None\] < M)\)", r"\1 - 1)"
    ),
    # The loop over K.
    Fault("the last K-block is skipped", r"range\(0, K, BLOCK_SIZE_K\)", "range(0, K - BLOCK_SIZE_K, BLOCK_SIZE_K)"),
    Fault(
        "the last K-block is skipped",
        r"range\(first_k, last_k, BLOCK_SIZE_K\)",
        "range(first_k, last_k - BLOCK_SIZE_K, BLOCK_SIZE_K)",
    ),
    Fault("the last K-block is skipped", r"(for block in range\(.*\+ 1\) \* blocks // SPLIT_K)\)", r"\1 - 1)"),
    # Not the stride of scales of groups, which is a whole number of them.
    Fault("the last K-block is skipped", r"(?<!\* )gl\.cdiv\(K, (\d+)\)", r"(K // \1)"),
    Fault("the last K-block is skipped", r"range\(first, last, STRIDE\)", "range(first, last - STRIDE, STRIDE)"),
    Fault(
        "every K-block is taken twice",
        r"acc = tl\.dot\((\w+), (\w+), acc(.*)\)$",
        r"acc = tl.dot(\1, \2, tl.dot(\1, \2, acc\3)\3)",
    ),
    Fault("A stays at its first K-block", r"^( +)a_ptrs \+= .*$", r"\1a_ptrs += 0"),
    Fault("B stays at its first K-block", r"^( +)b_ptrs \+= .*$", r"\1b_ptrs += 0"),
    Fault("A stays at its first K-block", r"(a_desc\.load\(\[first_m, )k", r"\g<1>0"),
    Fault("B stays at its first K-block", r"(b_desc\.load\(\[first_n, )k", r"\g<1>0"),
    Fault("B stays at its first K-block", r"tl\.load\(b_ptrs \+ k", "tl.load(b_ptrs"),
    Fault("A stays at its first K-block", r"a_ptr \+ offs_k \+ k\b", "a_ptr + offs_k"),
    # Splits and shares.
    # On copies there is one split.
    Fault(
        "a split is dropped",
        r"for (split|other) in range\(whole, SPLIT_K\)",
        r"for \1 in range(whole, SPLIT_K - 1)",
        unless="copies_ptr",
    ),
    Fault("a split is dropped", r"if SPLIT_K & ([124]):", "if SPLIT_K & 0:"),
    Fault(
        "a split is dropped",
        r"range\(first_other, gl\.program_id\(0\)\)",
        "range(first_other + 1, gl.program_id(0))",
        unless="copies_ptr",
    ),
    Fault("a split is dropped", r"for _ in range\(cluster - 1\):", "for _ in range(cluster - 2):"),
    Fault(
        "a split is added twice",
        r"^( +)(acc|c) \+= (tl\.load\((?:first|partial_ptr) .*|parts\[i\])$",
        r"\1\2 += 2 * \3",
        unless="copies_ptr",
    ),
    Fault(
        "a split is added twice",
        r"accs\[i\] \+ gl\.load\(theirs",
        "accs[i] + 2.0 * gl.load(theirs",
        unless="copies_ptr",
    ),
    Fault(
        "counters are left as they are",
        r"tl\.store\(arrived_ptr \+ tile, 0\)",
        "tl.store(arrived_ptr + tile, 1)",
        unless="copies_ptr",
    ),
    # What is right alone, and with the inputs of the call before.
    Fault(
        "a slot keeps the sum of the call before",
        r"^( +)tl\.store\(partial_ptrs, acc(.*)\)$",
        r"\1kept = tl.load(partial_ptrs\2)\n\1tl.store(partial_ptrs, tl.where(kept == kept, kept, acc)\2)",
    ),
    # Of kernels that let the next one start; where the text has none, it is in CuTe DSL.
    Fault(
        "sums are read before they are stored",
        r"(^ +gdc_launch_dependents\(\)$[\s\S]*^ +)gdc_wait\(\)$",
        r"\1# no wait",
        overlapping=True,
    ),
    Fault(
        "sums are read before they are stored",
        r"^( +)gdc_wait\(\)$",
        r"\1# no wait",
        unless='_symbol("matmul_',
        overlapping=True,
    ),
    Fault("a partial sum lies one too early", r"(\(whole \+ i\)|whole) \* elements", r"\1 * (elements - 1)"),
    Fault(
        "shares overlap",
        r"(last = gl\.minimum\(program \+ 1, SHARERS\) \* shared // SHARERS)",
        r"\1 + 1",
        unless="copies_ptr",
    ),
    Fault("shares overlap", r"\(rank \+ 1\) \* blocks // CLUSTER$", "((rank + 1) * blocks + CLUSTER) // CLUSTER"),
    # Sums in too few bits.
    Fault(
        "cast before the sum",
        r"^( +)(acc = tl\.dot\(.*\))$",
        r"\1\2\n\1acc = acc.to(tl.bfloat16).to(acc.dtype)",
    ),
    Fault(
        "cast before the sum",
        r"part = accs\[i\] \+",
        "part = accs[i].to(gl.bfloat16).to(gl.float32) +",
        unless="copies_ptr",
    ),
    Fault(
        "cast before the sum", r"^( +)(row = tl\.sum\(acc), axis=1\)$", r"\1\2.to(tl.bfloat16).to(tl.float32), axis=1)"
    ),
    # The epilogue.
    Fault("bias is added twice", r"^( +)(\w+ \+= (?:tl|gl)\.load\(bias_ptr.*)$", r"\1\2\n\1\2"),
    Fault("bias is missing", r"^( +)\w+ \+= (?:tl|gl)\.load\(bias_ptr.*$", r"\1# no bias"),
    Fault("bias is the neighbour's", r"(bias_ptr \+ offs_n(?:\[[^\]]*\])?)", r"\1 + 1"),
    Fault("activation is missing", r"^( +)(\w+) = activate\(\2\)$", r"\1# no activation"),
    Fault("activation is another", r"tl\.where\(x < 0\.0, 0\.0, x\)", "tl.where(x < 1.0, 0.0, x)"),
    Fault("scale of A is missing", r"(?:tl|gl)\.load\(scale_a_ptr[^\n]*?\)(?= \*|\)?$| )", "1.0"),
    Fault("scale of A is the neighbour's", r"(scale_a_ptr \+ offs_m(?:\[[^\]]*\])?)", r"\1 + 1"),
    Fault("scale of B is the neighbour's", r"(scale_b_ptr \+ offs_n(?:\[[^\]]*\])?)", r"\1 + 1"),
    # Scales of blocks.
    Fault(
        "scales stay at their first K-block",
        r"(scale_[ab]_ptrs) \+ k // \d+",
        r"\1 + 0",
        unless="groups = tl.minimum(k //",
    ),
    Fault("scales stay at their first K-block", r"(groups = tl\.minimum\()k // \d+", r"\g<1>0"),
    # Those of A, which the copy engine takes.
    Fault("scales stay at their first K-block", r"(mul\.wide\.s32 next, \$\{behind \+ 1\}, )4;", r"\g<1>0;"),
    Fault("a row's scale is its neighbour's", r"(scale_a_ptr \+ )(scale_rows)", r"\1tl.maximum(\2 - 1, 0)"),
    Fault(
        "a row's scale is its neighbour's",
        r"(shared_(?:float|pair)\(place \+ (?:shift \+ )?4 \* \((?:part \* PART|8 \* i) \+ )along\)",
        r"\1(along ^ 2))",
    ),
    Fault(
        "columns have the first block's scale",
        r"(FIRST: gl\.constexpr = )8 \* i //",
        r"\g<1>0 * i //",
        unless="matmul_warp_specialized_swapped",
    ),
    Fault(
        "a K-block's products are added to those before",
        r"setp\.ne\.u32 more, (0|\{number\}), 0;",
        r"setp.eq.u32 more, \1, 0;",
    ),
    # Exponents, and operands that are both packed.
    Fault("exponents stay at their first K-block", r"tl\.multiple_of\(k // 32, BLOCK_SIZE_K // 32\)", "0"),
    Fault(
        "exponents of a step come backwards",
        r"\+ (tl\.arange\(0, BLOCK_SIZE_K // 32\))",
        r"+ (BLOCK_SIZE_K // 32 - 1) - \1",
    ),
    Fault("A's bytes are their neighbours", r"(offs_a = tl\.arange\(0, BLOCK_SIZE_K // 2\))$", r"\1 ^ 1"),
    Fault("K: the last byte of a row is not loaded", r"(offs_a[^<\n]*< tl\.cdiv\(K - k[^,]*, 2\))", r"\1 - 1"),
    Fault("K: A is loaded as if it were not packed", r"(a_desc\.load\(.*\bk) // 2\b", r"\1"),
    # Weights that become numbers in registers.
    Fault("the last K-block is skipped", r"gl\.cdiv\(left, STEP\), RING", "gl.cdiv(left, STEP) - RING, RING"),
    Fault("words of weights stay the same", r"(words = _with\(words, .*), last\)", r"\1, words[0])"),
    Fault(
        "A comes in another order than the weights",
        r"\.permute\(\(0, 1, 4, 5, 3, 6, 2\)\)",
        ".permute((0, 1, 4, 5, 6, 3, 2))",
    ),
    # Tiles and strides.
    Fault(
        "tiles in another order",
        r"return first_m \+ within % rows, within // rows",
        "return within // rows, first_m + within % rows",
    ),
    Fault(
        "groups of tiles are not cut", r"rows = tl\.minimum\(tiles_m - first_m, GROUP_SIZE_M\)", "rows = GROUP_SIZE_M"
    ),
    Fault("stride of C is wrong by one", r"\* ldc\b", "* (ldc + 1)"),
    Fault("stride of A is wrong by one", r"\* lda\b", "* (lda + 1)"),
    Fault("stride of B is wrong by one", r"\* ldb\b", "* (ldb + 1)"),
    Fault("stride of C is wrong by one", r"_leading\(operands\[\"c\"\]\)", '_leading(operands["c"]) + 1'),
    # Operands that are copied first.
    Fault("a copy's last column is not loaded", r"(offs_column\[None, :\] < columns)\)", r"\1 - 1)"),
    Fault("a copy's last row is not stored", r"(mask=\(\(row < rows)\)", r"\1 - 1)"),
    Fault("a copy lies where the other does", r"(to_ptr = .*) \+ first_a$", r"\1"),
    Fault("the first block of a copy is left out", r"block -= blocks_b$", "block -= blocks_b - 1"),
    # Rows in groups, and mixtures of experts.
    Fault("a group's weight is the next one's", r"b_ptr \+= group\.to", "b_ptr += (group + 1).to"),
    Fault("a group's weight is the next one's", r"\[group \* N \+", "[(group + 1) * N +"),
    Fault("a group's weight is the next one's", r"below = group \*", "below = (group + 1) *"),
    Fault("a group's last tile is left out", r"tl\.cdiv\(group_rows, BLOCK_SIZE_M\)", "(group_rows // BLOCK_SIZE_M)"),
    Fault("all tiles of a group are its first", r"tile_in_group \* BLOCK_SIZE_M", "0"),
    Fault(
        "a group's last tile is left out",
        r"here = gl\.cdiv\(last - first, BLOCK_SIZE_M\)",
        "here = (last - first) // BLOCK_SIZE_M",
    ),
    Fault("all tiles of a group are its first", r"first \+ pid_m \* BLOCK_SIZE_M", "first"),
    Fault("the last tile has no program", r">= tiles_m \* tiles_n:", ">= tiles_m * tiles_n - 1:"),
    Fault("a group's last row is not stored", rf"(tl\.store\(.*offs_m{_OFFSET} < last_row)\)", r"\1 - 1)"),
    Fault("a group's last row is not stored", r"mask=\(offs_m < last_m\)", "mask=(offs_m < last_m - 1)"),
    Fault("rows of A are not gathered", r"rows_a = slots", "rows_a = offs_m"),
    Fault("up is a column too early", r"\+ N \* ldb", "+ (N - 1) * ldb"),
    Fault("up is a column too early", r"first_n \+ N,", "first_n + N - 1,"),
    Fault("the gate is open", r"activate\(acc\) \* up", "acc * up"),
    Fault("routing weights are another slot's", r"routing_weights_ptr \+ slots", "routing_weights_ptr + offs_m"),
    Fault("rows are stored by their order", r"slots\[:, None\]\.to", "offs_m[:, None].to"),
    Fault("rows are stored by their order", r"rows = gl\.load\(slots_ptr.*\)$", "rows = offs_m"),
    Fault("a slot is not added", r"tl\.static_range\((\d+)\)", r"tl.static_range(\1 - 1)", unless="reduce_splits"),
    # Kernels in Gluon: the copy engine, barriers, wgmma.
    Fault(
        "a descriptor's box is placed short",
        r"add\.u32 place, place, \{size \* 128\};",
        "add.u32 place, place, {size * 64};",
    ),
    Fault("a descriptor's box is read short", r"add\.u32 line, line, \{size\};", "add.u32 line, line, {size - 8};"),
    Fault("nobody waits for a full buffer", r'("@!done bra again;",)(\n +\*row,)', r'"",\2'),
    Fault("nobody waits for a free buffer", r'("@!done bra again;",)(\n +"@!one bra filled;",)', r'"",\2'),
    Fault(
        "columns are read a block too far",
        r"add\.u32 column, \{buffer\}, \{rows \* 128\};",
        "add.u32 column, {buffer}, {rows * 128 + 1024};",
    ),
    Fault(
        "a step of wgmma takes the next one's columns",
        r"\{128 if columns_turned else 2\}",
        "{256 if columns_turned else 4}",
    ),
    Fault("a buffer's phase is forgotten", r"\(step // STAGES\) & 1, ROWS", "0, ROWS"),
    Fault("a part of C is stored beside its place", r"(first_[mn] \+ PARTS\[i\]\[1\])", r"\1 + 8"),
    Fault("columns of a part are another's", r"range\(OFFSET // 8, \(OFFSET \+ WIDTH\) // 8\)", "range(0, WIDTH // 8)"),
    Fault(
        "a neighbour's columns come first",
        r"beside\(columns\[i\], columns\[i \+ 1\]\)",
        "beside(columns[i + 1], columns[i])",
    ),
)

# Of these no product says anything: sums are right, and added up in another order than their family says. Comparing
# rows to the bit finds them (genkern.profiling.same_bits).
ORDER_FAULTS = (
    Fault(
        "parts of K are added in another order",
        r"(tl\.static_range\((\d+)\):\n +acc \+= parts\[)i\]",
        r"\1(i + 1) % \2]",
    ),
    Fault("K is divided elsewhere", r"(blocks = tl\.cdiv\(tl\.cdiv\(K, BLOCK_SIZE_K\), SPLIT_K\))$", r"\1 + 1"),
)
