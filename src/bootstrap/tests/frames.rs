//! The frame codec alone.

use proptest::prelude::*;

use crate::bootstrap::Tag;
use crate::bootstrap::frame::{
    BODY_BYTES_MAX, Frame, FrameError, HEADER_BYTES, HandleSlot, Kind, VERSION, decode, decode_publication,
    encode_head, encode_publication,
};
use crate::ids::{CommId, Rank};

fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = encode_head(frame);
    bytes.extend_from_slice(frame.body);
    bytes
}

fn kinds() -> impl Strategy<Value = Kind> {
    use Kind::{Abort, Ack, Descriptors, Goodbye, Message, Publish};
    prop::sample::select(vec![Ack, Abort, Descriptors, Goodbye, Message, Publish])
}

fn handles() -> impl Strategy<Value = Vec<HandleSlot>> {
    let fabric = prop::array::uniform32(any::<u8>()).prop_map(|half| {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&half);
        HandleSlot::Fabric(bytes)
    });
    prop::collection::vec(prop_oneof![Just(HandleSlot::Descriptor), fabric], 0..5)
}

prop_compose! {
    fn contents()(
        kind in kinds(), comm in any::<u128>(), from in any::<u32>(), seq in any::<u64>(), round in any::<u8>(),
        to in prop::collection::vec(any::<u32>(), 0..6), handles in handles(),
        body in prop::collection::vec(any::<u8>(), 0..100),
    ) -> (Frame<'static>, Vec<u8>) {
        let handles = if kind == Kind::Descriptors { Vec::new() } else { handles };
        let descriptors = handles.iter().filter(|&&slot| slot == HandleSlot::Descriptor).count();
        let frame = Frame {
            kind,
            comm: CommId::from_wire(comm),
            from: Rank::new(from),
            tag: Tag::new(seq, round),
            to: to.into_iter().map(Rank::new).collect(),
            descriptors: if kind == Kind::Descriptors { 7 } else { u32::try_from(descriptors).unwrap() },
            handles,
            body: &[],
        };
        (frame, body)
    }
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded_and_every_cut_waits_for_more((frame, body) in contents(), rest in 0_usize..50) {
        let frame = Frame { body: &body, ..frame };
        let mut bytes = bytes_of(&frame);
        let whole = bytes.len();
        for cut in 0..whole {
            prop_assert_eq!(decode(&bytes[..cut]), Ok(None));
        }
        bytes.resize(whole + rest, 0xAB);
        prop_assert_eq!(decode(&bytes), Ok(Some((frame, whole))));
    }

    #[test]
    fn any_flipped_bit_is_refused((frame, body) in contents()) {
        let bytes = bytes_of(&Frame { body: &body, ..frame });
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&damaged).is_err(), "bit {}", bit);
            // A damaged header is refused before what it announces is waited for.
            if bit / 8 < HEADER_BYTES {
                let refused = decode(&damaged[..HEADER_BYTES]);
                prop_assert!(refused.is_err(), "bit {}", bit);
            }
        }
    }

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let read = decode(&bytes);
        prop_assert!(read.is_err() || (read == Ok(None) && bytes.len() < 4));
    }

    #[test]
    fn random_contents_under_a_right_magic_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 4..300)) {
        bytes[..4].copy_from_slice(b"SYMF");
        let read = decode(&bytes);
        prop_assert!(read.is_err() || (read == Ok(None) && bytes.len() < HEADER_BYTES));
    }

    #[test]
    fn publications_are_read_back(topic in ".{0,20}", bytes in prop::collection::vec(any::<u8>(), 0..50)) {
        let body = encode_publication(&topic, &bytes);
        prop_assert_eq!(decode_publication(&body), Some((topic.as_str(), bytes.as_slice())));
        let cut = decode_publication(&body[..3]);
        prop_assert_eq!(cut, None);
    }
}

/// A header whose checksum is right and whose contents are wrong.
fn with_header(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = encode_head(&Frame::control(Kind::Message, 1, 0, &[]));
    change(&mut bytes);
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes[..HEADER_BYTES - 8]);
    bytes[HEADER_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn lengths_over_their_caps_are_refused_before_the_bytes_are_there() {
    let too_long = |at: usize, value: u32| {
        let bytes = with_header(|bytes| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes()));
        matches!(decode(&bytes), Err(FrameError::TooLong { .. }))
    };
    let body = u32::try_from(BODY_BYTES_MAX).unwrap();
    assert!(too_long(36, 4_097) && !too_long(36, 4_096), "destinations");
    assert!(too_long(40, 65_537), "descriptors");
    assert!(too_long(44, 65 * 65_536 + 1) && !too_long(44, 65 * 65_536), "table");
    assert!(too_long(48, body + 1) && !too_long(48, body), "body");
}

#[test]
fn other_versions_and_kinds_are_refused_by_name() {
    let other = VERSION + 1;
    let bytes = with_header(|bytes| bytes[4..6].copy_from_slice(&other.to_le_bytes()));
    assert_eq!(decode(&bytes), Err(FrameError::Version { found: other }));
    let bytes = with_header(|bytes| bytes[6] = 99);
    assert_eq!(decode(&bytes), Err(FrameError::Kind { found: 99 }));
}

#[test]
fn a_table_that_does_not_match_its_count_is_refused() {
    let frame = Frame { handles: vec![HandleSlot::Descriptor], ..Frame::control(Kind::Message, 0, 2, &[]) };
    assert_eq!(decode(&bytes_of(&frame)), Err(FrameError::Handles));
}
