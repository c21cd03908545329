// Sampling with the texture units: a batch of images as one layered, mipmapped CUDA array, filtered in hardware.
//
// Three kernels: `fill` writes images and mips, `place` turns boxes into texture coordinates, `sample` reads. Plain
// extern "C" functions at the end, called from Python (texture_arrays.py), return a cudaError_t.
//
// Mips are those of kernels/resample.py `halve`: level l has ceil(w / 2^l) texels, each the mean of the up to four
// below that exist. CUDA's level l has floor(W / 2^l), so W is w rounded up to a multiple of 2^depth; a coordinate
// x / W then means the same place at every level. Of the texels to spare the first repeats the last one in use, as the
// border of the image goes on in the definition; `place` keeps every read within it, and the rest is never written.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace {

constexpr int TILE = 64;        // a block of `fill` owns 64 x 64 texels of its first level
constexpr int REACH = 6;        // and makes the 6 levels above, up to the one that has a single texel of them
constexpr int WARP_ROWS = 8;    // a warp owns 32 x 8 of them
constexpr int FILL_WARPS = TILE / 32 * TILE / WARP_ROWS;
constexpr int MAX_LEVELS = 16;  // of 32768 pixels, the largest side CUDA has
constexpr unsigned WHOLE_WARP = 0xffffffffu;
constexpr double PI = 3.14159265358979323846;

enum Image { UINT8, FLOAT16, BFLOAT16, FLOAT32 };   // element types, of images and of patches
enum Filter { POINT, BILINEAR, TRILINEAR };         // dyadic cells; the definition; hardware at its best

__host__ __device__ int ceil_shift(int n, int level) { return (n + (1 << level) - 1) >> level; }

// ------------------------------------------------------------------------------------------------------ images to mips

__device__ float3 sum(float3 a, float3 b) { return make_float3(a.x + b.x, a.y + b.y, a.z + b.z); }

__device__ float as_float(unsigned char v) { return v; }
__device__ float as_float(float v) { return v; }
__device__ float as_float(__half v) { return __half2float(v); }
__device__ float as_float(__nv_bfloat16 v) { return __bfloat162float(v); }

// The images as they are, any strides (in elements).
template <typename T>
struct Pixels {
    static constexpr bool fits_bytes = sizeof(T) == 1;
    const T *data;
    long long layer, channel, row, column;

    __device__ float3 read(int l, int x, int y) const {
        const T *at = data + l * layer + y * row + x * column;
        return make_float3(as_float(at[0]), as_float(at[channel]), as_float(at[2 * channel]));
    }
};

// The last level of one pass, in float32, where the next begins: no level is made from rounded texels.
struct Means {
    static constexpr bool fits_bytes = true;
    const float4 *data;
    int2 size;

    __device__ float3 read(int l, int x, int y) const {
        const float4 v = data[(static_cast<long long>(l) * size.y + y) * size.x + x];
        return make_float3(v.x, v.y, v.z);
    }
};

// A texel from the sum of its pixels: value * scale, rounded to nearest.
struct Bytes {
    using Raw = unsigned;
    // 2^23 + v is a float whose last byte is v, rounded, and whose next two are 0.
    static __device__ unsigned round(float v, float scale) { return __float_as_uint(fmaf(v, scale, 8388608.0f)); }
    static __device__ Raw pack(float3 v, float scale) {
        const unsigned red_green = __byte_perm(round(v.x, scale), round(v.y, scale), 0x0040);
        return __byte_perm(red_green, round(v.z, scale), 0x5410);
    }
};

struct Halves {
    using Raw = uint2;
    static __device__ Raw pack(float3 v, float scale) {
        return make_uint2(pair(v.x * scale, v.y * scale), pair(v.z * scale, 0));
    }
    static __device__ unsigned pair(float low, float high) {
        return __half_as_ushort(__float2half_rn(low)) | __half_as_ushort(__float2half_rn(high)) << 16;
    }
};

