// All-reduce over the LSA team: the device's half of src/coll/on_device.rs, which says when each way is taken.
//
// Elements are combined in order of LSA rank, in the type that the host device combines them in, so every rank gets
// the same bits and so do the two devices (multimem excepted: there the switch chooses the order).
//
// Block b of every rank meets on barrier `barrier + b`. A wait that its deadline or the communicator's failure ends
// leaves TIMED_OUT in the communicator's flag and the output undefined.
#include <symwin.cuh>

using namespace symwin;

// A namespace with a name: what has none gets one with the compiler's process id in it, and the images would differ.
namespace symwin_all_reduce {

enum Op : u32 { SUM, MEAN, MIN, MAX };

// What the host passes by value: `AllReduce` in src/device/builtin.rs. Addresses and not windows: reading these first
// would be in every launch's time.
struct AllReduce {
    DevComm comm;
    u64 input;  // LSA rank 0's; the others lie as far apart as in every window of the communicator
    u64 output;
    u64 input_multimem;  // all ranks' at once, for the kernels that go through the switch
    u64 output_multimem;
    u64 count;  // elements
    u32 op;
    u32 barrier;
    u32 is_in_place;  // the output is the input, else they are apart
    u32 reserved;
};

enum : u32 { TIMED_OUT = 2 };
// Vectors of 16 bytes whose results a thread of the one-shot kernel holds.
enum : int { HELD = 2 };
// Loads through the switch that a thread has under way: one takes microseconds.
enum : int { AHEAD = 8 };

// Halves as their bits; arithmetic is in f32, which holds them exactly.
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

__device__ inline float widen(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ inline float widen(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
__device__ inline f16 narrow(float x, f16) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
__device__ inline bf16 narrow(float x, bf16) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

// The type that a type's sums and means are made in, and how it gets there and back.
template <typename T> struct Number;

template <typename T> struct Float {
    using Wide = T;
    __device__ static T widen(T x) { return x; }
    __device__ static T narrow(T x) { return x; }
    __device__ static T add(T a, T b) { return a + b; }
    __device__ static T mean(T sum, u32 inputs) { return sum / T(inputs); }
};
template <> struct Number<float> : Float<float> {};
template <> struct Number<double> : Float<double> {};

template <typename T> struct Half {
    using Wide = float;
    __device__ static float widen(T x) { return ::widen(x); }
    __device__ static T narrow(float x) { return ::narrow(x, T{}); }
    __device__ static float add(float a, float b) { return a + b; }
    __device__ static float mean(float sum, u32 inputs) { return sum / float(inputs); }
};
template <> struct Number<f16> : Half<f16> {};
template <> struct Number<bf16> : Half<bf16> {};

// Sums of integers wrap; a mean is of the exact sum, truncated toward zero. Additions are unsigned, as signed ones must
// not overflow.
template <typename T, typename W, typename U> struct Integer {
    using Wide = W;
    __device__ static W widen(T x) { return W(x); }
    __device__ static T narrow(W x) { return T(x); }
    __device__ static W add(W a, W b) { return W(U(a) + U(b)); }
    __device__ static W mean(W sum, u32 inputs) { return sum / W(inputs); }
};
template <> struct Number<u8> : Integer<u8, u32, u32> {};
template <> struct Number<i32> : Integer<i32, i64, u64> {};
template <> struct Number<i64> : Integer<i64, __int128, unsigned __int128> {};

// The first of several inputs, then the others in order. EXTREME: the smallest or largest, else the sum or mean; which
// of the two is known at run time only, as it costs nothing beside the loads.
template <typename T, bool EXTREME> struct Partial {
    typename Number<T>::Wide value;

    __device__ void add(T x, bool is_first, u32 op) {
        auto const wide = Number<T>::widen(x);
        if (EXTREME) {
            // The earlier one where they are in order, or it is a NaN, which differs from itself.
            bool const in_order = op == MIN ? value <= wide : value >= wide;
            bool const keeps = in_order || value != value;
            if (is_first || !keeps) value = wide;
        } else {
            value = is_first ? wide : Number<T>::add(value, wide);
        }
    }

    __device__ T result() const { return Number<T>::narrow(value); }
    __device__ T mean(u32 inputs) const { return Number<T>::narrow(Number<T>::mean(value, inputs)); }
};

// 16 bytes of elements.
template <typename T> struct alignas(16) Vector {
    static constexpr int LEN = 16 / int(sizeof(T));
    T at[LEN];
};

// One element where addresses are not aligned to more.
template <typename T> struct Single {
    static constexpr int LEN = 1;
    T at[1];
};

// Where inputs and outputs of this rank's call are. Neighbours lie the same distance apart, so a peer is an addition to
// the high half of an address.
template <typename V> struct Places {
    u64 input;
    u64 output;
    u32 stride_4g;

    __device__ V load(u32 rank, u64 index) const {
        return *detail::to_pointer<V const>(detail::strided(input + index * sizeof(V), stride_4g, i32(rank)));
    }
    __device__ void store(u32 rank, u64 index, V const& value) const {
        *detail::to_pointer<V>(detail::strided(output + index * sizeof(V), stride_4g, i32(rank))) = value;
    }
};

template <typename T, bool EXTREME, typename V>
__device__ V combine(Places<V> const& places, u64 index, u32 op, u32 ranks) {
    Partial<T, EXTREME> partial[V::LEN];
    // Loads of four ranks are under way at a time.
    V ahead[4];
    #pragma unroll 1
    for (u32 base = 0; base < ranks; base += 4) {
        #pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (base + i < ranks) ahead[i] = places.load(base + i, index);
        }
        #pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (base + i < ranks) {
                #pragma unroll
                for (int j = 0; j < V::LEN; j++) partial[j].add(ahead[i].at[j], i == 0 && base == 0, op);
            }
        }
    }
    V result;
    // One branch for all elements.
    if (!EXTREME && op == MEAN) {
        #pragma unroll
        for (int j = 0; j < V::LEN; j++) result.at[j] = partial[j].mean(ranks);
    } else {
        #pragma unroll
        for (int j = 0; j < V::LEN; j++) result.at[j] = partial[j].result();
    }
    return result;
}

