//! Hubs over real sockets, several in one operating-system process and across several.

mod descriptors;
mod frames;
mod help;
mod loss;
mod messages;
mod processes;
mod rendezvous;

use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::bootstrap::connect::Connected;
use crate::bootstrap::frame::{Frame, Kind, encode_head};
use crate::bootstrap::layout::Layout;
use crate::bootstrap::{Endpoint, Hub, Inbox, Incoming, Notice, Parcel, Tag};
use crate::ids::{CommId, ProcessId, Rank};

/// Far longer than anything takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

/// An inbox that writes down what it hears.
#[derive(Default)]
struct Log {
    notices: Mutex<Vec<Notice>>,
    changed: Condvar,
}

impl Inbox for Log {
    fn deliver(&self, notice: Notice) {
        self.notices.lock().push(notice);
        self.changed.notify_all();
    }
}

impl Log {
    /// Waits until the notices satisfy `enough`, and gives a copy of them.
    fn until(&self, enough: impl Fn(&[Notice]) -> bool) -> Vec<Notice> {
        let deadline = Instant::now() + PATIENCE;
        let mut notices = self.notices.lock();
        while !enough(&notices) {
            let late = self.changed.wait_until(&mut notices, deadline).timed_out();
            assert!(!late || enough(&notices), "heard only {notices:?}");
        }
        notices.clone()
    }

    fn messages(&self, count: usize) -> Vec<Incoming> {
        let notices = self.until(|notices| only_messages(notices).len() >= count);
        only_messages(&notices)
    }

    fn now(&self) -> Vec<Notice> {
        self.notices.lock().clone()
    }
}

fn only_messages(notices: &[Notice]) -> Vec<Incoming> {
    let message = |notice: &Notice| match notice {
        Notice::Message(incoming) => Some(incoming.clone()),
        _ => None,
    };
    notices.iter().filter_map(message).collect()
}

fn is_end(notice: &Notice) -> bool {
    matches!(notice, Notice::Lost { .. } | Notice::Broken { .. })
}

/// One rank of a test.
struct Member {
    endpoint: Endpoint,
    log: Arc<Log>,
}

fn join(hub: &Hub, comm: &str, rank: u32, members: &[Rank]) -> Member {
    let log = Arc::new(Log::default());
    let inbox = Arc::clone(&log) as Arc<dyn Inbox>;
    Member { endpoint: hub.join(CommId::root(comm), comm, Rank::new(rank), members, inbox), log }
}

fn ranks(range: std::ops::Range<u32>) -> Vec<Rank> {
    range.map(Rank::new).collect()
}

/// Every rank of every hub, in order of rank, in one communicator.
fn join_all(hubs: &[Hub], comm: &str) -> Vec<Member> {
    let members = ranks(0..hubs[0].world_size());
    hubs.iter().flat_map(|hub| hub.ranks_here().map(|rank| join(hub, comm, rank, &members))).collect()
}

/// One parcel a process, to all of its ranks.
fn to_all(hub: &Hub) -> Vec<Parcel> {
    let mut first = 0;
    let parcel = |count: &u32| {
        let to = ranks(first..first + count);
        first += count;
        Parcel::plain(to)
    };
    hub.layout().iter().map(parcel).collect()
}

fn body(text: &str) -> Arc<[u8]> {
    Arc::from(text.as_bytes())
}

/// Process 0 of two, with one rank each; process 1 is the socket, in the hands of the test.
fn hub_with_raw_peer() -> (Hub, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    (hub_over(ours), theirs)
}

fn hub_over(socket: OwnedFd) -> Hub {
    let layout = Arc::new(Layout::new(&[1, 1]).unwrap());
    let connected = Connected { peer: ProcessId::new(1), pid: None, socket };
    Hub::start(ProcessId::new(0), &layout, vec![connected]).unwrap()
}

/// A message of rank 1 to rank 0, as bytes.
fn message_bytes(comm: &str, seq: u64, body: &[u8]) -> Vec<u8> {
    let frame = Frame {
        kind: Kind::Message,
        comm: CommId::root(comm),
        from: Rank::new(1),
        tag: Tag::new(seq, 0),
        to: ranks(0..1),
        descriptors: 0,
        handles: Vec::new(),
        body,
    };
    let mut bytes = encode_head(&frame);
    bytes.extend_from_slice(body);
    bytes
}

fn write_all(socket: &OwnedFd, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let written = rustix::io::write(socket, bytes).unwrap();
        bytes = &bytes[written..];
    }
}

/// Runs `test` in an operating-system process of its own, since it changes or counts what a process has only one of.
/// `name` is the calling test's path below this module.
fn in_own_process(name: &str, test: impl FnOnce()) {
    if std::env::var(ISOLATED).as_deref() == Ok(name) {
        return test();
    }
    let output = child_command(name).env(ISOLATED, name).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// This test binary again, for one test.
fn child_command(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let path = format!("bootstrap::tests::{name}");
    command.args([&path, "--exact", "--nocapture", "--test-threads=1"]);
    command
}

const ISOLATED: &str = "SYMWIN_TEST_ISOLATED";