// The levels of one pass; 0 is its first, of `size` texels in use and `padded` in all.
struct Pass {
    cudaSurfaceObject_t surface[REACH + 1];
    int2 size, padded;
    int last;       // level to write
    float4 *means;  // [layers, tiles] of level REACH, or null
};

__host__ __device__ constexpr float texels_in(int level) { return static_cast<float>(1 << 2 * level); }

// INSIDE: nothing here is near an end of the image.
template <bool INSIDE, typename Texel>
__device__ void put(const Pass &pass, int level, int layer, int x, int y, float3 sum) {
    if (level > pass.last) return;
    const typename Texel::Raw raw = Texel::pack(sum, 1 / texels_in(level));
    const int bytes = sizeof(raw);
    if (INSIDE) {
        surf2DLayeredwrite(raw, pass.surface[level], x * bytes, y, layer);
        return;
    }
    const int right = ceil_shift(pass.size.x, level) - 1, below = ceil_shift(pass.size.y, level) - 1;
    if (x > right || y > below) return;
    const int x_end = x < right ? x : min(x + 1, (pass.padded.x >> level) - 1);
    const int y_end = y < below ? y : min(y + 1, (pass.padded.y >> level) - 1);
#pragma unroll 1
    for (int j = y; j <= y_end; ++j)
#pragma unroll 1
        for (int i = x; i <= x_end; ++i) surf2DLayeredwrite(raw, pass.surface[level], i * bytes, j, layer);
}

// A texel carries the sum of its pixels; where one of the two it is made of does not exist, the other counts twice.
// One level up in registers: rows are halved within a thread, columns between lanes; 2^LEVEL of them end up the same.
template <int LEVEL, bool INSIDE, typename Texel>
__device__ void halve(const Pass &pass, int layer, int x, int y, const float3 (&below)[WARP_ROWS >> (LEVEL - 1)],
                      float3 (&above)[WARP_ROWS >> LEVEL]) {
    constexpr int group = 1 << LEVEL;
    const int lane = threadIdx.x, column = x >> LEVEL;
    const bool no_right = !INSIDE && column * 2 + 1 >= ceil_shift(pass.size.x, LEVEL - 1);
#pragma unroll
    for (int j = 0; j < WARP_ROWS >> LEVEL; ++j) {
        const int row = (y >> LEVEL) + j;
        const bool no_lower = !INSIDE && row * 2 + 1 >= ceil_shift(pass.size.y, LEVEL - 1);
        const float3 own = sum(below[2 * j], no_lower ? below[2 * j] : below[2 * j + 1]);
        const float3 other = make_float3(__shfl_xor_sync(WHOLE_WARP, own.x, group >> 1),
                                         __shfl_xor_sync(WHOLE_WARP, own.y, group >> 1),
                                         __shfl_xor_sync(WHOLE_WARP, own.z, group >> 1));
        // Of a pair without its right texel the right lane now holds nothing of use, and is not asked again.
        above[j] = sum(own, no_right ? own : other);
        if (lane % group == j % group) put<INSIDE, Texel>(pass, LEVEL, layer, column, row, above[j]);
    }
}

