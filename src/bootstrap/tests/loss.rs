//! Deaths, broken connections, shutdown.

use rustix::net::{Shutdown, shutdown};

use crate::bootstrap::frame::HEADER_BYTES;
use crate::bootstrap::router::EARLY_FRAMES_MAX;
use crate::bootstrap::{Attachment, Notice};

use super::descriptors::open_descriptors;
use super::*;

fn lost_ranks(notices: &[Notice]) -> Vec<Rank> {
    let ranks = |notice: &Notice| match notice {
        Notice::Lost { ranks, .. } => Some(ranks.clone()),
        _ => None,
    };
    notices.iter().find_map(ranks).unwrap()
}

fn broken_detail(member: &Member) -> String {
    let heard = member.log.until(|notices| notices.iter().any(is_end));
    let Some(Notice::Broken { ranks: named, detail }) = heard.last() else { panic!("{heard:?}") };
    assert_eq!(*named, ranks(1..2));
    detail.clone()
}

#[test]
fn a_closed_hub_is_a_loss_of_its_ranks_that_said_no_goodbye() {
    let mut hubs = Hub::in_process(&[2, 2]).unwrap();
    let (a, b) = (join_all(&hubs, "a"), join_all(&hubs, "b"));
    a[2].endpoint.goodbye(&Arc::from([]));
    b[2].endpoint.goodbye(&Arc::from([]));
    b[3].endpoint.goodbye(&Arc::from([]));
    let split = |mut members: Vec<Member>| {
        let gone = members.split_off(2);
        (members, gone)
    };
    let ((a, gone_a), (b, gone_b)) = (split(a), split(b));
    drop((gone_a, gone_b, hubs.pop()));
    for member in &a {
        let heard = member.log.until(|notices| notices.iter().any(is_end));
        assert_eq!(lost_ranks(&heard), ranks(3..4));
        assert!(matches!(heard[0], Notice::Goodbye { from, .. } if from == Rank::new(2)));
        assert_eq!(heard.len(), 2);
    }
    // A rank that joins later hears of it at once.
    let late = join(&hubs[0], "late", 1, &ranks(0..4));
    assert_eq!(lost_ranks(&late.log.now()), ranks(2..4));
    // By then `b` has heard all that it ever will.
    for member in &b {
        let heard = member.log.now();
        assert!(heard.iter().all(|notice| matches!(notice, Notice::Goodbye { .. })) && heard.len() == 2);
    }
    // And sending to the dead neither blocks nor fails.
    late.endpoint.send(Tag::new(0, 0), &body("anyone?"), &to_all(&hubs[0]));
    assert!(hubs[0].drain(PATIENCE));
}

#[test]
fn what_was_sent_before_the_death_is_heard_before_the_loss() {
    for unread_at_the_peer in [false, true] {
        let (hub, peer) = hub_with_raw_peer();
        let member = join(&hub, "world", 0, &ranks(0..2));
        if unread_at_the_peer {
            // The kernel then answers with a reset, which must not hide what is queued.
            member.endpoint.send(Tag::new(0, 0), &body("never read"), &[Parcel::plain(ranks(1..2))]);
        }
        for seq in 0..200 {
            write_all(&peer, &message_bytes("world", seq, &[7; 300]));
        }
        drop(peer);
        let heard = member.log.until(|notices| notices.iter().any(is_end));
        assert!(only_messages(&heard).iter().map(|message| message.tag.seq).eq(0..200));
        assert_eq!(lost_ranks(&heard), ranks(1..2));
        assert_eq!(heard.len(), 201);
    }
}

#[test]
fn b3_last_words_are_heard_though_this_side_is_just_writing_and_finds_the_peer_gone() {
    for _ in 0..1_500 {
        let mut hubs = Hub::in_process(&[3, 1]).unwrap();
        let mut members = join_all(&hubs, "world");
        let gone = (members.pop(), hubs.pop());
        let to_gone = [Parcel::plain(ranks(3..4))];
        std::thread::scope(|scope| {
            for member in &members {
                let to_gone = &to_gone;
                scope.spawn(move || member.endpoint.send(Tag::new(0, 0), &body("an offer"), to_gone));
            }
            if let Some(member) = &gone.0 {
                member.endpoint.abort(&body("farewell"));
            }
            drop(gone);
        });
        let heard = members[0].log.until(|notices| notices.iter().any(is_end));
        assert!(matches!(heard[0], Notice::Abort { .. }) && heard.len() == 2, "{heard:?}");
    }
}

#[test]
fn all_that_lay_in_the_socket_before_the_hub_began_is_heard() {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    write_all(&theirs, &message_bytes("world", 5, b"early"));
    drop(theirs);
    let hub = hub_over(ours);
    let member = join(&hub, "world", 0, &ranks(0..2));
    let heard = member.log.until(|notices| notices.iter().any(is_end));
    assert_eq!(only_messages(&heard)[0].tag.seq, 5);
}

#[test]
fn a_peer_that_no_longer_reads_is_lost_once_it_has_nothing_more_to_say() {
    let (hub, peer) = hub_with_raw_peer();
    let member = join(&hub, "world", 0, &ranks(0..2));
    write_all(&peer, &message_bytes("world", 0, b"last words"));
    shutdown(&peer, Shutdown::Read).unwrap();
    member.endpoint.send(Tag::new(0, 0), &body("into the void"), &[Parcel::plain(ranks(1..2))]);
    let heard = member.log.until(|notices| notices.iter().any(is_end));
    assert_eq!(only_messages(&heard).len(), 1);
    assert_eq!(lost_ranks(&heard), ranks(1..2));
}

