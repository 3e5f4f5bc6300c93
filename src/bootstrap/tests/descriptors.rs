//! Descriptors as attachments.

use std::os::fd::AsFd;
use std::task::Poll;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::actors::Runtime;
use crate::bootstrap::link::BATCH_MAX;
use crate::bootstrap::{Attachment, LostHandles};

use super::*;

fn memfd() -> Arc<OwnedFd> {
    Arc::new(memfd_create("symwin-test", MemfdFlags::CLOEXEC).unwrap())
}

fn inode(descriptor: impl AsFd) -> (u64, u64) {
    let stat = fstat(descriptor).unwrap();
    (stat.st_dev, stat.st_ino)
}

fn inodes(incoming: &Incoming) -> Vec<(u64, u64)> {
    let of = |handle: &Attachment| match handle {
        Attachment::Descriptor(descriptor) => inode(descriptor),
        other => panic!("{other:?} is no descriptor"),
    };
    incoming.handles.iter().map(of).collect()
}

/// Many names of few files, so that only the receiver needs many descriptors.
fn many(count: usize, files: &[Arc<OwnedFd>]) -> Vec<Attachment> {
    (0..count).map(|i| Attachment::Descriptor(Arc::clone(&files[i % files.len()]))).collect()
}

fn limit_descriptors(limit: u64) -> u64 {
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: before.maximum }).unwrap();
    before.current.unwrap_or(u64::MAX)
}

#[test]
fn a_descriptor_arrives_as_the_same_file_at_the_first_rank_of_its_parcel() {
    for layout in [[2, 2].as_slice(), &[4]] {
        let hubs = Hub::in_process(layout).unwrap();
        let members = join_all(&hubs, "world");
        let file = memfd();
        let fabric = Attachment::Fabric([7; 64]);
        let handles = vec![fabric.clone(), Attachment::Descriptor(Arc::clone(&file)), fabric];
        members[0].endpoint.send(Tag::new(0, 0), &body("with"), &[Parcel { to: ranks(2..4), handles }]);
        let first = &members[2].log.messages(1)[0];
        let [Attachment::Fabric(a), Attachment::Descriptor(descriptor), Attachment::Fabric(b)] =
            first.handles.as_slice()
        else {
            panic!("{first:?}")
        };
        assert_eq!((a, b), (&[7; 64], &[7; 64]));
        assert_eq!(inode(descriptor), inode(&file));
        assert_eq!(first.lost, None);
        let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        assert!(members[3].log.messages(1)[0].handles.is_empty());
        assert_eq!(members[0].endpoint.descriptors_sent(), u64::from(layout.len() == 2));
    }
}

#[test]
fn a_thousand_descriptors_in_one_parcel_cross_in_order() {
    in_own_process("descriptors::a_thousand_descriptors_in_one_parcel_cross_in_order", || {
        let hubs = Hub::in_process(&[1, 1]).unwrap();
        let members = join_all(&hubs, "world");
        let files: Vec<_> = (0..7).map(|_| memfd()).collect();
        // The usual limit of a user without privileges leaves room for about this many.
        for seq in 0..3 {
            let parcel = Parcel { to: ranks(1..2), handles: many(950, &files) };
            members[0].endpoint.send(Tag::new(seq, 0), &body("many"), &[parcel]);
            let message = members[1].log.messages(1).remove(0);
            let expected: Vec<_> = (0..950).map(|i| inode(&files[i % 7])).collect();
            assert_eq!(inodes(&message), expected);
            members[1].log.notices.lock().clear();
        }
        let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        limit_descriptors(hard.min(2_000));
        let parcel = Parcel { to: ranks(1..2), handles: many(1_000, &files) };
        members[0].endpoint.send(Tag::new(3, 0), &body("many"), &[parcel]);
        let message = members[1].log.messages(1).remove(0);
        let whole = message.lost.is_none() && message.handles.len() == 1_000;
        assert!(whole || hard < 2_000, "{:?}", message.lost);
    });
}

#[test]
fn descriptors_cross_in_both_directions_at_once() {
    in_own_process("descriptors::descriptors_cross_in_both_directions_at_once", || {
        limit_descriptors(getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20).min(1 << 14));
        let hubs = Hub::in_process(&[1, 1]).unwrap();
        let members = join_all(&hubs, "world");
        let files = [memfd(), memfd()];
        // Far more batches than may be unacknowledged: each side's wait for the other's acknowledgements.
        for seq in 0..20 {
            for (rank, member) in (0..2_u32).zip(&members) {
                let parcel = Parcel { to: ranks(1 - rank..2 - rank), handles: many(BATCH_MAX + 1, &files) };
                member.endpoint.send(Tag::new(seq, 0), &body("both"), &[parcel]);
            }
        }
        for member in &members {
            member.log.until(|notices| notices.len() == 20);
        }
        for member in &members {
            let came = only_messages(&member.log.now());
            assert!(came.iter().map(|m| m.tag.seq).eq(0..20));
            let whole = |m: &Incoming| m.handles.len() == BATCH_MAX + 1 || m.lost.is_some();
            assert!(came.iter().all(whole));
        }
    });
}