template <bool INSIDE, typename Texel, typename Source>
__device__ void fill_tile(const Source &source, const Pass &pass, float3 (*tile)[TILE >> 3]) {
    const int lane = threadIdx.x, warp = threadIdx.y, layer = blockIdx.z;
    const int x = blockIdx.x * TILE + warp % 2 * 32 + lane, y = blockIdx.y * TILE + warp / 2 * WARP_ROWS;

    float3 pixels[WARP_ROWS], fours[WARP_ROWS / 2], sixteens[WARP_ROWS / 4], top[WARP_ROWS / 8];
#pragma unroll
    for (int j = 0; j < WARP_ROWS; ++j)
        pixels[j] = INSIDE ? source.read(layer, x, y + j)
                           : source.read(layer, min(x, pass.size.x - 1), min(y + j, pass.size.y - 1));
#pragma unroll
    for (int j = 0; j < WARP_ROWS; ++j) put<INSIDE, Texel>(pass, 0, layer, x, y + j, pixels[j]);
    halve<1, INSIDE, Texel>(pass, layer, x, y, pixels, fours);
    halve<2, INSIDE, Texel>(pass, layer, x, y, fours, sixteens);
    halve<3, INSIDE, Texel>(pass, layer, x, y, sixteens, top);

    if (pass.last <= 3) return;  // the same for all threads; levels 4 to 6 are made in shared memory
    if (lane % 8 == 0) tile[warp / 2][warp % 2 * 4 + lane / 8] = top[0];
    const int thread = warp * 32 + lane;
#pragma unroll
    for (int level = 4; level <= REACH; ++level) {
        const int side = TILE >> level, i = thread % side, j = thread / side;
        const int column = blockIdx.x * side + i, row = blockIdx.y * side + j;
        float3 value = make_float3(0, 0, 0);
        __syncthreads();
        if (j < side) {
            const int right = 2 * i + (INSIDE || column * 2 + 1 < ceil_shift(pass.size.x, level - 1));
            const int lower = 2 * j + (INSIDE || row * 2 + 1 < ceil_shift(pass.size.y, level - 1));
            value = sum(sum(tile[2 * j][2 * i], tile[lower][2 * i]), sum(tile[2 * j][right], tile[lower][right]));
            put<INSIDE, Texel>(pass, level, layer, column, row, value);
        }
        __syncthreads();
        if (j < side) tile[j][i] = value;
    }
    if (thread == 0 && pass.means) {
        const float3 total = tile[0][0];
        const float scale = 1 / texels_in(REACH);
        pass.means[(static_cast<long long>(layer) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] =
            make_float4(total.x * scale, total.y * scale, total.z * scale, 0);
    }
}

// Whether no texel of a tile is the last of its level, or no level has texels to spare.
__device__ bool away_from_end(int tile, int size, int padded) {
    const int end = (tile + 1) * TILE;
    return end < size || (end == size && size == padded);
}

template <typename Texel, typename Source>
__global__ void __launch_bounds__(32 * FILL_WARPS, 2)
    fill(const __grid_constant__ Source source, const __grid_constant__ Pass pass) {
    __shared__ float3 tile[TILE >> 3][TILE >> 3];
    if (away_from_end(blockIdx.x, pass.size.x, pass.padded.x) && away_from_end(blockIdx.y, pass.size.y, pass.padded.y))
        fill_tile<true, Texel>(source, pass, tile);
    else
        fill_tile<false, Texel>(source, pass, tile);
}

// ------------------------------------------------------------------------------------------------ boxes to coordinates

// Where the reads of a cell lie, in texture coordinates. The centre has the digits of two floats: with one, an image of
// 16384 pixels would be known to 1/1024 of a pixel before anything is added.
struct __align__(16) Cell {
    float2 centre, rest;   // centre + rest
    float2 across, down;   // from one read to the next
    float2 limit;          // no read lies beyond
    float lod;
    int layer;             // negative: not one of the images at hand
};

struct Placing {
    const int *offsets;     // cells of image i are offsets[i] : offsets[i + 1]; null: `cells / images` of each
    int cells, images, first_image, layers;
    int2 size, padded;
    int leaf, reads, depth;
    Filter filter;
};

__device__ int image_of(const Placing &p, int cell) {
    if (!p.offsets) return cell / (p.cells / p.images);
    int low = 0, high = p.images - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (p.offsets[middle + 1] > cell)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

template <typename T>
__global__ void __launch_bounds__(128) place(const T *boxes, const T *angle, Cell *cells, const Placing p) {
    const int cell = blockIdx.x * blockDim.x + threadIdx.x;
    if (cell >= p.cells) return;
    const double x0 = boxes[4ll * cell], y0 = boxes[4ll * cell + 1];
    const double width = boxes[4ll * cell + 2] - x0, height = boxes[4ll * cell + 3] - y0;
    const double side = static_cast<double>(p.leaf) * p.reads, spacing = sqrt(width * height) / side;
    double lod = ilogb(spacing);  // floor(log2(spacing)), exactly
    if (p.filter == POINT) lod = rint(log2(width / p.leaf));
    if (p.filter == TRILINEAR) lod = log2(spacing);
    lod = fmin(fmax(lod, 0.0), static_cast<double>(p.depth));
    const double turns = angle ? angle[cell] / PI : 0;
    const double sine = sinpi(turns), cosine = cospi(turns);  // unlike sin and cos without a slow path for large angles

    const int finest = static_cast<int>(lod), layer = image_of(p, cell) - p.first_image;
    const double to_x = 1.0 / p.padded.x, to_y = 1.0 / p.padded.y;
    const double x = (x0 + width / 2) * to_x, y = (y0 + height / 2) * to_y;
    Cell placed;
    placed.centre = make_float2(static_cast<float>(x), static_cast<float>(y));
    placed.rest = make_float2(static_cast<float>(x - placed.centre.x), static_cast<float>(y - placed.centre.y));
    placed.across = make_float2(static_cast<float>(width / side * cosine * to_x),
                                static_cast<float>(width / side * sine * to_y));
    placed.down = make_float2(static_cast<float>(-height / side * sine * to_x),
                              static_cast<float>(height / side * cosine * to_y));
    // The far edge of the last texel; of the next mip that is its last texel's middle or beyond.
    placed.limit = make_float2(static_cast<float>((ceil_shift(p.size.x, finest) << finest) * to_x),
                               static_cast<float>((ceil_shift(p.size.y, finest) << finest) * to_y));
    placed.lod = static_cast<float>(lod);
    placed.layer = layer < p.layers ? layer : -1;
    cells[cell] = placed;
}

// ---------------------------------------------------------------------------------------------- coordinates to patches

struct Affine {
    float divisor, scale[3], shift[3];  // value / divisor * scale + shift
};

__device__ void write(float *to, float v) { *to = v; }
__device__ void write(__half *to, float v) { *to = __float2half_rn(v); }
__device__ void write(__nv_bfloat16 *to, float v) { *to = __float2bfloat16_rn(v); }

template <typename Texel>
__device__ float3 read(cudaTextureObject_t texture, float x, float y, int layer, float lod) {
    const Texel v = tex2DLayeredLod<Texel>(texture, x, y, layer, lod);
    return make_float3(v.x, v.y, v.z);
}

// A block to a cell, a thread to a patch pixel. READS a side, 0: as many as `reads` says.
template <typename Texel, int READS, typename Patch>
__global__ void __launch_bounds__(256)
    sample(cudaTextureObject_t texture, const Cell *cells, Patch *patches, int leaf, int reads, const Affine affine) {
    if (READS) reads = READS;
    const Cell cell = cells[blockIdx.x];
    if (cell.layer < 0) return;
    const float middle = 0.5f * (leaf * reads - 1);
    Patch *patch = patches + 3ll * leaf * leaf * blockIdx.x;
    for (int pixel = threadIdx.x; pixel < leaf * leaf; pixel += blockDim.x) {
        const int row = pixel / leaf, column = pixel - row * leaf;
        float3 sum = make_float3(0, 0, 0);
#pragma unroll
        for (int b = 0; b < reads; ++b)
#pragma unroll
            for (int a = 0; a < reads; ++a) {
                const float i = column * reads + a - middle, j = row * reads + b - middle;
                const float x = cell.centre.x + (cell.rest.x + fmaf(j, cell.down.x, i * cell.across.x));
                const float y = cell.centre.y + (cell.rest.y + fmaf(j, cell.down.y, i * cell.across.y));
                const float3 v = read<Texel>(texture, fminf(fmaxf(x, 0.0f), cell.limit.x),
                                             fminf(fmaxf(y, 0.0f), cell.limit.y), cell.layer, cell.lod);
                sum = make_float3(sum.x + v.x, sum.y + v.y, sum.z + v.z);
            }
        const float values[3] = {sum.x, sum.y, sum.z};
#pragma unroll
        for (int c = 0; c < 3; ++c)
            write(patch + c * leaf * leaf + pixel,
                  fmaf(__fdiv_rn(values[c], affine.divisor), affine.scale[c], affine.shift[c]));
    }
}

// ---------------------------------------------------------------------------------------------------------------- host

struct Chain {
    int device, layers, levels, surfaces, textures;  // the last two: how many exist
    bool halves;
    int2 padded;
    cudaMipmappedArray_t array;
    cudaSurfaceObject_t surface[MAX_LEVELS];
    cudaTextureObject_t texture[3];  // by Filter
};

#define RETURN_IF_ERROR(call)                             \
    do {                                                  \
        const cudaError_t code = (call);                  \
        if (code != cudaSuccess) return code;             \
    } while (0)

template <typename T>
struct Exactly {
    using Type = T;
};

// The arguments become what the kernel's parameters are, since it gets them as bytes.
template <typename... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
                   typename Exactly<Parameters>::Type... arguments) {
    void *pointers[] = {const_cast<void *>(static_cast<const void *>(&arguments))...};
    return cudaLaunchKernel(kernel, grid, block, pointers, 0, stream);
}

cudaError_t make_texture(Chain *chain, Filter filter) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeMipmappedArray;
    resource.res.mipmap.mipmap = chain->array;
    cudaTextureDesc description = {};
    for (auto &mode : description.addressMode) mode = cudaAddressModeClamp;
    description.filterMode = filter == POINT ? cudaFilterModePoint : cudaFilterModeLinear;
    description.mipmapFilterMode = filter == TRILINEAR ? cudaFilterModeLinear : cudaFilterModePoint;
    // Filtered bytes come as value / 255; single bytes come as they are: nothing is left to the hardware to round.
    description.readMode = chain->halves || filter == POINT ? cudaReadModeElementType : cudaReadModeNormalizedFloat;
    description.normalizedCoords = 1;
    description.maxMipmapLevelClamp = static_cast<float>(chain->levels - 1);
    description.disableTrilinearOptimization = 1;
    return cudaCreateTextureObject(&chain->texture[filter], &resource, &description, nullptr);
}