#[test]
fn a_bad_frame_breaks_its_connection_by_name() {
    let flip = |at: usize| {
        let mut bytes = message_bytes("world", 0, b"body");
        bytes[at] ^= 1;
        bytes
    };
    let from_elsewhere = {
        let mut frame = Frame::control(Kind::Goodbye, 0, 0, &[]);
        frame.to = ranks(0..1);
        encode_head(&frame)
    };
    let for_elsewhere = {
        let mut frame = Frame::control(Kind::Goodbye, 0, 0, &[]);
        (frame.from, frame.to) = (Rank::new(1), ranks(1..2));
        encode_head(&frame)
    };
    let unsent = encode_head(&Frame::control(Kind::Descriptors, 0, 3, &[]));
    let unasked = encode_head(&Frame::control(Kind::Ack, 3, 0, &[]));
    let cases = [
        (flip(HEADER_BYTES + 5), "checksum of the contents"),
        (flip(48), "header's checksum"),
        (flip(4), "version"),
        (b"GET / HTTP/1.1".to_vec(), "not a frame"),
        (from_elsewhere, "in the name of rank 0"),
        (for_elsewhere, "for rank 1"),
        (unsent, "none came"),
        (unasked, "acknowledged"),
    ];
    for (bytes, why) in cases {
        let (hub, peer) = hub_with_raw_peer();
        let member = join(&hub, "world", 0, &ranks(0..2));
        write_all(&peer, &message_bytes("world", 0, b"good"));
        write_all(&peer, &bytes);
        let detail = broken_detail(&member);
        assert!(detail.contains(why), "{detail} is not about {why}");
        assert_eq!(only_messages(&member.log.now()).len(), 1);
        let late = join(&hub, "late", 0, &ranks(0..2));
        assert!(matches!(late.log.now()[0], Notice::Broken { .. }));
        // The peer sees the end: the connection is closed, not only ignored.
        assert_eq!(rustix::io::read(&peer, &mut [0; 16]).unwrap_or(0), 0);
    }
}

#[test]
fn early_frames_are_bounded() {
    let (hub, peer) = hub_with_raw_peer();
    let witness = join(&hub, "witness", 0, &ranks(0..2));
    for seq in 0..EARLY_FRAMES_MAX as u64 {
        write_all(&peer, &message_bytes("nobody", seq, b"early"));
    }
    write_all(&peer, &message_bytes("witness", 0, b"fine so far"));
    witness.log.messages(1);
    // Joining takes them out and makes room again.
    let nobody = join(&hub, "nobody", 0, &ranks(0..2));
    assert_eq!(nobody.log.now().len(), EARLY_FRAMES_MAX);
    for seq in 0..=EARLY_FRAMES_MAX as u64 {
        write_all(&peer, &message_bytes("nobody else", seq, b"early"));
    }
    assert!(broken_detail(&witness).contains("not joined"));
}

#[test]
fn a_hub_writes_its_queue_out_after_its_last_handle_is_gone() {
    let mut hubs = Hub::in_process(&[1, 1]).unwrap();
    let mut members = join_all(&hubs, "world");
    let large: Arc<[u8]> = vec![3; 4 << 20].into();
    for seq in 0..5 {
        members[1].endpoint.send(Tag::new(seq, 0), &large, &[Parcel::plain(ranks(0..1))]);
    }
    members[1].endpoint.goodbye(&Arc::from([]));
    drop((members.pop(), hubs.pop()));
    let heard = members[0].log.until(|notices| notices.len() == 6);
    assert!(only_messages(&heard).iter().map(|message| message.tag.seq).eq(0..5));
    assert!(matches!(heard[5], Notice::Goodbye { .. }));
}

#[test]
fn drain_tells_whether_all_is_out() {
    let (hub, peer) = hub_with_raw_peer();
    let member = join(&hub, "world", 0, &ranks(0..2));
    let large: Arc<[u8]> = vec![3; 8 << 20].into();
    member.endpoint.send(Tag::new(0, 0), &large, &[Parcel::plain(ranks(1..2))]);
    assert!(!hub.drain(Duration::from_millis(20)), "nobody reads");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut scratch = vec![0; 1 << 16];
            let mut left = message_head_bytes() + large.len();
            while left > 0 {
                left -= rustix::io::read(&peer, &mut scratch).unwrap();
            }
        });
        assert!(hub.drain(PATIENCE));
    });
}

/// Header and one destination.
fn message_head_bytes() -> usize {
    message_bytes("world", 0, &[]).len()
}

#[test]
fn nothing_is_left_after_the_last_handle() {
    in_own_process("loss::nothing_is_left_after_the_last_handle", || {
        let count = || (open_descriptors(), std::fs::read_dir("/proc/self/task").unwrap().count());
        let before = count();
        for _ in 0..5 {
            let hubs = Hub::in_process(&[2, 1, 1]).unwrap();
            let members = join_all(&hubs, "world");
            let handles = vec![Attachment::Descriptor(Arc::new(
                rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap(),
            ))];
            members[0].endpoint.send(Tag::new(0, 0), &body("x"), &[Parcel { to: ranks(2..3), handles }]);
            members[2].log.messages(1);
            assert!(count().0 > before.0 && count().1 > before.1);
        }
        // The threads end soon, which nothing tells.
        let deadline = Instant::now() + PATIENCE;
        while count() != before {
            assert!(Instant::now() < deadline, "{:?} is left of {before:?}", count());
            std::thread::yield_now();
        }
    });
}
