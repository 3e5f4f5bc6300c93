// symwin.cuh: what kernels need to use symwin's windows. Self-contained: it includes nothing, so that NVRTC takes it
// from memory; C++14; nvcc, NVRTC (12 and 13) and clang. All special instructions are inline PTX.
//
//   symwin::DevComm        what a kernel takes, by value (the host makes it: `DevComm::to_kernel`)
//   symwin::*_pointer      addresses in windows and resource buffers: own, peer's, multicast
//   symwin::Team           teams of ranks
//   symwin::Thread, Warp, Cta   groups of threads that act together
//   symwin::LsaBarrier     a barrier over the ranks of the LSA team
//   symwin::LlA2a          the low-latency all-to-all
//   symwin::find_window    the window of an address
//   symwin::ld_*, st_*, red_*, multimem_*   memory instructions by name
//
// A compiler for host code gets the structs, pointers and teams, so that the same file serves both sides.
//
// A session (`LsaBarrier`, `LlA2a`) belongs to one group of threads. One session at a time may be on a barrier (with
// one mode) or a block of an all-to-all; its end (`end` or the destructor) stores how far it got for the next one.
// Every thread of the group calls what is marked "group"; the others may be called by any thread alone.
#ifndef SYMWIN_CUH
#define SYMWIN_CUH

#if defined(__CUDACC__) || defined(__CUDACC_RTC__) || (defined(__clang__) && defined(__CUDA__))
#define SYMWIN_BOTH __host__ __device__ inline
#define SYMWIN_DEVICE __device__ __forceinline__
#else
#define SYMWIN_BOTH inline
#endif