cudaError_t build(Chain *chain) {
    const int bits = chain->halves ? 16 : 8;
    const cudaChannelFormatKind kind = chain->halves ? cudaChannelFormatKindFloat : cudaChannelFormatKindUnsigned;
    const cudaChannelFormatDesc texel = cudaCreateChannelDesc(bits, bits, bits, bits, kind);
    const cudaExtent extent = make_cudaExtent(chain->padded.x, chain->padded.y, chain->layers);
    RETURN_IF_ERROR(cudaMallocMipmappedArray(&chain->array, &texel, extent, chain->levels,
                                             cudaArrayLayered | cudaArraySurfaceLoadStore));
    for (int level = 0; level < chain->levels; ++level, ++chain->surfaces) {
        cudaResourceDesc resource = {};
        resource.resType = cudaResourceTypeArray;
        RETURN_IF_ERROR(cudaGetMipmappedArrayLevel(&resource.res.array.array, chain->array, level));
        RETURN_IF_ERROR(cudaCreateSurfaceObject(&chain->surface[level], &resource));
    }
    for (; chain->textures < 3; ++chain->textures)
        RETURN_IF_ERROR(make_texture(chain, static_cast<Filter>(chain->textures)));
    return cudaSuccess;
}

cudaError_t destroy(Chain *chain) {
    RETURN_IF_ERROR(cudaSetDevice(chain->device));
    while (chain->textures > 0) RETURN_IF_ERROR(cudaDestroyTextureObject(chain->texture[--chain->textures]));
    while (chain->surfaces > 0) RETURN_IF_ERROR(cudaDestroySurfaceObject(chain->surface[--chain->surfaces]));
    if (chain->array) RETURN_IF_ERROR(cudaFreeMipmappedArray(chain->array));
    delete chain;
    return cudaSuccess;
}

