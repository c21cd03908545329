// As much of CUDA as homunculus/kernels/texture.cu uses, on a CPU: g++ compiles that very file against this header, so
// that its arithmetic is tested where there is no GPU. Threads of a block are fibres that take turns at each barrier.
// Texture reads have weights of 8 fractional bits, rounded down, the worst that the error bound allows for; a texel
// that nobody has written reads as NaN, and a write outside the array fails the launch.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#define __host__
#define __device__
#define __global__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

template <typename T> struct Two { T x, y; };
template <typename T> struct Three { T x, y, z; };
template <typename T> struct Four { T x, y, z, w; };
using int2 = Two<int>;
using float2 = Two<float>;
using float3 = Three<float>;
struct alignas(16) float4 { float x, y, z, w; };
using uchar4 = Four<unsigned char>;
using uint2 = Two<unsigned>;
inline int2 make_int2(int x, int y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline int min(int a, int b) { return a < b ? a : b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const uint64_t both = low | static_cast<uint64_t>(high) << 32;
    unsigned out = 0;
    for (int i = 0; i < 4; ++i) out |= (both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return out;
}
inline double sinpi(double x) { return std::sin(x * M_PI); }
inline double cospi(double x) { return std::cos(x * M_PI); }
using std::ceil, std::fmaf, std::fmax, std::fmaxf, std::fmin, std::fminf, std::ilogb, std::log2, std::rint, std::sqrt;

// -------------------------------------------------------------------------------------------------------------- halves

struct __half { _Float16 v; };
struct __nv_bfloat16 { uint16_t bits; };
template <typename To, typename From> To bits_of(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned __float_as_uint(float v) { return bits_of<unsigned>(v); }
inline float __half2float(__half h) { return static_cast<float>(h.v); }
inline __half __float2half_rn(float v) { return {static_cast<_Float16>(v)}; }
inline unsigned short __half_as_ushort(__half h) { return bits_of<unsigned short>(h.v); }
inline float __bfloat162float(__nv_bfloat16 b) { return bits_of<float>(static_cast<uint32_t>(b.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
    const uint32_t bits = bits_of<uint32_t>(v);
    return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

// ------------------------------------------------------------------------------------------------- launches and fibres

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorLaunchFailure = 719,
};
using cudaStream_t = struct Stream *;
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;
inline bool launch_failed;

struct Fibres {
    static constexpr size_t STACK = 64 << 10;
    std::vector<ucontext_t> contexts;
    std::vector<char> stacks, done;
    std::vector<float> slots;  // what each thread shows to its warp
    ucontext_t scheduler;
    unsigned current = 0;
    void (*body)(void *) = nullptr;
    void *argument = nullptr;
};
inline Fibres fibres;

inline void fibre_entry() {
    fibres.body(fibres.argument);
    fibres.done[fibres.current] = 1;
}

inline void __syncthreads() { swapcontext(&fibres.contexts[fibres.current], &fibres.scheduler); }

inline float __shfl_xor_sync(unsigned, float value, int mask) {
    const unsigned self = fibres.current;
    fibres.slots[self] = value;
    __syncthreads();
    const float other = fibres.slots[self ^ mask];
    __syncthreads();
    return other;
}

inline void run_block(void (*body)(void *), void *argument) {
    const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    fibres.contexts.resize(threads);
    fibres.stacks.resize(threads * Fibres::STACK);
    fibres.slots.assign(threads, 0);
    fibres.done.assign(threads, 0);
    fibres.body = body;
    fibres.argument = argument;
    for (unsigned t = 0; t < threads; ++t) {
        getcontext(&fibres.contexts[t]);
        fibres.contexts[t].uc_stack.ss_sp = fibres.stacks.data() + t * Fibres::STACK;
        fibres.contexts[t].uc_stack.ss_size = Fibres::STACK;
        fibres.contexts[t].uc_link = &fibres.scheduler;
        makecontext(&fibres.contexts[t], fibre_entry, 0);
    }
    for (bool alive = true; alive;) {
        alive = false;
        for (unsigned t = 0; t < threads; ++t) {
            if (fibres.done[t]) continue;
            alive = true;
            fibres.current = t;
            threadIdx = dim3(t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y);
            swapcontext(&fibres.scheduler, &fibres.contexts[t]);
        }
    }
}

template <typename... P, size_t... I>
void call(void (*kernel)(P...), void **arguments, std::index_sequence<I...>) {
    kernel(*static_cast<P *>(arguments[I])...);
}

template <typename... P>
cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void **arguments, size_t, cudaStream_t) {
    struct Call {
        void (*kernel)(P...);
        void **arguments;
    } bound = {kernel, arguments};
    gridDim = grid;
    blockDim = block;
    launch_failed = false;
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x) {
                blockIdx = dim3(x, y, z);
                run_block([](void *c) { call(static_cast<Call *>(c)->kernel, static_cast<Call *>(c)->arguments,
                                             std::index_sequence_for<P...>{}); }, &bound);
            }
    return launch_failed ? cudaErrorLaunchFailure : cudaSuccess;
}

inline cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char *cudaGetErrorString(cudaError_t) { return "emulated error"; }

// ---------------------------------------------------------------------------------------------------- arrays, textures

enum cudaChannelFormatKind { cudaChannelFormatKindUnsigned, cudaChannelFormatKindFloat };
enum { cudaArrayLayered = 1, cudaArraySurfaceLoadStore = 2 };
enum cudaResourceType { cudaResourceTypeArray, cudaResourceTypeMipmappedArray };
enum cudaTextureAddressMode { cudaAddressModeWrap, cudaAddressModeClamp };
enum cudaTextureFilterMode { cudaFilterModePoint, cudaFilterModeLinear };
enum cudaTextureReadMode { cudaReadModeElementType, cudaReadModeNormalizedFloat };
struct cudaChannelFormatDesc { int x, y, z, w, f; };
struct cudaExtent { size_t width, height, depth; };
inline cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, int f) { return {x, y, z, w, f}; }
inline cudaExtent make_cudaExtent(size_t w, size_t h, size_t d) { return {w, h, d}; }

struct Level {
    int width, height, layers, texel;  // texel: bytes
    std::vector<unsigned char> data, written;
    size_t at(int x, int y, int layer) const { return (static_cast<size_t>(layer) * height + y) * width + x; }
};
using cudaArray_t = Level *;
using cudaMipmappedArray_t = std::vector<Level> *;
using cudaSurfaceObject_t = unsigned long long;
using cudaTextureObject_t = unsigned long long;
struct cudaResourceDesc {
    cudaResourceType resType;
    struct { struct { cudaArray_t array; } array; struct { cudaMipmappedArray_t mipmap; } mipmap; } res;
};
struct cudaTextureDesc {
    cudaTextureAddressMode addressMode[3];
    cudaTextureFilterMode filterMode, mipmapFilterMode;
    cudaTextureReadMode readMode;
    int normalizedCoords, disableTrilinearOptimization;
    float maxMipmapLevelClamp;
};
struct Texture { std::vector<Level> *levels; cudaTextureDesc how; };
inline int things_alive;  // arrays, surfaces and textures that nobody has destroyed

inline cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t *out, const cudaChannelFormatDesc *texel,
                                            cudaExtent size, unsigned levels, unsigned) {
    if (size.depth == 0 || levels == 0) return cudaErrorInvalidValue;
    if (size.width * size.height * size.depth > (1u << 28)) return cudaErrorMemoryAllocation;
    *out = new std::vector<Level>(levels);
    for (unsigned l = 0; l < levels; ++l) {
        Level &level = (**out)[l];
        level.width = std::max<int>(1, size.width >> l);
        level.height = std::max<int>(1, size.height >> l);
        level.layers = size.depth;
        level.texel = texel->x / 2;
        const size_t texels = static_cast<size_t>(level.width) * level.height * level.layers;
        level.data.resize(texels * level.texel);
        level.written.resize(texels);
    }
    ++things_alive;
    return cudaSuccess;
}
inline cudaError_t cudaGetMipmappedArrayLevel(cudaArray_t *out, cudaMipmappedArray_t array, unsigned level) {
    *out = &(*array)[level];
    return cudaSuccess;
}
inline cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t array) {
    delete array;
    --things_alive;
    return cudaSuccess;
}
inline cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t *out, const cudaResourceDesc *resource) {
    *out = reinterpret_cast<cudaSurfaceObject_t>(resource->res.array.array);
    ++things_alive;
    return cudaSuccess;
}
inline cudaError_t cudaDestroySurfaceObject(cudaSurfaceObject_t) { --things_alive; return cudaSuccess; }
inline cudaError_t cudaCreateTextureObject(cudaTextureObject_t *out, const cudaResourceDesc *resource,
                                           const cudaTextureDesc *how, const void *) {
    if (!how->normalizedCoords) return cudaErrorInvalidValue;  // mipmaps need them
    *out = reinterpret_cast<cudaTextureObject_t>(new Texture{resource->res.mipmap.mipmap, *how});
    ++things_alive;
    return cudaSuccess;
}
inline cudaError_t cudaDestroyTextureObject(cudaTextureObject_t t) {
    delete reinterpret_cast<Texture *>(t);
    --things_alive;
    return cudaSuccess;
}
extern "C" inline __attribute__((used)) int emulator_things_alive() { return things_alive; }

