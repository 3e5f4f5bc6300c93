//! Devices and their attributes.

use std::ffi::c_char;

use crate::abi::Out;
use crate::code::{Code, Done};
use crate::config::{CONFIG, Fabric};

/// Refuses devices that do not exist.
pub(crate) fn check(device: i32) -> Done {
    if (0..CONFIG.devices).contains(&device) { Ok(()) } else { Err(Code::INVALID_DEVICE) }
}

pub(crate) const MULTICAST: u32 = 132;
const FABRIC: u32 = 128;

/// An attribute's value; those that this table does not have are 0.
pub(crate) fn attribute(number: u32) -> i32 {
    let default = match number {
        // Threads of a block, threads of a warp, multiprocessors.
        1 => 1024,
        10 => 32,
        16 => 132,
        // Copies beside kernels, kernels beside kernels, one address space, compute capability 9.0.
        15 | 31 | 41 => 1,
        75 => 9,
        // Virtual memory management, descriptors, mappings that devices on the bus may reach.
        102 | 103 | 110 => 1,
        FABRIC => i32::from(CONFIG.fabric != Fabric::None),
        _ => 0,
    };
    CONFIG.attributes.get(&number).copied().unwrap_or(default)
}

entry! {
    [NOTHING] fn cuInit(flags: u32) |state| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if CONFIG.devices < 1 {
            return Err(Code::NO_DEVICE);
        }
        crate::exit::notice();
        state.initialized = true;
        Ok(())
    }

    [NOTHING] fn cuDriverGetVersion(version: Out<i32>) |_state| {
        version.put(CONFIG.version)
    }

    [INIT] fn cuDeviceGetCount(count: Out<i32>) |_state| {
        count.put(CONFIG.devices)
    }

    [INIT] fn cuDeviceGet(device: Out<i32>, ordinal: i32) |_state| {
        check(ordinal)?;
        device.put(ordinal)
    }

    [INIT] fn cuDeviceGetName(name: Out<c_char>, length: i32, device: i32) |_state| {
        check(device)?;
        let room = usize::try_from(length).ok().and_then(|length| length.checked_sub(1)).ok_or(Code::INVALID_VALUE)?;
        let bytes = CONFIG.name.bytes().take(room).chain([0]);
        let text: Vec<c_char> = bytes.map(u8::cast_signed).collect();
        name.put_all(&text, text.len())
    }

    [INIT] fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) |_state| {
        check(device)?;
        let mut bytes = *b"fake-cuda-device";
        bytes[15] = device.to_le_bytes()[0];
        uuid.put(bytes)
    }

    [INIT] fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) |_state| {
        check(device)?;
        bytes.put(CONFIG.memory)
    }

    [INIT] fn cuDeviceGetAttribute(value: Out<i32>, number: u32, device: i32) |_state| {
        check(device)?;
        value.put(attribute(number))
    }
}