__device__ inline void give_up(AllReduce const& call) {
    if (threadIdx.x == 0 && call.comm.abort_flag != 0) {
        st_relaxed(detail::to_pointer<u32>(call.comm.abort_flag), TIMED_OUT);
    }
}

// A call's elements: those that fill vectors of 16 bytes on every rank, and the few before and behind them. All of them
// are edges where input and output are not aligned alike.
template <typename T> struct Parts {
    Places<Vector<T>> vectors;
    Places<Single<T>> singles;
    u64 n_vectors;
    u64 n_edges;
    // The first edge behind the vectors, and how far its index is moved by them.
    u64 head;
    u64 skip;

    __device__ explicit Parts(AllReduce const& call) {
        u64 const count = call.count;
        bool const alike = ((call.input ^ call.output) & 15) == 0;
        u64 const to_align = ((16 - (call.input & 15)) & 15) / sizeof(T);
        head = alike && to_align < count ? to_align : count;
        n_vectors = (count - head) / Vector<T>::LEN;
        skip = n_vectors * Vector<T>::LEN;
        n_edges = count - skip;
        // That of all windows of the communicator.
        u32 const stride_4g = call.comm.resource.stride_4g;
        singles = Places<Single<T>>{call.input, call.output, stride_4g};
        u64 const skipped = head * sizeof(T);
        vectors = Places<Vector<T>>{call.input + skipped, call.output + skipped, stride_4g};
    }

    __device__ u64 edge(u64 index) const { return index < head ? index : index + skip; }
};

// One shot: everyone reads all inputs. Where the output is the input, results are kept until everyone has read; else
// they are stored while the word of that is on its way.
// The host sees to it that all elements have a place: HELD vectors and HELD edges for each thread.
template <typename T, bool EXTREME>
__device__ void one_shot(AllReduce const& call, Parts<T> const& parts, LsaBarrier<Cta>& barrier) {
    u32 const ranks = call.comm.lsa_size;
    u32 const me = call.comm.lsa_rank;
    u64 const step = u64(gridDim.x) * blockDim.x;
    u64 const first = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    Vector<T> vectors[HELD];
    Single<T> edges[HELD];
    if (!barrier.sync(Order::acq_rel)) return give_up(call);
    #pragma unroll
    for (int i = 0; i < HELD; i++) {
        u64 const index = first + i * step;
        if (index < parts.n_vectors) vectors[i] = combine<T, EXTREME>(parts.vectors, index, call.op, ranks);
    }
    // Most calls have none.
    if (parts.n_edges != 0) {
        #pragma unroll
        for (int i = 0; i < HELD; i++) {
            u64 const index = first + i * step;
            if (index < parts.n_edges) {
                edges[i] = combine<T, EXTREME>(parts.singles, parts.edge(index), call.op, ranks);
            }
        }
    }
    auto const store = [&] {
        #pragma unroll
        for (int i = 0; i < HELD; i++) {
            u64 const index = first + i * step;
            if (index < parts.n_vectors) parts.vectors.store(me, index, vectors[i]);
        }
        if (parts.n_edges == 0) return;
        #pragma unroll
        for (int i = 0; i < HELD; i++) {
            u64 const index = first + i * step;
            if (index < parts.n_edges) parts.singles.store(me, parts.edge(index), edges[i]);
        }
    };
    barrier.arrive(Order::acq_rel);
    if (!call.is_in_place) store();
    if (!barrier.wait(Order::acq_rel)) return give_up(call);
    if (call.is_in_place) store();
    barrier.end_with_kernel();
}