template <typename T>
void surf2DLayeredwrite(T value, cudaSurfaceObject_t surface, int x_bytes, int y, int layer) {
    Level &level = *reinterpret_cast<Level *>(surface);
    const int x = x_bytes / level.texel;
    if (sizeof(T) != static_cast<size_t>(level.texel) || x_bytes % level.texel || x < 0 || x >= level.width || y < 0 ||
        y >= level.height || layer < 0 || layer >= level.layers) {
        launch_failed = true;
        return;
    }
    std::memcpy(&level.data[level.at(x, y, layer) * level.texel], &value, sizeof value);
    level.written[level.at(x, y, layer)] = 1;
}

inline float4 texel_of(const Level &level, cudaTextureReadMode mode, int x, int y, int layer) {
    x = std::max(0, std::min(x, level.width - 1));
    y = std::max(0, std::min(y, level.height - 1));
    const size_t at = level.at(x, y, layer);
    if (!level.written[at]) return {NAN, NAN, NAN, NAN};
    float v[4];
    for (int c = 0; c < 4; ++c)
        if (level.texel == 4) {
            v[c] = level.data[at * 4 + c] / (mode == cudaReadModeNormalizedFloat ? 255.0f : 1.0f);
        } else {
            _Float16 half;
            std::memcpy(&half, &level.data[at * 8 + c * 2], 2);
            v[c] = half;
        }
    return {v[0], v[1], v[2], v[3]};
}

