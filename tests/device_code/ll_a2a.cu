// Every member of the LL all-to-all, for elements of all kinds of sizes.
#include <symwin.cuh>

using namespace symwin;

struct Five {
  float x[5];
};

struct Odd {
  char x[3];
};

template <class Group, class T>
__device__ void epoch(LlA2a<Group>& session, DevComm const& comm, T& value) {
  constexpr u32 n = LlA2a<Group>::template slots_of<T>();
  session.send((comm.lsa_rank + 1) % comm.lsa_size, n * Group().rank(), value);
  session.broadcast(n * Group().rank(), value);
  session.recv(n, value);
  session.end_epoch();
}

template <class Group>
__device__ void all(DevComm const& comm, char* bytes, float* sums) {
  LlA2a<Group> session(Group(), comm, blockIdx.x);
  epoch(session, comm, *bytes);
  epoch(session, comm, *reinterpret_cast<Odd*>(bytes));
  epoch(session, comm, *reinterpret_cast<float*>(bytes));
  epoch(session, comm, *reinterpret_cast<double*>(bytes));
  epoch(session, comm, *reinterpret_cast<Five*>(bytes));
  float values[4];
  session.template recv_all<4>(0, 3, 2, values);
  float sum = values[0];
  session.template recv_reduce<float>(0, comm.lsa_size, session.slots() / comm.lsa_size, sum,
                                      [](float a, float b) { return a + b; });
  *sums = sum + session.epoch();
}

extern "C" __global__ void a2a_thread(DevComm comm, char* bytes, float* sums) { all<Thread>(comm, bytes, sums); }
extern "C" __global__ void a2a_warp(DevComm comm, char* bytes, float* sums) { all<Warp>(comm, bytes, sums); }
extern "C" __global__ void a2a_cta(DevComm comm, char* bytes, float* sums) { all<Cta>(comm, bytes, sums); }

extern "C" __global__ void of_a_team(DevComm comm, LlA2aHandle handle, u64* value) {
  LlA2a<Warp> session(Warp(), comm, team_outer_factor(team_lsa(comm), 2), handle, 0);
  session.broadcast(0, *value);
  session.recv(0, *value);
  session.end();
}
