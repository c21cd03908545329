"""Sampling fused in Triton: a cell's pixels are read once, averaged in registers, normalised and written as one patch.

No pyramid is built: the bytes moved are those of the cells and of the patches. Two kernels go forward. `pool_dyadic`
averages whole S x S blocks of pixels (S a power of two): rows are read as long vectors, bytes four to a word and summed
as integers, so uint8 sums are exact. `pool_boxes` takes any box, fractions included, by weighted taps whose edges are
computed in float64, as the reference does. `spread_boxes` goes back: a tile of the image collects what every cell over
it hands down, in the order of the cells, so gradients have the same bits every time and need no atomics.

A program owns some rows of one patch. Programs follow the cells in memory, image after image: neighbours run at the
same time and share what they read.
"""

import triton
import triton.language as tl


@triton.jit
def _image_of(cell, offsets, images, per_image, PACKED: tl.constexpr, SPAN: tl.constexpr):
    """The image that owns a cell: equally many each, or as the offsets say."""
    if PACKED:
        index = tl.arange(0, SPAN)
        ends = tl.load(offsets + 1 + index, mask=index < images, other=0x7FFFFFFF)
        image = tl.sum((ends <= cell).to(tl.int32), 0)
    else:
        image = cell // per_image
    return image.to(tl.int64)