namespace symwin {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
static_assert(sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(void*) == 8, "64-bit devices and hosts only");

// ---------------------------------------------------------------------------------------------------------------------
// Structs. Each has a twin in symwin's src/device/abi.rs, which says what the fields mean in full; addresses are u64.

// Enumerators: variables of a namespace come into the image, under a name with the compiler's process id in it.
enum : u32 {
  table_entries = 32,
  resource_unit_bytes = 128,
  dev_comm_magic = 0x776d7973,  // "symw"
  dev_comm_version = 1,
};

// A window. It does not change while a kernel runs that can know it.
struct Window {
  u64 host;
  u64 lsa_flat_base;   // where LSA rank 0's copy is
  i32 lsa_rank;        // this rank in the LSA team
  i32 world_rank;      // and in the world
  u32 stride_4g;       // from rank to rank, in units of 4 GiB
  u32 mc_offset_4k;    // in multicast objects, in units of 4 KiB
  u32 net_offset_4k;
  u32 flags;
  u64 net_windows[4];
  u64 net_segments;
  i32 segments;
  i32 endpoint_rank;
  u32 endpoint_base;
  u32 reserved;
};

// The part of the resource buffers' window that pointers need.
struct ResourceWindow {
  u64 lsa_flat_base;
  u32 stride_4g;
  u32 mc_offset_4k;
};

// Ranks at equal distances in the world: `n_ranks` of them, `stride` apart, of which this rank is number `rank`.
struct Team {
  i32 n_ranks;
  i32 rank;
  i32 stride;
};

// Where a multicast object is mapped, 0 where there is none.
struct MultimemHandle {
  u64 base;
};

struct LsaBarrierHandle {
  u32 buffer;
  i32 n_barriers;
};

struct LlA2aHandle {
  u32 buffer;
  u32 n_slots;
};

struct WindowTableEntry {
  u64 base;
  u64 size;
  u64 window;
};

struct WindowTable {
  WindowTableEntry entries[table_entries];
  u64 next;
};

// What kernels take by value.
struct DevComm {
  u32 magic;    // dev_comm_magic
  u32 version;  // dev_comm_version
  i32 rank;
  i32 n_ranks;
  i32 lsa_rank;
  i32 lsa_size;
  u64 window_table;     // WindowTable*, 0 if none
  u64 lookup;           // LookupHead*, 0 if none
  u64 resource_window;  // Window*, 0 if none
  ResourceWindow resource;
  u64 resource_bytes;  // of each rank's resource buffers
  MultimemHandle lsa_multimem;
  LsaBarrierHandle lsa_barrier;
  LlA2aHandle ll_a2a;
  u32 ll_a2a_blocks;
  u32 reserved_0;
  u64 abort_flag;  // u32*, not 0 there once the communicator has failed; 0 if none
  u64 timeout_ns;  // how long a wait may take, 0 if it may for ever
  u64 reserved_1;
};

// Where a lookup begins. See `find_window`.
struct LookupHead {
  u64 sequence;  // counts publications; written before one begins
  u64 tree;      // LookupTree*, 0 if there never was one; written when it is whole
};

// What a tree begins with; its nodes follow from the root down, then its leaves.
struct LookupTree {
  u32 n_leaves;
  u32 levels;  // of nodes
  u32 reserved[30];
};

struct LookupNode {
  u64 keys[16];  // the first address of each child, unused ones all ones
};

struct LookupLeaf {
  u64 end;     // of the piece that the leaf is for, 0 if it is for none
  u64 window;  // Window*, 0 if none
};

static_assert(sizeof(Window) == 96 && sizeof(ResourceWindow) == 16 && sizeof(Team) == 12, "layout");
static_assert(sizeof(MultimemHandle) == 8 && sizeof(LsaBarrierHandle) == 8 && sizeof(LlA2aHandle) == 8, "layout");
static_assert(sizeof(WindowTableEntry) == 24 && sizeof(WindowTable) == 776 && sizeof(DevComm) == 128, "layout");
static_assert(sizeof(LookupHead) == 16 && sizeof(LookupTree) == 128 && sizeof(LookupNode) == 128, "layout");
static_assert(sizeof(LookupLeaf) == 16, "layout");

// ---------------------------------------------------------------------------------------------------------------------
// Teams. Members and ranks are not checked unless a function says so.

SYMWIN_BOTH Team team_world(DevComm const& comm) { return Team{comm.n_ranks, comm.rank, 1}; }

SYMWIN_BOTH Team team_lsa(DevComm const& comm) { return Team{comm.lsa_size, comm.lsa_rank, 1}; }

// This rank's piece of `inner` neighbouring members. `inner` divides the members.
SYMWIN_BOTH Team team_inner_factor(Team team, i32 inner) { return Team{inner, team.rank % inner, team.stride}; }

// The members that have this rank's place in their piece of `inner`.
SYMWIN_BOTH Team team_outer_factor(Team team, i32 inner) {
  return Team{team.n_ranks / inner, team.rank / inner, team.stride * inner};
}

// The ranks with this rank's place in each LSA team.
SYMWIN_BOTH Team team_rail(DevComm const& comm) { return team_outer_factor(team_world(comm), comm.lsa_size); }

// How many world ranks member `member` comes after this rank.
SYMWIN_BOTH i32 team_distance(Team team, i32 member) { return (member - team.rank) * team.stride; }

// The world rank of member `member`.
SYMWIN_BOTH i32 team_rank_to_world(DevComm const& comm, Team team, i32 member) {
  return comm.rank + team_distance(team, member);
}

// The LSA rank of member `member`, which must be in the LSA team.
SYMWIN_BOTH i32 team_rank_to_lsa(DevComm const& comm, Team team, i32 member) {
  return comm.lsa_rank + team_distance(team, member);
}

// Which member of `team` member `member` of `of` is; -1 if it is none. Both are teams of this rank.
SYMWIN_BOTH i32 team_rank_to_team(Team team, Team of, i32 member) {
  i32 const distance = team_distance(of, member);
  i32 const steps = distance / team.stride;
  i32 const found = team.rank + steps;
  bool const is_member = steps * team.stride == distance && found >= 0 && found < team.n_ranks;
  return is_member ? found : -1;
}

// Whether member `member` of `of` is in `team`.
SYMWIN_BOTH bool team_rank_is_member(Team team, Team of, i32 member) {
  return team_rank_to_team(team, of, member) >= 0;
}

// Which member of `team` a world rank is; -1 if it is none.
SYMWIN_BOTH i32 world_rank_to_team(DevComm const& comm, Team team, i32 world) {
  return team_rank_to_team(team, team_world(comm), world);
}

// Member number `index`, from 0, of `team` without its part `subset`; -1 if there are not so many.
SYMWIN_BOTH i32 team_rank_in_difference(Team team, Team subset, i32 index) {
  i32 const step = subset.stride / team.stride;
  i32 const first = team.rank - subset.rank * step;
  i32 skipped = 0;
  if (index >= first) {
    // After each of the subset's members but the last, `step - 1` others come.
    i32 const gaps = step > 1 ? (index - first) / (step - 1) : subset.n_ranks;
    skipped = gaps < subset.n_ranks ? gaps + 1 : subset.n_ranks;
  }
  return index + skipped < team.n_ranks ? index + skipped : -1;
}

// ---------------------------------------------------------------------------------------------------------------------
// Pointers. Offsets are in bytes from the window's start. Nothing is checked: a peer outside of the LSA team gives an
// address where nothing is mapped. The product wraps at 32 bits and only the high half of an address changes, as in
// symwin's src/device/pointer.rs.

namespace detail {

SYMWIN_BOTH u64 strided(u64 base, u32 stride_4g, i32 peer) {
  return base + (static_cast<u64>(static_cast<u32>(peer) * stride_4g) << 32);
}

template <class T>
SYMWIN_BOTH T* to_pointer(u64 address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace detail

// Of LSA rank `peer`.
template <class T = void>
SYMWIN_BOTH T* lsa_pointer(Window const& window, u64 offset, i32 peer) {
  return detail::to_pointer<T>(detail::strided(window.lsa_flat_base, window.stride_4g, peer) + offset);
}

// Of this rank.
template <class T = void>
SYMWIN_BOTH T* local_pointer(Window const& window, u64 offset) {
  return lsa_pointer<T>(window, offset, window.lsa_rank);
}

// Of world rank `peer`, which must be in the LSA team.
template <class T = void>
SYMWIN_BOTH T* world_pointer(Window const& window, u64 offset, i32 peer) {
  return lsa_pointer<T>(window, offset, window.lsa_rank + (peer - window.world_rank));
}

// Of the team's member `peer`, which must be in the LSA team.
template <class T = void>
SYMWIN_BOTH T* team_pointer(Window const& window, u64 offset, Team team, i32 peer) {
  return lsa_pointer<T>(window, offset, window.lsa_rank + team_distance(team, peer));
}

// Of all members of the object's team at once: for multimem instructions only.
template <class T = void>
SYMWIN_BOTH T* multimem_pointer(Window const& window, u64 offset, MultimemHandle object) {
  return detail::to_pointer<T>(object.base + (static_cast<u64>(window.mc_offset_4k) << 12) + offset);
}

template <class T = void>
SYMWIN_BOTH T* lsa_multimem_pointer(DevComm const& comm, Window const& window, u64 offset) {
  return multimem_pointer<T>(window, offset, comm.lsa_multimem);
}

// The same in resource buffer `buffer` (a handle in units of 128 bytes, as the host gives it).
template <class T = void>
SYMWIN_BOTH T* resource_lsa_pointer(DevComm const& comm, u32 buffer, i32 peer) {
  u64 const base = detail::strided(comm.resource.lsa_flat_base, comm.resource.stride_4g, peer);
  return detail::to_pointer<T>(base + static_cast<u64>(buffer) * resource_unit_bytes);
}

template <class T = void>
SYMWIN_BOTH T* resource_local_pointer(DevComm const& comm, u32 buffer) {
  return resource_lsa_pointer<T>(comm, buffer, comm.lsa_rank);
}

template <class T = void>
SYMWIN_BOTH T* resource_world_pointer(DevComm const& comm, u32 buffer, i32 peer) {
  return resource_lsa_pointer<T>(comm, buffer, comm.lsa_rank + (peer - comm.rank));
}

template <class T = void>
SYMWIN_BOTH T* resource_team_pointer(DevComm const& comm, u32 buffer, Team team, i32 peer) {
  return resource_lsa_pointer<T>(comm, buffer, team_rank_to_lsa(comm, team, peer));
}

template <class T = void>
SYMWIN_BOTH T* resource_multimem_pointer(DevComm const& comm, u32 buffer, MultimemHandle object) {
  u64 const base = object.base + (static_cast<u64>(comm.resource.mc_offset_4k) << 12);
  return detail::to_pointer<T>(base + static_cast<u64>(buffer) * resource_unit_bytes);
}

template <class T = void>
SYMWIN_BOTH T* resource_lsa_multimem_pointer(DevComm const& comm, u32 buffer) {
  return resource_multimem_pointer<T>(comm, buffer, comm.lsa_multimem);
}

#ifdef SYMWIN_DEVICE

// ---------------------------------------------------------------------------------------------------------------------
// Memory instructions, all of system scope: peers are other devices. Addresses are in global memory. What orders others
// (acquire, release, fences) also orders the compiler.

struct alignas(16) U32x4 {
  u32 x, y, z, w;
};
struct alignas(16) U64x2 {
  u64 x, y;
};
struct alignas(16) F32x4 {
  float x, y, z, w;
};

SYMWIN_DEVICE u32 ld_relaxed(u32 const* from) {
  u32 value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
}

SYMWIN_DEVICE u64 ld_relaxed(u64 const* from) {
  u64 value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from));
  return value;
}

// Each half is one access.
SYMWIN_DEVICE U64x2 ld_relaxed(U64x2 const* from) {
  U64x2 value;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(value.x), "=l"(value.y) : "l"(from));
  return value;
}