inline float eight_bits(double fraction) { return std::floor(fraction * 256) / 256; }
inline float4 mixed(float4 a, float4 b, float t) {
    const auto one = [t](float a, float b) { return a * (1 - t) + b * t; };
    return {one(a.x, b.x), one(a.y, b.y), one(a.z, b.z), one(a.w, b.w)};
}

inline float4 read_level(const Texture &texture, const Level &level, float x, float y, int layer) {
    const cudaTextureReadMode mode = texture.how.readMode;
    double u = static_cast<double>(x) * level.width, v = static_cast<double>(y) * level.height;
    if (texture.how.filterMode == cudaFilterModePoint)
        return texel_of(level, mode, std::floor(u), std::floor(v), layer);
    u -= 0.5, v -= 0.5;
    const int i = std::floor(u), j = std::floor(v);
    const float a = eight_bits(u - i), b = eight_bits(v - j);
    return mixed(mixed(texel_of(level, mode, i, j, layer), texel_of(level, mode, i + 1, j, layer), a),
                 mixed(texel_of(level, mode, i, j + 1, layer), texel_of(level, mode, i + 1, j + 1, layer), a), b);
}

inline float4 read_texture(cudaTextureObject_t object, float x, float y, int layer, float lod) {
    const Texture &texture = *reinterpret_cast<Texture *>(object);
    const int last = static_cast<int>(texture.levels->size()) - 1;
    lod = std::max(0.0f, std::min(lod, std::min<float>(last, texture.how.maxMipmapLevelClamp)));
    if (texture.how.mipmapFilterMode == cudaFilterModePoint)
        return read_level(texture, (*texture.levels)[static_cast<int>(std::floor(lod + 0.5f))], x, y, layer);
    const int low = std::floor(lod);
    return mixed(read_level(texture, (*texture.levels)[low], x, y, layer),
                 read_level(texture, (*texture.levels)[std::min(low + 1, last)], x, y, layer), eight_bits(lod - low));
}

template <typename T> T tex2DLayeredLod(cudaTextureObject_t object, float x, float y, int layer, float lod);
template <> inline float4 tex2DLayeredLod<float4>(cudaTextureObject_t object, float x, float y, int layer, float lod) {
    return read_texture(object, x, y, layer, lod);
}
template <> inline uchar4 tex2DLayeredLod<uchar4>(cudaTextureObject_t object, float x, float y, int layer, float lod) {
    const float4 v = read_texture(object, x, y, layer, lod);
    if (std::isnan(v.x)) launch_failed = true;  // a byte has no NaN
    const auto byte = [](float f) { return static_cast<unsigned char>(f); };
    return {byte(v.x), byte(v.y), byte(v.z), byte(v.w)};
}
