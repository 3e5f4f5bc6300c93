// Lookups, pointers and teams.
#include <symwin.cuh>

using namespace symwin;

extern "C" __global__ void find(DevComm comm, void const* pointer, Window const** found) {
  *found = find_window(comm, pointer);
}

extern "C" __global__ void window_pointers(DevComm comm, Window const* window, u64 offset, i32 peer, void** out) {
  out[0] = local_pointer(*window, offset);
  out[1] = lsa_pointer<float>(*window, offset, peer);
  out[2] = world_pointer(*window, offset, peer);
  out[3] = team_pointer(*window, offset, team_rail(comm), peer);
  out[4] = lsa_multimem_pointer<u64>(comm, *window, offset);
}

extern "C" __global__ void resource_pointers(DevComm comm, u32 buffer, i32 peer, void** out) {
  out[0] = resource_local_pointer<u32>(comm, buffer);
  out[1] = resource_lsa_pointer(comm, buffer, peer);
  out[2] = resource_world_pointer(comm, buffer, peer);
  out[3] = resource_team_pointer(comm, buffer, team_world(comm), peer);
  out[4] = resource_lsa_multimem_pointer(comm, buffer);
}

extern "C" __global__ void teams(DevComm comm, i32 rank, i32* out) {
  Team const lsa = team_lsa(comm), rail = team_rail(comm);
  out[0] = team_rank_to_world(comm, rail, rank);
  out[1] = team_rank_to_lsa(comm, team_inner_factor(lsa, 2), rank);
  out[2] = team_rank_to_team(lsa, rail, rank);
  out[3] = team_rank_is_member(lsa, rail, rank);
  out[4] = world_rank_to_team(comm, lsa, rank);
  out[5] = team_rank_in_difference(lsa, team_outer_factor(lsa, 2), rank);
}
