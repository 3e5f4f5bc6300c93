//! The pointer arithmetic of kernels over a window's bytes. Pure: nothing is read, nothing is checked.
//!
//! Ranks' copies lie a multiple of 4 GiB apart, so a peer's address is an add to the high 32 bits of one's own.
//! Offsets are in bytes from the window's start, results are addresses in this rank's flat range. A peer that
//! is not in the LSA team gives an address where nothing is mapped, as it does in a kernel; who wants a check
//! uses [`DeviceWindow`](super::window::DeviceWindow).

use crate::device::abi::{MultimemHandle, RESOURCE_UNIT_BYTES, ResourceWindow, TeamStruct, Window};

/// `address` plus `count` times 4 GiB: only the high 32 bits change.
#[must_use]
pub const fn add_4g(address: u64, count: u32) -> u64 {
    address.wrapping_add((count as u64) << 32)
}

/// The address of this rank's own copy.
#[must_use]
pub const fn local(window: &Window, offset: u64) -> u64 {
    lsa(window, offset, window.lsa_rank)
}

/// The address of the copy of LSA rank `peer`.
#[must_use]
pub const fn lsa(window: &Window, offset: u64, peer: i32) -> u64 {
    strided(window.lsa_flat_base, window.stride_4g, peer).wrapping_add(offset)
}

/// The address of the copy of world rank `peer`, which must be in the LSA team.
#[must_use]
pub const fn world(window: &Window, offset: u64, peer: i32) -> u64 {
    lsa(window, offset, window.lsa_rank.wrapping_add(peer.wrapping_sub(window.world_rank)))
}

/// The address of the copy of the team's rank `peer`, which must be in the LSA team.
#[must_use]
pub const fn team(window: &Window, offset: u64, team: TeamStruct, peer: i32) -> u64 {
    let distance = peer.wrapping_sub(team.rank).wrapping_mul(team.stride);
    lsa(window, offset, window.lsa_rank.wrapping_add(distance))
}

/// The address of the window in a multicast object.
#[must_use]
pub const fn multimem(window: &Window, offset: u64, object: MultimemHandle) -> u64 {
    object.base.wrapping_add((window.mc_offset_4k as u64) << 12).wrapping_add(offset)
}

/// The offset in bytes of a resource buffer in the resource window.
#[must_use]
pub const fn resource_offset(buffer: u32) -> u64 {
    buffer as u64 * RESOURCE_UNIT_BYTES
}

/// The address of LSA rank `peer`'s resource buffer.
#[must_use]
pub const fn resource(window: &ResourceWindow, buffer: u32, peer: i32) -> u64 {
    strided(window.lsa_flat_base, window.stride_4g, peer).wrapping_add(resource_offset(buffer))
}

/// The product wraps at 32 bits, as it does in kernels.
const fn strided(base: u64, stride_4g: u32, peer: i32) -> u64 {
    add_4g(base, peer.cast_unsigned().wrapping_mul(stride_4g))
}