#[test]
fn descriptors_without_room_cost_their_message_its_handles_and_nothing_else() {
    let name = "descriptors::descriptors_without_room_cost_their_message_its_handles_and_nothing_else";
    in_own_process(name, || {
        let hubs = Hub::in_process(&[1, 1]).unwrap();
        let members = join_all(&hubs, "world");
        let file = memfd();
        let files = [Arc::clone(&file)];
        let open = open_descriptors();
        limit_descriptors(400);
        let to = || ranks(1..2);
        let send = |seq, handles| {
            members[0].endpoint.send(Tag::new(seq, 0), &body("x"), &[Parcel { to: to(), handles }]);
        };
        send(0, many(900, &files));
        send(1, many(3, &files));
        send(2, Vec::new());
        send(3, many(600, &files));
        send(4, many(5, &files));
        let came = members[1].log.messages(5);
        for (index, need) in [(0, 900), (3, 600)] {
            let LostHandles { limit, need: told, got } = came[index].lost.unwrap();
            assert_eq!((limit, told), (400, need));
            assert!(got < need && got > 0, "{got}");
            assert!(came[index].handles.is_empty());
        }
        assert_eq!(inodes(&came[1]), [inode(&file); 3]);
        assert_eq!(inodes(&came[4]), [inode(&file); 5]);
        assert_eq!((came[2].handles.len(), came[2].lost), (0, None));
        drop(came);
        members[1].log.notices.lock().clear();
        assert_eq!(open_descriptors(), open, "what did arrive of the lost ones is closed");
    });
}

#[test]
fn a_sender_without_privileges_waits_for_room_in_flight() {
    in_own_process("descriptors::a_sender_without_privileges_waits_for_room_in_flight", || {
        // Others of the same user have as many in flight as it may have.
        let others = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let file = memfd();
        put_in_flight(&others.0, &file, 2);
        let none = rustix::thread::CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).unwrap();
        limit_descriptors(300);
        let hubs = Hub::in_process(&[1, 1]).unwrap();
        let members = join_all(&hubs, "world");
        let parcel = Parcel { to: ranks(1..2), handles: many(3, &[file]) };
        members[0].endpoint.send(Tag::new(0, 0), &body("waits"), &[parcel]);
        assert!(
            !hubs[0].drain(Duration::from_millis(50)),
            "the kernel lets no more than the limit be in flight"
        );
        let refusals = hubs[0].shared().links[&ProcessId::new(1)].refusals();
        assert!((1..400).contains(&refusals), "{refusals} attempts are a busy loop");
        // Nothing tells this connection that there is room now.
        drop(others);
        let came = members[1].log.messages(1);
        assert_eq!((came[0].handles.len(), came[0].lost), (3, None));
        assert_eq!(members[0].log.now().len(), 0);
    });
}

/// No event tells that there is room. So who helped and goes tells the I/O thread of what is to be tried again.
#[test]
fn what_a_helper_could_not_send_is_tried_again_after_it() {
    let name = "descriptors::what_a_helper_could_not_send_is_tried_again_after_it";
    in_own_process(name, || {
        let others = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let file = memfd();
        put_in_flight(&others.0, &file, 2);
        let none = rustix::thread::CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).unwrap();
        limit_descriptors(300);
        let hubs = Hub::in_process(&[1, 1]).unwrap();
        let members = join_all(&hubs, "world");
        let rt = Runtime::threads(1).unwrap();
        let (actor, _ticket) = help::answers(&rt, || ());
        let mut asked = false;
        let answer = members[0].endpoint.help(actor.id(), None, |_| {
            if std::mem::replace(&mut asked, true) {
                return Poll::Ready(());
            }
            let parcel = Parcel { to: ranks(1..2), handles: many(3, &[Arc::clone(&file)]) };
            members[0].endpoint.send(Tag::new(0, 0), &body("waits"), &[parcel]);
            Poll::Pending
        });
        assert_eq!(answer, Some(()));
        drop(others);
        let came = members[1].log.messages(1);
        assert_eq!((came[0].handles.len(), came[0].lost), (3, None));
    });
}

/// Puts batches of descriptors in flight. Other tests of the same user may need their share for a moment.
fn put_in_flight(socket: &OwnedFd, file: &OwnedFd, batches: usize) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let batch = [file.as_fd(); BATCH_MAX];
    let deadline = Instant::now() + PATIENCE;
    let mut sent = 0;
    while sent < batches {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&batch)));
        let result = sendmsg(socket, &[std::io::IoSlice::new(b"x")], &mut control, SendFlags::DONTWAIT);
        assert!(result.is_ok() || Instant::now() < deadline, "{result:?}");
        sent += usize::from(result.is_ok());
    }
}

#[test]
fn descriptors_for_a_communicator_that_was_left_are_closed() {
    let hubs = Hub::in_process(&[1, 1]).unwrap();
    let members = join_all(&hubs, "left");
    let [first, second] = <[Member; 2]>::try_from(members).ok().unwrap();
    drop(second);
    let (reading, writing) = std::io::pipe().unwrap();
    let (reading, writing) = (OwnedFd::from(reading), OwnedFd::from(writing));
    let handles = vec![Attachment::Descriptor(Arc::new(writing))];
    first.endpoint.send(Tag::new(0, 0), &body("late"), &[Parcel { to: ranks(1..2), handles }]);
    // The pipe hangs up when the last of its writing ends is closed.
    ended(&reading);
    assert_eq!(rustix::io::read(&reading, &mut [0; 1]), Ok(0));
}

fn ended(descriptor: &OwnedFd) {
    let timeout = Timespec::try_from(PATIENCE).unwrap();
    let ready = poll(&mut [PollFd::new(descriptor, PollFlags::IN | PollFlags::HUP)], Some(&timeout)).unwrap();
    assert_eq!(ready, 1, "some writing end is still open");
}

pub(super) fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