template <typename V>
__device__ void give_all(Places<V> const& places, u64 index, u32 me, u32 ranks, V const& value) {
    // Not all into the same rank's memory at a time.
    for (u32 i = 0; i < ranks; i++) places.store(me + i < ranks ? me + i : me + i - ranks, index, value);
}

// This rank's share of the edges, combined and written to everyone.
template <typename T, bool EXTREME>
__device__ void share_edges(AllReduce const& call, Parts<T> const& parts, u64 first, u64 step) {
    u32 const ranks = call.comm.lsa_size;
    u32 const me = call.comm.lsa_rank;
    u64 const end = parts.n_edges * (me + 1) / ranks;
    for (u64 index = parts.n_edges * me / ranks + first; index < end; index += step) {
        u64 const at = parts.edge(index);
        give_all(parts.singles, at, me, ranks, combine<T, EXTREME>(parts.singles, at, call.op, ranks));
    }
}

// Two shots: each rank combines its share and writes it to everyone.
template <typename T, bool EXTREME>
__device__ void two_shot(AllReduce const& call, Parts<T> const& parts, LsaBarrier<Cta>& barrier) {
    u32 const ranks = call.comm.lsa_size;
    u32 const me = call.comm.lsa_rank;
    u64 const step = u64(gridDim.x) * blockDim.x;
    u64 const first = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (!barrier.sync(Order::acq_rel)) return give_up(call);
    u64 const end = parts.n_vectors * (me + 1) / ranks;
    for (u64 index = parts.n_vectors * me / ranks + first; index < end; index += step) {
        give_all(parts.vectors, index, me, ranks, combine<T, EXTREME>(parts.vectors, index, call.op, ranks));
    }
    share_edges<T, EXTREME>(call, parts, first, step);
    if (!barrier.sync(Order::acq_rel)) give_up(call);
    barrier.end_with_kernel();
}

template <typename T, bool EXTREME, bool ONE_SHOT>
__device__ void run(AllReduce const& call) {
    LsaBarrier<Cta> barrier(Cta(), call.comm, call.barrier + blockIdx.x);
    Parts<T> const parts(call);
    if (ONE_SHOT) one_shot<T, EXTREME>(call, parts, barrier);
    else two_shot<T, EXTREME>(call, parts, barrier);
}

template <typename T, bool ONE_SHOT>
__device__ void dispatch(AllReduce const& call) {
    if (call.op == SUM || call.op == MEAN) run<T, false, ONE_SHOT>(call);
    else run<T, true, ONE_SHOT>(call);
}

// Where the device has multicast instructions. `reduces_in_switch` in src/coll/on_device.rs has the same types and
// operations.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// What the switch adds of a type at a time: vectors of 16 bytes where the instruction knows them, else one element.
// Halves are added in f32 and rounded to halves.
template <typename T> struct Switch;

template <> struct Switch<float> {
    using Unit = F32x4;
    __device__ static Unit sum(Unit const* from) { return multimem_ld_reduce_add_f32x4(from); }
    __device__ static void store(Unit* to, Unit value) { multimem_st_f32x4(to, value); }
};
template <> struct Switch<double> {
    using Unit = double;
    __device__ static Unit sum(Unit const* from) { return multimem_ld_reduce_add_f64(from); }
    __device__ static void store(Unit* to, Unit value) { multimem_st_f64(to, value); }
};
template <> struct Switch<i32> {
    using Unit = u32;
    __device__ static Unit sum(Unit const* from) { return multimem_ld_reduce_add_u32(from); }
    __device__ static void store(Unit* to, Unit value) { multimem_st_u32(to, value); }
};
template <> struct Switch<i64> {
    using Unit = u64;
    __device__ static Unit sum(Unit const* from) { return multimem_ld_reduce_add_u64(from); }
    __device__ static void store(Unit* to, Unit value) { multimem_st_u64(to, value); }
};
template <> struct Switch<f16> {
    using Unit = U32x4;
    __device__ static Unit sum(Unit const* from) { return multimem_ld_reduce_add_f16x2_x4(from); }
    __device__ static void store(Unit* to, Unit value) { multimem_st_x4(to, value); }
};
template <> struct Switch<bf16> {
    using Unit = U32x4;
    __device__ static Unit sum(Unit const* from) { return multimem_ld_reduce_add_bf16x2_x4(from); }
    __device__ static void store(Unit* to, Unit value) { multimem_st_x4(to, value); }
};