// Each word is one access.
SYMWIN_DEVICE U32x4 ld_relaxed(U32x4 const* from) {
  U32x4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

SYMWIN_DEVICE u32 ld_acquire(u32 const* from) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

SYMWIN_DEVICE u64 ld_acquire(u64 const* from) {
  u64 value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

SYMWIN_DEVICE U64x2 ld_acquire(U64x2 const* from) {
  U64x2 value;
  asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(value.x), "=l"(value.y) : "l"(from) : "memory");
  return value;
}

SYMWIN_DEVICE void st_relaxed(u32* to, u32 value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

SYMWIN_DEVICE void st_relaxed(u64* to, u64 value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

SYMWIN_DEVICE void st_relaxed(U64x2* to, U64x2 value) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(value.x), "l"(value.y) : "memory");
}

SYMWIN_DEVICE void st_relaxed(U32x4* to, U32x4 value) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

SYMWIN_DEVICE void st_release(u32* to, u32 value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

SYMWIN_DEVICE void st_release(u64* to, u64 value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

SYMWIN_DEVICE void red_add_relaxed(u32* to, u32 value) {
  asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

SYMWIN_DEVICE void red_add_release(u32* to, u32 value) {
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

SYMWIN_DEVICE u32 atom_add_acq_rel(u32* to, u32 value) {
  u32 before;
  asm volatile("atom.acq_rel.sys.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(to), "r"(value) : "memory");
  return before;
}

SYMWIN_DEVICE void fence_acq_rel_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

SYMWIN_DEVICE void nanosleep(u32 ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }

// Nanoseconds of a clock that all SMs of the device share.
SYMWIN_DEVICE u64 globaltimer() {
  u64 ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// Multicast instructions, where the device has them (sm_90 on). Addresses are those of `multimem_pointer`. Loads
// take the minimum and maximum of 16-bit floating point alone, and make its sums in 32 bits; reductions into memory
// have sums alone. Values of f16x2 and bf16x2 are u32, the lower element in the lower half.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

SYMWIN_DEVICE void multimem_red_add_relaxed(u32* to, u32 value) {
  asm volatile("multimem.red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

SYMWIN_DEVICE void multimem_red_add_release(u32* to, u32 value) {
  asm volatile("multimem.red.release.sys.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

SYMWIN_DEVICE float multimem_ld_reduce_add_f32(float const* from) {
  float value;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
  return value;
}

SYMWIN_DEVICE F32x4 multimem_ld_reduce_add_f32x4(F32x4 const* from) {
  F32x4 value;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(from)
               : "memory");
  return value;
}

SYMWIN_DEVICE double multimem_ld_reduce_add_f64(double const* from) {
  double value;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f64 %0, [%1];" : "=d"(value) : "l"(from) : "memory");
  return value;
}

SYMWIN_DEVICE u32 multimem_ld_reduce_add_u32(u32 const* from) {
  u32 value;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

SYMWIN_DEVICE u64 multimem_ld_reduce_add_u64(u64 const* from) {
  u64 value;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

// One packed pair, and four of them, for an operation and a type.
#define SYMWIN_LD_REDUCE_16(name, op, type)                                                               \
  SYMWIN_DEVICE u32 multimem_ld_reduce_##name(u32 const* from) {                                          \
    u32 value;                                                                                            \
    asm volatile("multimem.ld_reduce.relaxed.sys.global." op "." type " %0, [%1];"                        \
                 : "=r"(value)                                                                            \
                 : "l"(from)                                                                              \
                 : "memory");                                                                             \
    return value;                                                                                         \
  }                                                                                                       \
  SYMWIN_DEVICE U32x4 multimem_ld_reduce_##name##_x4(U32x4 const* from) {                                 \
    U32x4 value;                                                                                          \
    asm volatile("multimem.ld_reduce.relaxed.sys.global." op ".v4." type " {%0, %1, %2, %3}, [%4];"       \
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)                             \
                 : "l"(from)                                                                              \
                 : "memory");                                                                             \
    return value;                                                                                         \
  }

SYMWIN_LD_REDUCE_16(add_f16x2, "add.acc::f32", "f16x2")
SYMWIN_LD_REDUCE_16(min_f16x2, "min", "f16x2")
SYMWIN_LD_REDUCE_16(max_f16x2, "max", "f16x2")
SYMWIN_LD_REDUCE_16(add_bf16x2, "add.acc::f32", "bf16x2")
SYMWIN_LD_REDUCE_16(min_bf16x2, "min", "bf16x2")
SYMWIN_LD_REDUCE_16(max_bf16x2, "max", "bf16x2")
#undef SYMWIN_LD_REDUCE_16

SYMWIN_DEVICE void multimem_st_u32(u32* to, u32 value) {
  asm volatile("multimem.st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

SYMWIN_DEVICE void multimem_st_u64(u64* to, u64 value) {
  asm volatile("multimem.st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

SYMWIN_DEVICE void multimem_st_f32(float* to, float value) {
  asm volatile("multimem.st.relaxed.sys.global.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

SYMWIN_DEVICE void multimem_st_f64(double* to, double value) {
  asm volatile("multimem.st.relaxed.sys.global.f64 [%0], %1;" ::"l"(to), "d"(value) : "memory");
}

SYMWIN_DEVICE void multimem_st_f32x4(F32x4* to, F32x4 value) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(value.x), "f"(value.y),
               "f"(value.z), "f"(value.w)
               : "memory");
}

// 16 bytes as they are, whatever their type: the instruction wants one, and stores bits.
SYMWIN_DEVICE void multimem_st_x4(U32x4* to, U32x4 value) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f16x2 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

SYMWIN_DEVICE void multimem_red_add_f32(float* to, float value) {
  asm volatile("multimem.red.relaxed.sys.global.add.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

SYMWIN_DEVICE void multimem_red_add_f32x4(F32x4* to, F32x4 value) {
  asm volatile("multimem.red.relaxed.sys.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

SYMWIN_DEVICE void multimem_red_add_f64(double* to, double value) {
  asm volatile("multimem.red.relaxed.sys.global.add.f64 [%0], %1;" ::"l"(to), "d"(value) : "memory");
}

#define SYMWIN_RED_ADD_16(type)                                                                             \
  SYMWIN_DEVICE void multimem_red_add_##type(u32* to, u32 value) {                                          \
    asm volatile("multimem.red.relaxed.sys.global.add." #type " [%0], %1;" ::"l"(to), "r"(value)            \
                 : "memory");                                                                               \
  }                                                                                                         \
  SYMWIN_DEVICE void multimem_red_add_##type##_x4(U32x4* to, U32x4 value) {                                 \
    asm volatile("multimem.red.relaxed.sys.global.add.v4." #type " [%0], {%1, %2, %3, %4};" ::"l"(to),      \
                 "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)                                     \
                 : "memory");                                                                               \
  }

SYMWIN_RED_ADD_16(f16x2)
SYMWIN_RED_ADD_16(bf16x2)
#undef SYMWIN_RED_ADD_16

#endif  // sm_90

// ---------------------------------------------------------------------------------------------------------------------
// Groups of threads. `sync` waits for all of the group; `all` does so too and says whether `flag` was true on all.

struct Thread {
  SYMWIN_DEVICE u32 rank() const { return 0; }
  SYMWIN_DEVICE u32 size() const { return 1; }
  SYMWIN_DEVICE void sync() const {}
  SYMWIN_DEVICE bool all(bool flag) const { return flag; }
};

// All 32 lanes.
struct Warp {
  SYMWIN_DEVICE u32 rank() const {
    u32 lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
  }
  SYMWIN_DEVICE u32 size() const { return 32; }
  SYMWIN_DEVICE void sync() const { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
  SYMWIN_DEVICE bool all(bool flag) const {
    u32 result;
    asm volatile(
        "{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\tbar.warp.sync 0xffffffff;\n\t"
        "vote.sync.all.pred q, p, 0xffffffff;\n\tselp.u32 %0, 1, 0, q;\n\t}"
        : "=r"(result)
        : "r"(static_cast<u32>(flag))
        : "memory");
    return result != 0;
  }
};

// All threads of the block. Uses the block's barrier 0, as `__syncthreads` does.
struct Cta {
  SYMWIN_DEVICE u32 rank() const {
    u32 x, y, z, nx, ny;
    asm("mov.u32 %0, %%tid.x;" : "=r"(x));
    asm("mov.u32 %0, %%tid.y;" : "=r"(y));
    asm("mov.u32 %0, %%tid.z;" : "=r"(z));
    asm("mov.u32 %0, %%ntid.x;" : "=r"(nx));
    asm("mov.u32 %0, %%ntid.y;" : "=r"(ny));
    return x + nx * (y + ny * z);
  }
  SYMWIN_DEVICE u32 size() const {
    u32 nx, ny, nz;
    asm("mov.u32 %0, %%ntid.x;" : "=r"(nx));
    asm("mov.u32 %0, %%ntid.y;" : "=r"(ny));
    asm("mov.u32 %0, %%ntid.z;" : "=r"(nz));
    return nx * ny * nz;
  }
  SYMWIN_DEVICE void sync() const { asm volatile("bar.sync 0;" ::: "memory"); }
  SYMWIN_DEVICE bool all(bool flag) const {
    u32 result;
    asm volatile(
        "{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\tbar.red.and.pred q, 0, p;\n\t"
        "selp.u32 %0, 1, 0, q;\n\t}"
        : "=r"(result)
        : "r"(static_cast<u32>(flag))
        : "memory");
    return result != 0;
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Waits.

enum class Order { relaxed, acquire, release, acq_rel };

SYMWIN_DEVICE constexpr bool acquires(Order order) { return order == Order::acquire || order == Order::acq_rel; }
SYMWIN_DEVICE constexpr bool releases(Order order) { return order == Order::release || order == Order::acq_rel; }

// Whether the communicator has failed: kernels should end then.
SYMWIN_DEVICE bool is_aborted(DevComm const& comm) {
  return comm.abort_flag != 0 && ld_relaxed(detail::to_pointer<u32 const>(comm.abort_flag)) != 0;
}

// When a wait gives up: once the communicator has failed, or after a time. It is asked after each look that was in
// vain, and most times answers at once: the flag may lie in host memory, and looking at it costs more than the wait.
// Who counts the looks in a loop of its own asks `check` after `looks_per_check` of them.
class Patience {
 public:
  static constexpr u32 looks_per_check = 64;

  SYMWIN_DEVICE Patience(u64 abort_flag, u64 timeout_ns) : abort_flag_(abort_flag), timeout_ns_(timeout_ns) {}

  SYMWIN_DEVICE bool is_over() {
    looks_ += 1;
    return looks_ % looks_per_check == 0 && check();
  }

  SYMWIN_DEVICE bool check() {
    if (abort_flag_ != 0 && ld_relaxed(detail::to_pointer<u32 const>(abort_flag_)) != 0) return true;
    if (timeout_ns_ == 0) return false;
    u64 const now = globaltimer();
    if (start_ns_ == 0) start_ns_ = now;
    return now - start_ns_ >= timeout_ns_;
  }

 private:
  u64 abort_flag_;
  u64 timeout_ns_;
  u64 start_ns_ = 0;
  u32 looks_ = 0;
};

// ---------------------------------------------------------------------------------------------------------------------
// The LSA barrier. The memory is that of symwin's src/device/barrier.rs: for n barriers and R ranks, words of 32 bits,
//   0..n     multicast epoch of barrier i
//   n..2n    unicast epoch
//   2n..3n   multicast inbox
//   3n+i*R+p unicast inbox, written by peer p
// Epochs wrap and start at 0. Unicast: to arrive is to store the next epoch into one's own slot of every peer's inbox;
// to wait is to see it in all slots of one's own. Multimem: to arrive is to add 1 to every rank's multicast inbox at
// once; to wait is to see R more in one's own. The two modes share no word, so a barrier may be used in one mode and
// then in the other; all ranks must use the same. (Host kernels use the multicast words for other things: a barrier
// that they use is not used in multimem mode.)
//
// `release` makes what the group wrote before `arrive` seen by peers after an `acquire`ing `wait`; `sync` does both
// with its order's halves, so `acq_rel` is what most want.
//
// A wait returns false, on all threads of the group, when it gave up: the communicator failed or time was over. The
// round is then not complete, the epoch has not moved, and it may be waited for again.
template <class Group>
class LsaBarrier {
 public:
  // Group. On barrier `index` of the device communicator. Multimem is used where it is asked for and there is a
  // multicast object, which all ranks have or none.
  SYMWIN_DEVICE LsaBarrier(Group group, DevComm const& comm, u32 index, bool multimem = false)
      : LsaBarrier(group, comm, team_lsa(comm), comm.lsa_barrier, index, multimem, comm.lsa_multimem) {}

  // Group. The same for a team within the LSA team, with a handle that was made for so many ranks, and the team's
  // own multicast object.
  SYMWIN_DEVICE LsaBarrier(Group group, DevComm const& comm, Team team, LsaBarrierHandle handle, u32 index,
                           bool multimem = false, MultimemHandle object = MultimemHandle{0})
      : group_(group), comm_(comm), team_(team), handle_(handle), index_(index), object_(object) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    multimem_ = false;
#else
    multimem_ = multimem && object.base != 0;
#endif
    own_ = resource_local_pointer<u32>(comm, handle.buffer);
    epoch_ = ld_relaxed(epoch_word());
    // The rest is worked out while the epoch is on its way, once: rounds are too short for it.
    first_ = group.rank();
    size_ = group.size();
    outbox_ = outbox(first_);
    inbox_ = inbox(first_);
  }

  LsaBarrier(LsaBarrier const&) = delete;
  LsaBarrier& operator=(LsaBarrier const&) = delete;

  SYMWIN_DEVICE ~LsaBarrier() { end(); }

  // Group. Stores the epoch for the next session. Nothing else may be called after it.
  SYMWIN_DEVICE void end() {
    if (ended_) return;
    end_with_kernel();
    group_.sync();
  }

  // Group. The same where no other session is on this barrier in this kernel: nobody waits for the store, so it may be
  // called as soon as the last round is complete.
  SYMWIN_DEVICE void end_with_kernel() {
    if (ended_) return;
    ended_ = true;
    // Each thread has read the epoch by now only if it has passed here, or in `arrive`.
    if (!has_arrived_) group_.sync();
    if (first_ == 0) st_relaxed(epoch_word(), epoch_);
  }

  // Group. Tells the peers. Never waits for them.
  SYMWIN_DEVICE void arrive(Order order = Order::acq_rel) {
    group_.sync();
    has_arrived_ = true;
    if (multimem_) {
      arrive_multimem(order);
      return;
    }
    if (first_ >= peers()) return;
    u32 const next = epoch_ + 1;
    if (first_ + size_ >= peers()) {
      // This thread's only peer.
      if (releases(order)) {
        st_release(outbox_, next);
      } else {
        st_relaxed(outbox_, next);
      }
      return;
    }
    // One fence for several stores.
    if (releases(order)) fence_acq_rel_sys();
    for (u32 i = first_; i < peers(); i += size_) st_relaxed(outbox(i), next);
  }

  // Group. Waits for the peers, as long as the device communicator says.
  SYMWIN_DEVICE bool wait(Order order = Order::acq_rel) { return wait_for(order, comm_.timeout_ns); }

  // Group. The same for `timeout_ns`, 0 for as long as it takes.
  SYMWIN_DEVICE bool wait_for(Order order, u64 timeout_ns) {
    Patience patience(comm_.abort_flag, timeout_ns);
    u32 const step = multimem_ ? static_cast<u32>(team_.n_ranks) : 1;
    u32 const next = epoch_ + step;
    // As numbers: NVRTC 12 packs and unpacks a bool on its way to `all`.
    u32 is_there = 1;
    if (multimem_) {
      if (first_ == 0) is_there = poll(own_ + 2 * n() + index_, next, order, patience);
    } else if (first_ < peers()) {
      is_there = poll(inbox_, next, order, patience);
      // Only a thread with several peers has a loop: what comes behind the last look is in every round's time.
      for (u32 i = first_ + size_; i < peers() && is_there != 0; i += size_) {
        is_there = poll(inbox(i), next, order, patience);
      }
    }
    if (!group_.all(is_there != 0)) return false;
    epoch_ = next;
    return true;
  }

  // Group. `arrive` and `wait`.
  SYMWIN_DEVICE bool sync(Order order = Order::acq_rel) {
    arrive(order);
    return wait(order);
  }

  // Group. The same with a bound.
  SYMWIN_DEVICE bool sync_for(Order order, u64 timeout_ns) {
    arrive(order);
    return wait_for(order, timeout_ns);
  }

  // How many rounds are complete, modulo 2^32; in multimem mode, times the number of ranks.
  SYMWIN_DEVICE u32 epoch() const { return epoch_; }

  SYMWIN_DEVICE bool is_multimem() const { return multimem_; }

 private:
  SYMWIN_DEVICE u32 n() const { return static_cast<u32>(handle_.n_barriers); }

  SYMWIN_DEVICE u32 peers() const { return static_cast<u32>(team_.n_ranks - 1); }

  SYMWIN_DEVICE u32* epoch_word() const { return own_ + (multimem_ ? 0 : n()) + index_; }

  // The i-th peer: first the next rank, so that not all ranks store to the same one at once.
  SYMWIN_DEVICE i32 peer(u32 i) const {
    i32 const rank = team_.rank + 1 + static_cast<i32>(i);
    return rank < team_.n_ranks ? rank : rank - team_.n_ranks;
  }

  SYMWIN_DEVICE u32 inbox_of(i32 from) const {
    return 3 * n() + index_ * static_cast<u32>(team_.n_ranks) + static_cast<u32>(from);
  }

  SYMWIN_DEVICE u32 const* inbox(u32 i) const { return own_ + inbox_of(peer(i)); }

  SYMWIN_DEVICE u32* outbox(u32 i) const {
    return resource_team_pointer<u32>(comm_, handle_.buffer, team_, peer(i)) + inbox_of(team_.rank);
  }

  SYMWIN_DEVICE void arrive_multimem(Order order) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (first_ != 0) return;
    u32* const inboxes = resource_multimem_pointer<u32>(comm_, handle_.buffer, object_) + 2 * n() + index_;
    if (releases(order)) {
      multimem_red_add_release(inboxes, 1);
    } else {
      multimem_red_add_relaxed(inboxes, 1);
    }
#endif
  }

  // Looks until `word` is `awaited` or later, on a circle of 2^32.
  static SYMWIN_DEVICE u32 poll(u32 const* word, u32 awaited, Order order, Patience& patience) {
    do {
#pragma unroll 1
      for (u32 look = 0; look < Patience::looks_per_check; ++look) {
        u32 const got = acquires(order) ? ld_acquire(word) : ld_relaxed(word);
        if (got - awaited <= 0x7fffffffu) return 1;
      }
    } while (!patience.check());
    return 0;
  }

  Group group_;
  DevComm const& comm_;
  Team team_;
  LsaBarrierHandle handle_;
  u32 index_;
  MultimemHandle object_;
  bool multimem_;
  bool has_arrived_ = false;
  bool ended_ = false;
  u32* own_;
  u32 epoch_;
  u32 first_;  // this thread in the group, which is also the first peer that it sees to
  u32 size_;   // of the group, which is from one of its peers to the next
  u32* outbox_;
  u32 const* inbox_;
};

// ---------------------------------------------------------------------------------------------------------------------
// The low-latency all-to-all. The memory is that of symwin's src/device/ll_a2a.rs: for each block, lines of 16 bytes:
// one whose first word counts the epochs completed, then two banks of slots, for even and for odd epochs. A slot holds
// 8 bytes of a value as two halves, each beside the number of its epoch, written as one access of 8 bytes each (one
// store of 16): who sees the epoch in both has the value whole. Epochs begin with 2 and skip 0 and 1 when they wrap.
//
// Only the values themselves are sent: what was written elsewhere before is not ordered by them (host kernels' sessions
// promise more).
//
// **Every rank receives at least one value from every other rank in every epoch.** That tells it that they are done
// with the epoch before, whose bank is the next one's.
template <class Group>
class LlA2a {
 public:
  // Group. On block `block` of the device communicator's buffers.
  SYMWIN_DEVICE LlA2a(Group group, DevComm const& comm, u32 block)
      : LlA2a(group, comm, team_lsa(comm), comm.ll_a2a, block) {}

  // Group. The same for a team within the LSA team.
  SYMWIN_DEVICE LlA2a(Group group, DevComm const& comm, Team team, LlA2aHandle handle, u32 block)
      : group_(group), comm_(comm), team_(team), handle_(handle) {
    state_line_ = block * (1 + 2 * handle.n_slots);
    own_ = resource_local_pointer<U64x2>(comm, handle.buffer);
    epoch_ = ld_relaxed(state()) + first_epoch;
  }

  LlA2a(LlA2a const&) = delete;
  LlA2a& operator=(LlA2a const&) = delete;

  SYMWIN_DEVICE ~LlA2a() { end(); }

  // Group. Stores the epoch for the next session. Nothing else may be called after it.
  SYMWIN_DEVICE void end() {
    if (ended_) return;
    ended_ = true;
    group_.sync();
    if (group_.rank() == 0) st_relaxed(state(), epoch_ - first_epoch);
    group_.sync();
  }

  // How many slots an element takes: one for each 8 bytes begun.
  template <class T>
  static SYMWIN_DEVICE constexpr u32 slots_of() {
    return static_cast<u32>((sizeof(T) + 7) / 8);
  }

  // How many slots there are.
  SYMWIN_DEVICE u32 slots() const { return handle_.n_slots; }

  SYMWIN_DEVICE u32 epoch() const { return epoch_; }

  // Sends a value to the slots of team member `peer` from `slot` on; `peer` may be this rank. Never waits.
  template <class T>
  SYMWIN_DEVICE void send(i32 peer, u32 slot, T const& value) {
    Words<T> const words(value);
    store(peer, slot, words);
  }

  // The same to every member, this rank included.
  template <class T>
  SYMWIN_DEVICE void broadcast(u32 slot, T const& value) {
    Words<T> const words(value);
    for (i32 i = 0; i < team_.n_ranks; ++i) {
      i32 const peer = team_.rank + i;
      store(peer < team_.n_ranks ? peer : peer - team_.n_ranks, slot, words);
    }
  }

  // Waits for the value in this rank's slots from `slot` on, as long as the device communicator says. False if it gave
  // up: the communicator failed or time was over. `value` is then as before.
  template <class T>
  SYMWIN_DEVICE bool recv(u32 slot, T& value) {
    return recv_all<1>(slot, 1, 0, &value);
  }

  // The same for `count` values, at most `Max`, `stride` slots apart; looks for all of them at once.
  template <u32 Max, class T>
  SYMWIN_DEVICE bool recv_all(u32 first, u32 count, u32 stride, T* values) {
    Words<T> got[Max];
    Patience patience(comm_.abort_flag, comm_.timeout_ns);
    for (;;) {
      bool is_there = true;
#pragma unroll
      for (u32 i = 0; i < Max; ++i) {
        if (i < count) is_there &= look(first + i * stride, got[i]);
      }
      if (is_there) break;
      if (patience.is_over()) return false;
    }
#pragma unroll
    for (u32 i = 0; i < Max; ++i) {
      if (i < count) values[i] = got[i].value();
    }
    return true;
  }

  // Receives `count` values, `stride` slots apart, in their order into `sum = reduce(sum, value)`; several at once are
  // looked for. False if it gave up; `sum` then lacks some of them.
  template <class T, class Sum, class Reduce>
  SYMWIN_DEVICE bool recv_reduce(u32 first, u32 count, u32 stride, Sum& sum, Reduce reduce) {
    constexpr u32 at_once = 4;
    for (u32 begin = 0; begin < count; begin += at_once) {
      T values[at_once];
      u32 const n = count - begin < at_once ? count - begin : at_once;
      if (!recv_all<at_once>(first + begin * stride, n, stride, values)) return false;
#pragma unroll
      for (u32 i = 0; i < at_once; ++i) {
        if (i < n) sum = reduce(sum, values[i]);
      }
    }
    return true;
  }

  // Group. Ends the epoch and begins the next: all that this rank is sent in it has been received.
  SYMWIN_DEVICE void end_epoch() {
    // No thread may send in the next epoch before all have received in this one.
    group_.sync();
    if (epoch_ >= 0xfffffffeu) {
      // The next time that this bank is used epochs are small again: no flag of old may equal one to come. No peer
      // writes here before it has a value of the next epoch from this rank.
      for (u32 i = group_.rank(); i < handle_.n_slots; i += group_.size()) st_relaxed(own_ + line(i), U64x2{0, 0});
      fence_acq_rel_sys();
      group_.sync();
    }
    epoch_ = epoch_ == 0xffffffffu ? first_epoch : epoch_ + 1;
  }

 private:
  static constexpr u32 first_epoch = 2;

  // A value as words of 8 bytes, the last filled up with zeros.
  template <class T>
  struct Words {
    static constexpr u32 n = static_cast<u32>((sizeof(T) + 7) / 8);
    u64 words[n];
    Words() = default;
    explicit SYMWIN_DEVICE Words(T const& value) {
      words[n - 1] = 0;
      memcpy(words, &value, sizeof(T));
    }
    SYMWIN_DEVICE T value() const {
      T value;
      memcpy(&value, words, sizeof(T));
      return value;
    }
  };

  SYMWIN_DEVICE u32* state() const { return reinterpret_cast<u32*>(own_ + state_line_); }

  SYMWIN_DEVICE u32 line(u32 slot) const { return state_line_ + 1 + (epoch_ % 2) * handle_.n_slots + slot; }

  template <class T>
  SYMWIN_DEVICE void store(i32 peer, u32 slot, Words<T> const& value) const {
    U64x2* const to = resource_team_pointer<U64x2>(comm_, handle_.buffer, team_, peer) + line(slot);
    u64 const flag = static_cast<u64>(epoch_) << 32;
#pragma unroll
    for (u32 i = 0; i < Words<T>::n; ++i) {
      u64 const word = value.words[i];
      st_relaxed(to + i, U64x2{(word & 0xffffffffull) | flag, (word >> 32) | flag});
    }
  }

  // One look: takes what is there and says whether it is of this epoch.
  template <class T>
  SYMWIN_DEVICE bool look(u32 slot, Words<T>& value) const {
    U64x2 const* const from = own_ + line(slot);
    bool is_there = true;
#pragma unroll
    for (u32 i = 0; i < Words<T>::n; ++i) {
      U64x2 const got = ld_relaxed(from + i);
      is_there &= static_cast<u32>(got.x >> 32) == epoch_ && static_cast<u32>(got.y >> 32) == epoch_;
      value.words[i] = (got.x & 0xffffffffull) | (got.y << 32);
    }
    return is_there;
  }

  Group group_;
  DevComm const& comm_;
  Team team_;
  LlA2aHandle handle_;
  u32 state_line_;
  U64x2* own_;
  u32 epoch_;
  bool ended_ = false;
};

// ---------------------------------------------------------------------------------------------------------------------
// The window of an address.

namespace detail {

// How many of a node's keys are `address` or less: they are in order, so that is which child, from 1. All loads go out
// together: they are one cache line.
SYMWIN_DEVICE u32 keys_up_to(u64 node, u64 address) {
  U64x2 const* const pairs = to_pointer<U64x2 const>(node);
  U64x2 keys[8];
#pragma unroll
  for (u32 i = 0; i < 8; ++i) keys[i] = ld_relaxed(pairs + i);
  // Each comparison waits for the last key, which is what makes the compiler send out all loads before it waits for
  // any: it would rather save registers and wait three times.
  u64 const bound = keys[7].y <= address ? ~0ull : address;
  u32 n = 0;
#pragma unroll
  for (u32 i = 0; i < 8; ++i) n += (keys[i].x <= bound) + (keys[i].y <= bound);
  return n;
}

// A tree of `n` leaves has, from the bottom up, nodes for 16 leaves, for 16 of these nodes, and so on to one root. So
// the number of nodes on each level follows from `n`, which is one word with the number of levels: what is read never
// leaves the tree's memory, even when that is being written anew and its words do not fit together.
SYMWIN_DEVICE u64 search_tree(u64 tree, u64 address) {
  u64 const counts = ld_relaxed(to_pointer<u64 const>(tree));
  u64 nodes = tree + sizeof(LookupTree);
  u32 at = 0, level = static_cast<u32>(counts >> 32);
  do {
    // The root is read, and may be garbage, before the counts are known.
    u32 const children = keys_up_to(nodes + static_cast<u64>(at) * sizeof(LookupNode), address);
    if (children == 0 || static_cast<u32>(counts) == 0) return 0;
    level -= 1;
    u32 const last_leaf = static_cast<u32>(counts) - 1;
    u32 const last_child = last_leaf >> (4 * level);
    at = at * 16 + children - 1;
    at = at < last_child ? at : last_child;
    nodes += (static_cast<u64>(last_leaf >> (4 * level + 4)) + 1) * sizeof(LookupNode);
  } while (level != 0);
  // Acquire: what is read behind this, the sequence above all, is read after it, and it was read after the nodes, since
  // its address came out of them.
  U64x2 const leaf = ld_acquire(to_pointer<U64x2 const>(nodes) + at);
  return address < leaf.x ? leaf.y : 0;
}

SYMWIN_DEVICE u64 search_table(u64 table, u64 address) {
  u64 best = 0, best_base = 0, best_size = 0;
  for (u64 chunk = table; chunk != 0; chunk = ld_acquire(&to_pointer<WindowTable const>(chunk)->next)) {
    WindowTableEntry const* const entries = to_pointer<WindowTable const>(chunk)->entries;
    for (u32 i = 0; i < table_entries; ++i) {
      // The pointer first: it is published last and withdrawn first.
      u64 const window = ld_acquire(&entries[i].window);
      u64 const base = ld_relaxed(&entries[i].base), size = ld_relaxed(&entries[i].size);
      if (window == 0 || address < base || address - base >= size) continue;
      if (best == 0 || base > best_base || (base == best_base && size <= best_size)) {
        best = window, best_base = base, best_size = size;
      }
    }
  }
  return best;
}

}  // namespace detail

// The window that `pointer` lies in, nullptr if there is none. `pointer` is an address of this rank's own buffer as its
// owner knows it. Of several windows it is the one that the host's lookup gives: the one with the greatest base, of
// those the smallest, of those the one registered last.
//
// By the tree where the host keeps one: 4 + levels loads that wait for each other, where levels is 1 up to 16 leaves, 2
// up to 256, 3 up to 4,096 (windows that do not overlap have a leaf each, others less than two). The host
// builds a tree in one of two places while the other is searched, and counts its publications before it begins: who
// sees another count after the search than before it may have searched a place that was being written, and searches
// again. So a lookup never waits for the host.
// Without a tree it walks the window table, which takes time for every window.
SYMWIN_DEVICE Window const* find_window(DevComm const& comm, void const* pointer) {
  u64 const address = reinterpret_cast<u64>(pointer);
  if (comm.lookup == 0) {
    return detail::to_pointer<Window const>(detail::search_table(comm.window_table, address));
  }
  LookupHead const* const head = detail::to_pointer<LookupHead const>(comm.lookup);
  for (;;) {
    u64 const before = ld_acquire(&head->sequence);
    u64 const tree = ld_acquire(&head->tree);
    u64 const window = tree == 0 ? 0 : detail::search_tree(tree, address);
    if (ld_relaxed(&head->sequence) == before) return detail::to_pointer<Window const>(window);
  }
}

#endif  // SYMWIN_DEVICE

}  // namespace symwin

#endif  // SYMWIN_CUH