// One pass for every six levels.
template <typename Source>
cudaError_t fill_pass(const Chain *chain, Source source, int2 size, int base, float4 *means, int layers,
                      cudaStream_t stream) {
    Pass pass = {};
    pass.size = size;
    pass.padded = make_int2(chain->padded.x >> base, chain->padded.y >> base);
    pass.last = min(REACH, chain->levels - 1 - base);
    for (int level = 0; level <= pass.last; ++level) pass.surface[level] = chain->surface[base + level];
    const int2 tiles = make_int2(ceil_shift(size.x, REACH), ceil_shift(size.y, REACH));
    const bool more = base + REACH < chain->levels - 1;
    pass.means = more ? means : nullptr;
    const dim3 grid(tiles.x, tiles.y, layers), block(32, FILL_WARPS);
    cudaError_t status = cudaErrorInvalidValue;
    if (chain->halves) {
        status = launch(fill<Halves, Source>, grid, block, stream, source, pass);
    } else if constexpr (Source::fits_bytes) {
        status = launch(fill<Bytes, Source>, grid, block, stream, source, pass);
    }
    RETURN_IF_ERROR(status);
    if (!more) return cudaSuccess;
    const long long written = static_cast<long long>(tiles.x) * tiles.y * layers;
    return fill_pass(chain, Means{means, tiles}, tiles, base + REACH, means + written, layers, stream);
}