@triton.jit
def _store(out, cell, channel: tl.constexpr, row, column, values, LEAF: tl.constexpr):
    place = (channel * LEAF + row[:, None]) * LEAF + column[None, :]
    inside = (row[:, None] < LEAF) & (column[None, :] < LEAF)
    tl.store(out + cell * (3 * LEAF * LEAF) + place, values.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _read(lines, columns, mask):
    if mask is None:
        return tl.load(lines[:, None] + columns[None, :])
    else:
        return tl.load(lines[:, None] + columns[None, :], mask=mask, other=0)


@triton.jit
def _halves(words):
    """Bytes 0 and 2 of each word, and bytes 1 and 3: two sums fit in one integer."""
    return words & 0x00FF00FF, (words >> 8) & 0x00FF00FF


@triton.jit
def _lines_of(total, lines, columns, mask, pitch, COUNT: tl.constexpr, WORDS: tl.constexpr):
    """`total` and the COUNT lines that follow; words keep the sums of their bytes in two halves."""
    for dy in tl.static_range(COUNT):
        units = _read(lines + dy * pitch, columns, mask)
        if WORDS:
            even, odd = _halves(units)
            total = total + even + odd
        else:
            total = total + units.to(total.dtype)
    return total


@triton.jit
def _block_sums(
    plane, columns, top, mask, pitch, S: tl.constexpr, COLS: tl.constexpr, ACROSS: tl.constexpr, WORDS: tl.constexpr
):
    """Sums [rows, COLS] over one S x S block for each patch pixel, ACROSS reads wide."""
    total_type: tl.constexpr = tl.int32 if plane.dtype.element_ty.is_int() else tl.float32
    total = tl.zeros((top.shape[0], COLS * ACROSS), dtype=total_type)
    if S <= 8:
        total = _lines_of(total, plane + top * pitch, columns, mask, pitch, S, WORDS)
    else:
        for dy in range(0, S, 4):
            total = _lines_of(total, plane + (top + dy) * pitch, columns, mask, pitch, 4, WORDS)
    if WORDS:  # S <= 32 lines of at most 510 to a half
        total = (total & 0xFFFF) + (total >> 16)
    return tl.sum(tl.reshape(total.to(tl.float32), (top.shape[0], COLS, ACROSS)), axis=2)


@triton.jit
def _interleaved_sums(image, columns, top, mask, pitch, S: tl.constexpr, COLS: tl.constexpr, ACROSS: tl.constexpr):
    """Sums of red, green and blue over one S x S block where every three words hold four pixels: RGBR GBRG BRGB."""
    zero = tl.zeros((top.shape[0], COLS * ACROSS), dtype=tl.int32)
    even0, even1, even2, odd0, odd1, odd2 = zero, zero, zero, zero, zero, zero
    for dy in range(S):
        lines = image + (top + dy) * pitch
        more_even0, more_odd0 = _halves(_read(lines, columns, mask))
        more_even1, more_odd1 = _halves(_read(lines + 1, columns, mask))
        more_even2, more_odd2 = _halves(_read(lines + 2, columns, mask))
        even0, odd0 = even0 + more_even0, odd0 + more_odd0
        even1, odd1 = even1 + more_even1, odd1 + more_odd1
        even2, odd2 = even2 + more_even2, odd2 + more_odd2
    red = (even0 & 0xFFFF) + (odd0 >> 16) + (even1 >> 16) + (odd2 & 0xFFFF)
    green = (odd0 & 0xFFFF) + (even1 & 0xFFFF) + (odd1 >> 16) + (even2 >> 16)
    blue = (even0 >> 16) + (odd1 & 0xFFFF) + (even2 & 0xFFFF) + (odd2 >> 16)
    shape: tl.constexpr = (top.shape[0], COLS, ACROSS)
    return (
        tl.sum(tl.reshape(red.to(tl.float32), shape), axis=2),
        tl.sum(tl.reshape(green.to(tl.float32), shape), axis=2),
        tl.sum(tl.reshape(blue.to(tl.float32), shape), axis=2),
    )


@triton.jit
def _pool_blocks(
    image, out, cell, x, y, width, height, first, blocks, plane_pitch, pitch, scale, shift,
    S: tl.constexpr, BIG: tl.constexpr, ROWS: tl.constexpr, PIXEL: tl.constexpr, LEAF: tl.constexpr,
    COLS: tl.constexpr, WORDS: tl.constexpr, ALIGN: tl.constexpr, REGISTERS: tl.constexpr,
):  # fmt: skip
    """Rows `first`.. of one patch whose pixels are S x S blocks (`BIG`: blocks x blocks of those)."""
    AS_WORDS: tl.constexpr = WORDS and S >= 4
    INTERLEAVED: tl.constexpr = WORDS and PIXEL == 3
    UNIT: tl.constexpr = 4 if AS_WORDS else 1  # pixels to a read
    ACROSS: tl.constexpr = S // UNIT  # reads across a block
    GROUP: tl.constexpr = max(1, min(ROWS, REGISTERS // (COLS * ACROSS)))  # rows at a time
    if AS_WORDS:
        image = image.to(tl.pointer_type(tl.int32))
    # Multiples of known numbers stay visible to the compiler, which then reads 16 bytes at a time.
    pitch = pitch * (ALIGN // UNIT)
    # Cells to the left and above. Whatever the box is, reads stay inside the image; divisors are known numbers, since a
    # division at run time would take as long as reading a small cell.
    cell_side = LEAF * S * blocks
    column = tl.minimum(tl.maximum(x // cell_side, 0), width // cell_side - 1)
    line = tl.minimum(tl.maximum(y // cell_side, 0), height // cell_side - 1)
    unit = tl.arange(0, COLS * ACROSS)
    inverse = 1.0 / (S * S * blocks * blocks)
    for group in range(ROWS // GROUP):
        row = first + group * GROUP + tl.arange(0, GROUP)
        mask = None
        if LEAF != COLS:
            mask = (row[:, None] < LEAF) & (unit[None, :] < LEAF * ACROSS)
        red = tl.zeros((GROUP, COLS), dtype=tl.float32)
        green, blue = red, red
        for block in range(blocks * blocks):
            within = (unit // ACROSS) * (ACROSS * blocks) + unit % ACROSS + (block % blocks) * ACROSS if BIG else unit
            columns = (column * (LEAF * ACROSS) * blocks + within) * PIXEL
            top = line * LEAF * S * blocks + (row * blocks + block // blocks) * S
            if AS_WORDS and INTERLEAVED:
                more_red, more_green, more_blue = _interleaved_sums(image, columns, top, mask, pitch, S, COLS, ACROSS)
            else:
                plane = 1 if INTERLEAVED else plane_pitch * (ALIGN // UNIT)
                more_red = _block_sums(image, columns, top, mask, pitch, S, COLS, ACROSS, AS_WORDS)
                more_green = _block_sums(image + plane, columns, top, mask, pitch, S, COLS, ACROSS, AS_WORDS)
                more_blue = _block_sums(image + 2 * plane, columns, top, mask, pitch, S, COLS, ACROSS, AS_WORDS)
            red, green, blue = red + more_red, green + more_green, blue + more_blue
        _store(out, cell, 0, row, tl.arange(0, COLS), red * (inverse * scale[0]) + shift[0], LEAF)
        _store(out, cell, 1, row, tl.arange(0, COLS), green * (inverse * scale[1]) + shift[1], LEAF)
        _store(out, cell, 2, row, tl.arange(0, COLS), blue * (inverse * scale[2]) + shift[2], LEAF)


@triton.jit(do_not_specialize=["batch", "per_image", "width", "height", "image_pitch", "plane_pitch", "pitch"])
def pool_dyadic(
    images, boxes, offsets, out, batch, per_image, width, height, image_pitch, plane_pitch, pitch, scale, shift,
    LEAF: tl.constexpr, COLS: tl.constexpr, PARTS: tl.constexpr, PIXEL: tl.constexpr, WORDS: tl.constexpr,
    ALIGN: tl.constexpr, PACKED: tl.constexpr, SPAN: tl.constexpr, REGISTERS: tl.constexpr,
):  # fmt: skip
    """Patches of cells that are whole blocks of pixels at multiples of their own side.

    Pitches of lines, planes and images are in multiples of `ALIGN` elements, to which the images are aligned.
    """
    program = tl.program_id(0)
    image_index = _image_of(program // PARTS, offsets, batch, per_image, PACKED, SPAN)
    cell = (program // PARTS).to(tl.int64)
    x0, y0 = tl.load(boxes + cell * 4), tl.load(boxes + cell * 4 + 1)
    x1 = tl.load(boxes + cell * 4 + 2)
    side = tl.minimum(tl.maximum((x1 - x0 + 0.5).to(tl.int32) // LEAF, 1), tl.minimum(width, height) // LEAF)
    x, y = (x0 + 0.5).to(tl.int32), (y0 + 0.5).to(tl.int32)
    image = images + image_index * image_pitch * ALIGN
    ROWS: tl.constexpr = COLS // PARTS
    first = (program % PARTS) * ROWS
    for level in tl.static_range(5):
        if (side >= (1 << level)) & (side < (2 << level)):
            _pool_blocks(
                image, out, cell, x, y, width, height, first, 1, plane_pitch, pitch, scale, shift,
                1 << level, False, ROWS, PIXEL, LEAF, COLS, WORDS, ALIGN, REGISTERS,
            )  # fmt: skip
    if side >= 32:
        _pool_blocks(
            image, out, cell, x, y, width, height, first, side // 32, plane_pitch, pitch, scale, shift,
            32, True, ROWS, PIXEL, LEAF, COLS, WORDS, ALIGN, REGISTERS,
        )  # fmt: skip


@triton.jit
def _number(byte):
    """An integer in 0..255 as float32, by its bits: converting takes four times as long."""
    return (byte | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def _value(pixel):
    if pixel.dtype.is_int():
        return _number(pixel.to(tl.int32))
    else:
        return pixel.to(tl.float32)


@triton.jit
def _footprint(low, high, index, extent, LEAF: tl.constexpr):
    """Patch pixels along one axis: the first and last image pixel under each, and how far it reaches to either side of
    the edge behind that first pixel.

    float64 up to there: wide images lose no digits, and a patch pixel far smaller than a pixel is still cut exactly.
    """
    step = (high - low) / LEAF
    start, stop = low + step * index.to(tl.float64), low + step * (index + 1).to(tl.float64)
    first = tl.minimum(tl.maximum(tl.floor(start), 0.0), extent - 1.0)
    last = tl.minimum(tl.maximum(tl.ceil(stop) - 1.0, first), extent - 1.0)
    edge = first + 1.0
    return first.to(tl.int32), last.to(tl.int32), (edge - start).to(tl.float32), (stop - edge).to(tl.float32)


@triton.jit
def _overlap(reach, step, is_border):
    """How much of a patch pixel of width `step` lies over one pixel, into which it reaches so far.

    The least of lengths and not a difference of edges: a patch pixel inside one pixel weighs exactly `step`. Border
    pixels own all outside and have no end there.
    """
    return tl.maximum(tl.minimum(tl.minimum(step, tl.where(is_border, float("inf"), 1.0)), reach), 0.0)


@triton.jit
def _weight(pixel, first, before, after, step, extent):
    """The overlap with `pixel`, from the footprint along that axis: what begins in the first pixel reaches `before` its
    end into it, and `after` that into those that follow."""
    next = pixel - first
    reach = tl.where(next > 0, after + (1 - next), before + next)
    reach = tl.where((next == 0) & (pixel == extent - 1), float("inf"), reach)
    over = _overlap(reach, step, (pixel == 0) | (pixel == extent - 1))
    return tl.where(pixel < extent, over, 0.0)


@triton.jit(do_not_specialize=["batch", "per_image", "width", "height", "image_pitch", "plane_pitch", "pitch"])
def pool_boxes(
    images, boxes, offsets, out, batch, per_image, width, height, image_pitch, plane_pitch, pitch, scale, shift,
    LEAF: tl.constexpr, COLS: tl.constexpr, PARTS: tl.constexpr, PIXEL: tl.constexpr, WORDS: tl.constexpr,
    PACKED: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Patches of any axis-aligned boxes; outside the image its border goes on. Pitches are in words or elements."""
    program = tl.program_id(0)
    image_index = _image_of(program // PARTS, offsets, batch, per_image, PACKED, SPAN)
    cell = (program // PARTS).to(tl.int64)
    x0, y0 = tl.load(boxes + cell * 4).to(tl.float64), tl.load(boxes + cell * 4 + 1).to(tl.float64)
    x1, y1 = tl.load(boxes + cell * 4 + 2).to(tl.float64), tl.load(boxes + cell * 4 + 3).to(tl.float64)
    ROWS: tl.constexpr = COLS // PARTS
    UNIT: tl.constexpr = 4 if WORDS else 1  # elements to a unit of the pitches
    row = (program % PARTS) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLS)
    left, right, before_x, after_x = _footprint(x0, x1, column, width, LEAF)
    top, bottom, before_y, after_y = _footprint(y0, y1, row, height, LEAF)
    step_x, step_y = ((x1 - x0) / LEAF).to(tl.float32), ((y1 - y0) / LEAF).to(tl.float32)
    lines = tl.max(tl.where(row < LEAF, bottom - top, 0), 0) + 1
    image = images + image_index * image_pitch * UNIT
    red = tl.zeros((ROWS, COLS), dtype=tl.float32)
    green, blue = red, red
    if WORDS and step_x >= 3.0:  # narrow patch pixels would use one or two bytes of a word
        words = image.to(tl.pointer_type(tl.int32))
        first = left // 4
        reads = tl.max(tl.where(column < LEAF, right // 4 - first, 0), 0) + 1
        for step in range(reads):
            word = first + step
            under = tl.minimum(word, (width - 1) // 4)
            for dy in range(lines):
                line = top + dy
                weight_y = _weight(line, top, before_y, after_y, step_y, height)[:, None]
                place = (tl.minimum(line, height - 1) * pitch)[:, None] + under[None, :]
                reds, greens = tl.load(words + place), tl.load(words + plane_pitch + place)
                blues = tl.load(words + 2 * plane_pitch + place)
                line_red = tl.zeros((ROWS, COLS), dtype=tl.float32)
                line_green, line_blue = line_red, line_red
                for byte in tl.static_range(4):
                    pixel = word * 4 + byte
                    weight_x = _weight(pixel, left, before_x, after_x, step_x, width)[None, :]
                    line_red += weight_x * _number((reds >> (8 * byte)) & 0xFF)
                    line_green += weight_x * _number((greens >> (8 * byte)) & 0xFF)
                    line_blue += weight_x * _number((blues >> (8 * byte)) & 0xFF)
                red, green, blue = red + weight_y * line_red, green + weight_y * line_green, blue + weight_y * line_blue
    else:
        reads = tl.max(tl.where(column < LEAF, right - left, 0), 0) + 1
        for dy in range(lines):
            line = top + dy
            weight_y = _weight(line, top, before_y, after_y, step_y, height)[:, None]
            under_y = (tl.minimum(line, height - 1) * pitch * UNIT)[:, None]
            line_red = tl.zeros((ROWS, COLS), dtype=tl.float32)
            line_green, line_blue = line_red, line_red
            for dx in range(reads):
                pixel = left + dx
                weight_x = _weight(pixel, left, before_x, after_x, step_x, width)[None, :]
                place = under_y + (tl.minimum(pixel, width - 1) * PIXEL)[None, :]
                line_red += weight_x * _value(tl.load(image + place))
                line_green += weight_x * _value(tl.load(image + plane_pitch * UNIT + place))
                line_blue += weight_x * _value(tl.load(image + 2 * plane_pitch * UNIT + place))
            red, green, blue = red + weight_y * line_red, green + weight_y * line_green, blue + weight_y * line_blue
    inverse = (LEAF * LEAF / ((x1 - x0) * (y1 - y0))).to(tl.float32)
    _store(out, cell, 0, row, column, red * (inverse * scale[0]) + shift[0], LEAF)
    _store(out, cell, 1, row, column, green * (inverse * scale[1]) + shift[1], LEAF)
    _store(out, cell, 2, row, column, blue * (inverse * scale[2]) + shift[2], LEAF)


@triton.jit
def _shares(low, high, origin, extent, patch, pixel, LEAF: tl.constexpr):
    """[patch pixels, image pixels]: which share of each patch pixel lies over each pixel of a tile along one axis.

    The border pixels own all that lies outside. `origin` is the tile's first pixel, `extent` the image's side.
    """
    step = (high - low) / LEAF
    start = (low + step * patch.to(tl.float64))[:, None]
    stop = (low + step * (patch + 1).to(tl.float64))[:, None]
    at = origin + pixel
    is_first, is_last = (at == 0)[None, :], (at == extent - 1)[None, :]
    before = tl.where(is_last, float("inf"), ((at + 1)[None, :] - start).to(tl.float32))
    after = tl.where(is_first, float("inf"), (stop - at[None, :]).to(tl.float32))
    width = step.to(tl.float32)
    over = _overlap(tl.minimum(before, after), width, is_first | is_last)
    real = (patch[:, None] < LEAF) & (at < extent)[None, :]
    return tl.where(real, over / width, 0.0)


@triton.jit(do_not_specialize=["per_image", "width", "height"])
def spread_boxes(
    gradient, boxes, offsets, out, per_image, width, height, scale,
    LEAF: tl.constexpr, COLS: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """The gradient [B, 3, H, W] of the pixels in one tile and channel: all cells over it, one after the other."""
    tile, image_index = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channel = tl.program_id(2)
    tiles_across = (width + TILE - 1) // TILE
    left, top = (tile % tiles_across) * TILE, (tile // tiles_across) * TILE
    pixel, patch = tl.arange(0, TILE), tl.arange(0, COLS)
    if PACKED:
        begin = tl.load(offsets + image_index).to(tl.int64)
        count = tl.load(offsets + image_index + 1) - begin.to(tl.int32)
    else:
        begin, count = image_index * per_image, per_image
    own_scale = tl.where(channel == 0, scale[0], tl.where(channel == 1, scale[1], scale[2]))
    # The border pixels own what lies outside, so the outermost tiles reach out for ever.
    reach_left = tl.where(left == 0, float("-inf"), left.to(tl.float32))
    reach_top = tl.where(top == 0, float("-inf"), top.to(tl.float32))
    reach_right = tl.where(left + TILE >= width, float("inf"), (left + TILE).to(tl.float32))
    reach_bottom = tl.where(top + TILE >= height, float("inf"), (top + TILE).to(tl.float32))
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    index = tl.arange(0, CHUNK)
    for start in range(0, count, CHUNK):
        some = boxes + (begin + start + index) * 4
        real = start + index < count
        bx0, by0 = tl.load(some, mask=real, other=0.0), tl.load(some + 1, mask=real, other=0.0)
        bx1, by1 = tl.load(some + 2, mask=real, other=0.0), tl.load(some + 3, mask=real, other=0.0)
        over = real & (bx0 < reach_right) & (bx1 > reach_left) & (by0 < reach_bottom) & (by1 > reach_top)
        following = tl.min(tl.where(over, index, CHUNK), 0)
        while following < CHUNK:
            cell = begin + start + following
            x0, y0 = tl.load(boxes + cell * 4).to(tl.float64), tl.load(boxes + cell * 4 + 1).to(tl.float64)
            x1, y1 = tl.load(boxes + cell * 4 + 2).to(tl.float64), tl.load(boxes + cell * 4 + 3).to(tl.float64)
            across = _shares(x0, x1, left, width, patch, pixel, LEAF)  # [COLS, TILE]
            down = _shares(y0, y1, top, height, patch, pixel, LEAF)
            place = cell * (3 * LEAF * LEAF) + (channel * LEAF + patch[:, None]) * LEAF + patch[None, :]
            inside = (patch[:, None] < LEAF) & (patch[None, :] < LEAF)
            own = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)  # [COLS, COLS]
            rows = tl.dot(tl.trans(down), own, input_precision="ieee")
            total += tl.dot(rows, across, input_precision="ieee")
            following = tl.min(tl.where(over & (index > following), index, CHUNK), 0)
    place = ((image_index * 3 + channel) * height + top + pixel[:, None]) * width + left + pixel[None, :]
    inside = (top + pixel[:, None] < height) & (left + pixel[None, :] < width)
    tl.store(out + place, (total * own_scale).to(out.dtype.element_ty), mask=inside)
