use zerocopy::IntoBytes;

use crate::device::DevComm;
use crate::device::abi::{LlA2aHandle, LsaBarrierHandle, MultimemHandle, TeamStruct, Window};
use crate::device::dev_comm::reciprocal;
use crate::device::pointer;

const GIB_4: u64 = 1 << 32;

fn window() -> Window {
    Window {
        lsa_flat_base: 0x7f00_1234_5000,
        lsa_rank: 2,
        world_rank: 10,
        stride_4g: 35,
        mc_offset_4k: 3,
        ..Window::default()
    }
}

/// One with a value of its own in each field.
fn dev_comm() -> DevComm {
    DevComm {
        rank: 11,
        n_ranks: 12,
        lsa_rank: 3,
        lsa_size: 4,
        window_table: 0x1111_2222_3333_4444,
        resource_window: 0x5555_6666_7777_8888,
        resource: window(),
        resource_bytes: 4_096,
        lsa_multimem: MultimemHandle { base: 0x9999 },
        lsa_barrier: LsaBarrierHandle { buffer: 7, n_barriers: 16 },
        ll_a2a: LlA2aHandle { buffer: 22, n_slots: 9 },
        ll_a2a_blocks: 3,
        abort_flag: 0xaaaa,
        lookup: 0xbbbb,
        timeout_ns: 0xcccc,
    }
}

#[test]
fn a_dev_comm_of_symwins_own_header_has_each_value_at_its_offset() {
    let dev = dev_comm().to_kernel();
    let bytes = dev.as_bytes();
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!((bytes.len(), &bytes[..4], word(4)), (128, &b"symw"[..], 1));
    assert_eq!([word(8), word(12), word(16), word(20)], [11, 12, 3, 4]);
    assert_eq!([long(24), long(32), long(40)], [0x1111_2222_3333_4444, 0xbbbb, 0x5555_6666_7777_8888]);
    assert_eq!((long(48), word(56), word(60), long(64)), (0x7f00_1234_5000, 35, 3, 4_096));
    assert_eq!((long(72), word(80), word(84)), (0x9999, 7, 16));
    assert_eq!([word(88), word(92), word(96), word(100)], [22, 9, 3, 0]);
    assert_eq!([long(104), long(112), long(120)], [0xaaaa, 0xcccc, 0]);
}

#[test]
fn a_dev_comm_of_248_bytes_has_each_value_at_its_offset() {
    let dev = dev_comm().to_248(23_203);
    let bytes = dev.as_bytes();
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(bytes.len(), 248);
    assert_eq!([word(0), word(4)], [0xcafe_beef, 23_203]);
    assert_eq!([word(8), word(12), word(16)], [11, 12, u32::MAX / 12]);
    assert_eq!([word(20), word(24), word(28)], [3, 4, 1 << 30]);
    assert_eq!([long(32), long(40)], [0x1111_2222_3333_4444, 0x5555_6666_7777_8888]);
    assert_eq!((long(48), word(56), word(60)), (0x7f00_1234_5000, 35, 3));
    assert_eq!(long(72), 0x9999);
    assert_eq!([word(80), word(84)], [7, 16]);
    assert_eq!(long(168), 0xaaaa);
    let filled = [0..64, 72..88, 168..176];
    for (at, byte) in bytes.iter().enumerate().filter(|(at, _)| !filled.iter().any(|r| r.contains(at))) {
        assert_eq!(*byte, 0, "byte {at} belongs to a part that symwin does not fill");
    }
}

#[test]
fn a_reciprocal_divides_exactly_after_one_correction() {
    for n in [1, 2, 3, 4, 5, 7, 8, 12, 64, 72, 1_000, 65_536, u32::MAX] {
        let by = reciprocal(n);
        for x in [0, 1, n - 1, n, n.wrapping_add(1), 1 << 20, u32::MAX - 1, u32::MAX] {
            let high = u32::try_from((u64::from(x) * u64::from(by)) >> 32).unwrap();
            let guess = if by == 0 { x } else { high };
            let quotient = if x - guess * n >= n { guess + 1 } else { guess };
            assert_eq!(quotient, x / n, "{x} / {n}");
        }
    }
    assert_eq!(reciprocal(0), 0);
}

#[test]
fn pointers_add_to_the_high_half_only() {
    let base = window().lsa_flat_base;
    assert_eq!(pointer::add_4g(0xffff_ffff, 2), 0x2_ffff_ffff);
    assert_eq!(pointer::local(&window(), 8), base + 2 * 35 * GIB_4 + 8);
    assert_eq!(pointer::lsa(&window(), 0x1000, 0), base + 0x1000);
    assert_eq!(pointer::lsa(&window(), 0, 3), base + 3 * 35 * GIB_4);
    assert_eq!(pointer::world(&window(), 4, 9), base + 35 * GIB_4 + 4);
    let team = TeamStruct { n_ranks: 2, rank: 1, stride: 2 };
    assert_eq!(pointer::team(&window(), 0, team, 0), base);
    assert_eq!(pointer::team(&window(), 0, team, 1), pointer::local(&window(), 0));
    let object = MultimemHandle { base: 0x8000_0000_0000 };
    assert_eq!(pointer::multimem(&window(), 16, object), 0x8000_0000_0000 + 3 * 4_096 + 16);
    assert_eq!(pointer::resource(&(&window()).into(), 5, 1), base + 35 * GIB_4 + 640);
}