template <typename T>
cudaError_t fill_from(const Chain *chain, const void *data, const long long *strides, int2 size, float4 *means,
                      int layers, cudaStream_t stream) {
    const Pixels<T> pixels = {static_cast<const T *>(data), strides[0], strides[1], strides[2], strides[3]};
    return fill_pass(chain, pixels, size, 0, means, layers, stream);
}

template <typename Texel, int READS>
cudaError_t sample_reads(cudaTextureObject_t texture, const Cell *cells, int count, void *patches, int type, int leaf,
                         int reads, const Affine &affine, cudaStream_t stream) {
    const int pixels = leaf * leaf, rounds = (pixels + 255) / 256;
    const dim3 block((((pixels + rounds - 1) / rounds) + 31) / 32 * 32);
    switch (type) {
        case FLOAT16:
            return launch(sample<Texel, READS, __half>, dim3(count), block, stream, texture, cells,
                          static_cast<__half *>(patches), leaf, reads, affine);
        case BFLOAT16:
            return launch(sample<Texel, READS, __nv_bfloat16>, dim3(count), block, stream, texture, cells,
                          static_cast<__nv_bfloat16 *>(patches), leaf, reads, affine);
        case FLOAT32:
            return launch(sample<Texel, READS, float>, dim3(count), block, stream, texture, cells,
                          static_cast<float *>(patches), leaf, reads, affine);
        default:
            return cudaErrorInvalidValue;
    }
}

}  // namespace

