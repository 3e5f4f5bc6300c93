// Every member of the LSA barrier, for every group of threads.
#include <symwin.cuh>

using namespace symwin;

template <class Group>
__device__ void rounds(DevComm const& comm, u32 index, bool multimem, u32* results) {
  LsaBarrier<Group> barrier(Group(), comm, index, multimem);
  bool ok = barrier.sync();
  barrier.arrive(Order::relaxed);
  ok &= barrier.wait(Order::acquire);
  barrier.arrive(Order::release);
  ok &= barrier.wait_for(Order::relaxed, 1000);
  ok &= barrier.sync_for(Order::acq_rel, 1000);
  results[Group().rank()] = ok && !barrier.is_multimem() ? barrier.epoch() : 0;
}

extern "C" __global__ void unicast_thread(DevComm comm, u32* results) { rounds<Thread>(comm, 0, false, results); }
extern "C" __global__ void unicast_warp(DevComm comm, u32* results) { rounds<Warp>(comm, 1, false, results); }
extern "C" __global__ void unicast_cta(DevComm comm, u32* results) { rounds<Cta>(comm, 2, false, results); }
extern "C" __global__ void multimem_thread(DevComm comm, u32* results) { rounds<Thread>(comm, 0, true, results); }
extern "C" __global__ void multimem_warp(DevComm comm, u32* results) { rounds<Warp>(comm, 1, true, results); }
extern "C" __global__ void multimem_cta(DevComm comm, u32* results) { rounds<Cta>(comm, 2, true, results); }

extern "C" __global__ void of_a_team(DevComm comm, LsaBarrierHandle handle, MultimemHandle object) {
  Team const pairs = team_inner_factor(team_lsa(comm), 2);
  LsaBarrier<Cta> barrier(Cta(), comm, pairs, handle, 0, true, object);
  barrier.sync();
  barrier.end_with_kernel();
}

// The least that a barrier comes to, for those who count.
extern "C" __global__ void least(DevComm comm) {
  LsaBarrier<Cta> barrier(Cta(), comm, blockIdx.x);
  barrier.sync();
}
