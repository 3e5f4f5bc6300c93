// What `symwin bench` runs on a device: the library's own parts in a loop, and beside them the same written out by
// hand, as somebody would who had nothing but the addresses.
#include <symwin.cuh>

using namespace symwin;

namespace symwin_bench {

// `Bench` in src/device/builtin.rs.
struct Bench {
    DevComm comm;
    u64 memory;      // where LSA rank 0's part is of the memory that the kernels work on
    u64 stride;      // from rank to rank, in bytes
    u64 result;      // where this rank leaves what it has measured: nanoseconds
    u64 count;       // rounds, elements or lookups
    u64 aux;         // a device address of further data
};

__device__ void leave(Bench const& bench, u64 begin) {
    if (threadIdx.x == 0 && blockIdx.x == 0) *reinterpret_cast<u64*>(bench.result) = globaltimer() - begin;
}

// A barrier of all ranks by hand: words of the first rank-to-rank matrix in each rank's memory, one row a block.
struct Bare {
    u32* own;
    u64 stride;
    u32 me, ranks;
    u32 epoch;

    __device__ Bare(Bench const& bench, u64 offset)
        : stride(bench.stride), me(bench.comm.lsa_rank), ranks(bench.comm.lsa_size) {
        own = reinterpret_cast<u32*>(bench.memory + me * stride + offset) + blockIdx.x * (ranks + 1);
        epoch = *(u32 volatile*)(own + ranks);
    }

    __device__ void sync() {
        __syncthreads();
        epoch += 1;
        u32 const peer = threadIdx.x;
        if (peer < ranks && peer != me) {
            u32* const there = reinterpret_cast<u32*>(reinterpret_cast<char*>(own) + (i64(peer) - i64(me)) * i64(stride));
            asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(there + me), "r"(epoch) : "memory");
            u32 seen;
            do {
                asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(own + peer) : "memory");
            } while (i32(seen - epoch) < 0);
        }
        __syncthreads();
    }

    __device__ void end() {
        if (threadIdx.x == 0) own[ranks] = epoch;
    }
};

}  // namespace symwin_bench

using namespace symwin_bench;

// `count` rounds of the LSA barrier by one block.
extern "C" __global__ void symwin_bench_barrier(__grid_constant__ Bench const bench) {
    LsaBarrier<Cta> barrier(Cta(), bench.comm, blockIdx.x);
    u64 const begin = globaltimer();
    for (u64 i = 0; i < bench.count; i++) {
        if (!barrier.sync(Order::acq_rel)) return;
    }
    leave(bench, begin);
}

// The same by hand.
extern "C" __global__ void symwin_bench_barrier_bare(__grid_constant__ Bench const bench) {
    Bare barrier(bench, 0);
    u64 const begin = globaltimer();
    for (u64 i = 0; i < bench.count; i++) barrier.sync();
    barrier.end();
    leave(bench, begin);
}

// A one-shot all-reduce of `count` vectors of four f32 by hand: inputs from byte 64 Ki of each rank's memory on, the
// output at `aux` of this rank's.
extern "C" __global__ void __launch_bounds__(512) symwin_bench_one_shot_bare(__grid_constant__ Bench const bench) {
    Bare barrier(bench, 0);
    u32 const ranks = bench.comm.lsa_size;
    char const* const input = reinterpret_cast<char const*>(bench.memory) + (64 << 10);
    float4* const output = reinterpret_cast<float4*>(bench.aux);
    u64 const step = u64(gridDim.x) * blockDim.x;
    barrier.sync();
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < bench.count; i += step) {
        float4 sum = reinterpret_cast<float4 const*>(input)[i];
        for (u32 rank = 1; rank < ranks; rank++) {
            float4 const other = reinterpret_cast<float4 const*>(input + rank * bench.stride)[i];
            sum.x += other.x;
            sum.y += other.y;
            sum.z += other.z;
            sum.w += other.w;
        }
        output[i] = sum;
    }
    barrier.sync();
    barrier.end();
}

// `count` lookups by one thread, each of an address that depends on the one before: `aux` is a list of as many addresses
// as its first word says. Wrong answers leave all ones.
extern "C" __global__ void symwin_bench_lookup(__grid_constant__ Bench const bench) {
    u64 const* const list = reinterpret_cast<u64 const*>(bench.aux);
    u64 const n = list[0];
    u64 at = 0, sum = 0;
    bool all_found = true;
    u64 const begin = globaltimer();
    for (u64 i = 0; i < bench.count; i++) {
        at = at * 5 + 1 + (sum & 1);
        Window const* const window = find_window(bench.comm, reinterpret_cast<void const*>(list[1 + at % n]));
        all_found &= window != nullptr;
        sum += reinterpret_cast<u64>(window) >> 63;
    }
    leave(bench, begin);
    if (!all_found) *reinterpret_cast<u64*>(bench.result) = ~u64(0);
}

// Runs until the word at `aux` is not 0, at most `count` nanoseconds.
extern "C" __global__ void __launch_bounds__(1024) symwin_bench_spin(__grid_constant__ Bench const bench) {
    u64 const begin = globaltimer();
    while (ld_relaxed(reinterpret_cast<u32 const*>(bench.aux)) == 0 && globaltimer() - begin < bench.count) {}
}

// Every rank's own mark into byte `8 * rank` of every rank's memory, then all of one's own are checked: `count` is what
// marks are made of. Leaves how many were wrong.
extern "C" __global__ void symwin_bench_peers(__grid_constant__ Bench const bench) {
    LsaBarrier<Cta> barrier(Cta(), bench.comm, 0);
    u32 const me = bench.comm.lsa_rank, ranks = bench.comm.lsa_size;
    u64 const first = bench.memory;
    for (u32 peer = threadIdx.x; peer < ranks; peer += blockDim.x) {
        *reinterpret_cast<u64 volatile*>(first + peer * bench.stride + 8 * me) = bench.count + 100 * me + peer;
    }
    bool good = barrier.sync(Order::acq_rel);
    u64 wrong = good ? 0 : 1000;
    if (threadIdx.x == 0) {
        for (u32 peer = 0; peer < ranks; peer++) {
            u64 const seen = *reinterpret_cast<u64 volatile*>(first + me * bench.stride + 8 * peer);
            u64 const there = *reinterpret_cast<u64 volatile*>(first + peer * bench.stride + 8 * me);
            wrong += seen != bench.count + 100 * peer + me;
            wrong += there != bench.count + 100 * me + peer;
        }
        *reinterpret_cast<u64*>(bench.result) = wrong;
    }
    barrier.sync(Order::acq_rel);
}