// Of floats in their own type. The host asks for no other means: of halves the sum would be rounded first, or too
// large for them, and sums of integers wrap.
template <typename U> __device__ U mean(U sum, u32) { return sum; }
__device__ inline double mean(double sum, u32 inputs) { return Number<double>::mean(sum, inputs); }
__device__ inline F32x4 mean(F32x4 sum, u32 inputs) {
    auto const of = [inputs](float x) { return Number<float>::mean(x, inputs); };
    return F32x4{of(sum.x), of(sum.y), of(sum.z), of(sum.w)};
}

// Through the switch: each rank has it add up its share of the vectors and store the sums into every output. The few
// edges go the ordinary way: an element may be smaller than anything that the switch adds.
//
// No proxy fence: no byte is accessed by both kinds of addresses in one kernel, and between kernels their ends do.
template <typename T>
__device__ void multimem(AllReduce const& call) {
    using Unit = typename Switch<T>::Unit;
    LsaBarrier<Cta> barrier(Cta(), call.comm, call.barrier + blockIdx.x);
    Parts<T> const parts(call);
    u32 const ranks = call.comm.lsa_size;
    u32 const me = call.comm.lsa_rank;
    u64 const step = u64(gridDim.x) * blockDim.x;
    u64 const first = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    u64 const skipped = parts.head * sizeof(T);
    Unit* const input = detail::to_pointer<Unit>(call.input_multimem + skipped);
    Unit* const output = detail::to_pointer<Unit>(call.output_multimem + skipped);
    u64 const units = parts.n_vectors * (sizeof(Vector<T>) / sizeof(Unit));
    u64 const end = units * (me + 1) / ranks;
    if (!barrier.sync(Order::acq_rel)) return give_up(call);
    #pragma unroll 1
    for (u64 base = units * me / ranks + first; base < end; base += AHEAD * step) {
        Unit sums[AHEAD];
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (base + i * step < end) sums[i] = Switch<T>::sum(input + base + i * step);
        }
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (base + i * step < end) {
                Unit const result = call.op == MEAN ? mean(sums[i], ranks) : sums[i];
                Switch<T>::store(output + base + i * step, result);
            }
        }
    }
    share_edges<T, false>(call, parts, first, step);
    if (!barrier.sync(Order::acq_rel)) give_up(call);
    barrier.end_with_kernel();
}

#endif  // sm_90

}  // namespace symwin_all_reduce

using namespace symwin_all_reduce;

#define ALL_REDUCE(NAME, TYPE)                                                                                  \
    extern "C" __global__ void __launch_bounds__(512) symwin_all_reduce_one_shot_##NAME(__grid_constant__ AllReduce const call) { dispatch<TYPE, true>(call); } \
    extern "C" __global__ void __launch_bounds__(512) symwin_all_reduce_two_shot_##NAME(__grid_constant__ AllReduce const call) { dispatch<TYPE, false>(call); }

ALL_REDUCE(f32, float)
ALL_REDUCE(f64, double)
ALL_REDUCE(i32, i32)
ALL_REDUCE(i64, i64)
ALL_REDUCE(u8, u8)
ALL_REDUCE(f16, f16)
ALL_REDUCE(bf16, bf16)

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

#define ALL_REDUCE_MULTIMEM(NAME, TYPE)                                            \
    extern "C" __global__ void __launch_bounds__(512)                              \
        symwin_all_reduce_multimem_##NAME(__grid_constant__ AllReduce const call) { \
        multimem<TYPE>(call);                                                      \
    }

ALL_REDUCE_MULTIMEM(f32, float)
ALL_REDUCE_MULTIMEM(f64, double)
ALL_REDUCE_MULTIMEM(i32, i32)
ALL_REDUCE_MULTIMEM(i64, i64)
ALL_REDUCE_MULTIMEM(f16, f16)
ALL_REDUCE_MULTIMEM(bf16, bf16)

#endif  // sm_90