extern "C" {

const char *homunculus_texture_message(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

int homunculus_texture_create(int device, int width, int height, int layers, int levels, int halves, void **out) {
    if (levels < 1 || levels > MAX_LEVELS) return cudaErrorInvalidValue;
    RETURN_IF_ERROR(cudaSetDevice(device));
    Chain *chain = new Chain{};
    chain->device = device;
    chain->layers = layers;
    chain->levels = levels;
    chain->halves = halves != 0;
    chain->padded = make_int2(width, height);
    const cudaError_t status = build(chain);
    if (status != cudaSuccess) {
        cudaGetLastError();  // reported here, and not by the next call again
        destroy(chain);
        return status;
    }
    *out = chain;
    return cudaSuccess;
}

int homunculus_texture_destroy(void *chain) { return destroy(static_cast<Chain *>(chain)); }

// Images [layers, 3, height, width] into the first layers of the array. `means` is room for float4s: one for each tile
// of 64 x 64 pixels, one for each tile of 64 x 64 of those, and so on; not touched where there are 7 levels or fewer.
int homunculus_texture_fill(void *opaque, const void *images, int type, const long long *strides, int width, int height,
                            int layers, void *means, void *stream) {
    const Chain *chain = static_cast<const Chain *>(opaque);
    if (layers > chain->layers || width > chain->padded.x || height > chain->padded.y) return cudaErrorInvalidValue;
    RETURN_IF_ERROR(cudaSetDevice(chain->device));
    const int2 size = make_int2(width, height);
    float4 *room = static_cast<float4 *>(means);
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    switch (type) {
        case UINT8:
            return fill_from<unsigned char>(chain, images, strides, size, room, layers, queue);
        case FLOAT16:
            return fill_from<__half>(chain, images, strides, size, room, layers, queue);
        case BFLOAT16:
            return fill_from<__nv_bfloat16>(chain, images, strides, size, room, layers, queue);
        case FLOAT32:
            return fill_from<float>(chain, images, strides, size, room, layers, queue);
        default:
            return cudaErrorInvalidValue;
    }
}

int homunculus_texture_cell_bytes() { return sizeof(Cell); }

// Patches [cells, 3, leaf, leaf] of those cells whose image is one of the `layers` from first_image on, which the array
// has. `room` holds a Cell for each; `angle` may be null. `range` is what stands for 1 in the images: 255 or 1.
int homunculus_texture_sample(void *opaque, const void *boxes, const void *angle, int doubles, const int *offsets,
                              int cells, int images, int first_image, int layers, int width, int height, int leaf,
                              int reads, int filter, float range, const float *scale, const float *shift, void *room,
                              void *patches, int type, void *stream) {
    const Chain *chain = static_cast<const Chain *>(opaque);
    if (cells < 1 || images < 1 || layers > chain->layers || leaf < 1 || reads < 1) return cudaErrorInvalidValue;
    if (filter < POINT || filter > TRILINEAR || (filter == POINT && reads != 1)) return cudaErrorInvalidValue;
    RETURN_IF_ERROR(cudaSetDevice(chain->device));
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    Placing placing = {};
    placing.offsets = offsets;
    placing.cells = cells;
    placing.images = images;
    placing.first_image = first_image;
    placing.layers = layers;
    placing.size = make_int2(width, height);
    placing.padded = chain->padded;
    placing.leaf = leaf;
    placing.reads = reads;
    placing.depth = chain->levels - 1;
    placing.filter = static_cast<Filter>(filter);
    Cell *placed = static_cast<Cell *>(room);
    const dim3 blocks((cells + 127) / 128), threads(128);
    RETURN_IF_ERROR(doubles ? launch(place<double>, blocks, threads, queue, static_cast<const double *>(boxes),
                                     static_cast<const double *>(angle), placed, placing)
                            : launch(place<float>, blocks, threads, queue, static_cast<const float *>(boxes),
                                     static_cast<const float *>(angle), placed, placing));

    const bool normalised = !chain->halves && filter != POINT;  // by the hardware
    Affine affine = {};
    affine.divisor = static_cast<float>(reads * reads) * (normalised ? 1.0f : range);
    for (int c = 0; c < 3; ++c) affine.scale[c] = scale[c], affine.shift[c] = shift[c];
    const cudaTextureObject_t texture = chain->texture[filter];
    if (filter == POINT && !chain->halves)
        return sample_reads<uchar4, 1>(texture, placed, cells, patches, type, leaf, 1, affine, queue);
    if (reads == 1) return sample_reads<float4, 1>(texture, placed, cells, patches, type, leaf, 1, affine, queue);
    if (reads == 4) return sample_reads<float4, 4>(texture, placed, cells, patches, type, leaf, 4, affine, queue);
    return sample_reads<float4, 0>(texture, placed, cells, patches, type, leaf, reads, affine, queue);
}

}  // extern "C"
