//! One rank's place in one communicator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;

use crate::actors::{ActorId, Due};
use crate::bootstrap::frame::{BODY_BYTES_MAX, DESTINATIONS_MAX, Frame, HANDLES_MAX, HandleSlot, Kind};
use crate::bootstrap::hub::Hub;
use crate::bootstrap::link::Outgoing;
use crate::bootstrap::router::Arrival;
use crate::bootstrap::{Attachment, Incoming, Notice, Parcel, Sighting, SightingKind, Tag};
use crate::ids::{CommId, ProcessId, Rank};

/// One rank's place in one communicator, made by [`Hub::join`]. Dropping it leaves the communicator without
/// a message to anyone. It keeps the hub's connections open.
#[derive(Debug)]
pub struct Endpoint {
    hub: Hub,
    comm: CommId,
    rank: Rank,
    /// Tells this stay from a later one of the same rank.
    stay: u64,
    /// The other members.
    others: Box<[Rank]>,
    /// The tag of the last send.
    last: Mutex<Option<Tag>>,
    rounds: AtomicU64,
    messages: AtomicU64,
    bytes: AtomicU64,
    descriptors: AtomicU64,
}

impl Endpoint {
    pub(crate) fn new(hub: Hub, comm: CommId, rank: Rank, stay: u64, members: &[Rank]) -> Self {
        let others = members.iter().copied().filter(|&member| member != rank).collect();
        Self {
            hub,
            comm,
            rank,
            stay,
            others,
            last: Mutex::new(None),
            rounds: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            descriptors: AtomicU64::new(0),
        }
    }

    /// Sends `body` under `tag` to the ranks of each parcel, itself included where it is listed.
    ///
    /// Never blocks and never fails: a broken link comes back as [`Notice::Lost`]. What no frame can carry (a
    /// body over 64 MiB, more than 65,536 handles, a value that would leave its process) comes back to this
    /// rank's own inbox as [`Notice::Broken`], and is not sent.
    pub fn send(&self, tag: Tag, body: &Arc<[u8]>, parcels: &[Parcel]) {
        let before = self.last.lock().replace(tag);
        if before != Some(tag) {
            self.rounds.fetch_add(1, Ordering::Relaxed);
            self.hub.shared().router.sends(self.comm, self.rank, tag);
        }
        for parcel in parcels {
            let Some(&first) = parcel.to.first() else { continue };
            let process = self.hub.process_of(first);
            debug_assert!(
                parcel.to.iter().all(|&rank| self.hub.process_of(rank) == process),
                "a parcel is for ranks of one process"
            );
            if process == self.hub.process() {
                self.hand_over(tag, body, parcel);
            } else {
                self.post(tag, body, parcel, process);
            }
            self.messages.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        }
    }

    /// Tells all other members that this rank has finished with the communicator. Of several goodbyes they hear the
    /// first. A body that no frame can carry is left out.
    pub fn goodbye(&self, body: &Arc<[u8]>) {
        let none = Arc::from([]);
        let body = if body.len() > BODY_BYTES_MAX { &none } else { body };
        self.tell_all(Kind::Goodbye, SightingKind::Goodbye, body);
    }

    /// Ends the communicator for all other members.
    pub fn abort(&self, body: &Arc<[u8]>) {
        if body.len() > BODY_BYTES_MAX {
            return self.refuse(self.hub.process(), "an abort's reason is over the limit of a frame");
        }
        self.tell_all(Kind::Abort, SightingKind::Abort, body);
    }

    /// Does the hub's I/O in this thread, and runs actor `mine` whenever it is due, `due` to begin with, until `answer`
    /// is ready. `None` if that is not possible now: then what is awaited comes by itself.
    pub(crate) fn help<T>(
        &self,
        mine: ActorId,
        due: Option<Due>,
        answer: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        self.hub.help(mine, due, answer)
    }

    /// How many rounds this rank took part in: sends under a tag other than the one before.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// How many messages this rank sent: one for each parcel, those within its process included.
    #[must_use]
    pub fn messages_sent(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// How many bytes of bodies this rank sent, counted for each parcel.
    #[must_use]
    pub fn bytes_sent(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many descriptors this rank sent to other processes.
    #[must_use]
    pub fn descriptors_sent(&self) -> u64 {
        self.descriptors.load(Ordering::Relaxed)
    }

    /// The latest sign of life of `peer` to this rank in any communicator of this hub.
    #[must_use]
    pub fn last_seen(&self, peer: Rank) -> Option<Sighting> {
        self.sightings(peer).into_iter().next()
    }

    /// The latest sign of life of `peer` to this rank in each communicator that this rank is in or has frames kept
    /// for, the latest first.
    #[must_use]
    pub fn sightings(&self, peer: Rank) -> Vec<Sighting> {
        self.hub.shared().router.sightings(self.rank, peer)
    }

    /// Within the process: by value, in this thread.
    fn hand_over(&self, tag: Tag, body: &Arc<[u8]>, parcel: &Parcel) {
        let (from, kind) = (self.rank, SightingKind::Message);
        let arrival = Arrival { comm: self.comm, from, to: &parcel.to, kind, tag, bytes: body.len() };
        let delivered = self.hub.shared().router.deliver(arrival, |index| {
            let handles = if index == 0 { parcel.handles.clone() } else { Vec::new() };
            Notice::Message(Incoming { from, tag, body: Arc::clone(body), handles, lost: None })
        });
        debug_assert_eq!(delivered, Ok(()), "what stays in the process is not bounded");
    }

    /// To another process, as frames.
    fn post(&self, tag: Tag, body: &Arc<[u8]>, parcel: &Parcel, process: ProcessId) {
        let (mut slots, mut descriptors) = (Vec::new(), Vec::new());
        for handle in &parcel.handles {
            match handle {
                Attachment::Descriptor(descriptor) => {
                    slots.push(HandleSlot::Descriptor);
                    descriptors.push(Arc::clone(descriptor));
                }
                Attachment::Fabric(bytes) => slots.push(HandleSlot::Fabric(*bytes)),
                Attachment::Value(_) => return self.refuse(process, "a value cannot leave its process"),
            }
        }
        let count = u32::try_from(descriptors.len()).ok().filter(|_| slots.len() <= HANDLES_MAX);
        let (Some(count), true) = (count, body.len() <= BODY_BYTES_MAX) else {
            return self.refuse(process, "a message's body or handles are over the limits of a frame");
        };
        self.descriptors.fetch_add(count.into(), Ordering::Relaxed);
        for (index, to) in parcel.to.chunks(DESTINATIONS_MAX).enumerate() {
            let first = index == 0;
            let frame = Frame {
                kind: Kind::Message,
                comm: self.comm,
                from: self.rank,
                tag,
                to: to.to_vec(),
                descriptors: if first { count } else { 0 },
                handles: if first { std::mem::take(&mut slots) } else { Vec::new() },
                body,
            };
            let descriptors = std::mem::take(&mut descriptors);
            self.hub.post(process, Outgoing::new(&frame, body, descriptors));
        }
    }

    /// The other members, process by process. Made when it is needed: rarely, and worlds may be large.
    fn by_process(&self) -> BTreeMap<ProcessId, Vec<Rank>> {
        let mut others: BTreeMap<ProcessId, Vec<Rank>> = BTreeMap::new();
        for &member in &self.others {
            others.entry(self.hub.process_of(member)).or_default().push(member);
        }
        others
    }

    fn tell_all(&self, kind: Kind, sighting: SightingKind, body: &Arc<[u8]>) {
        let tag = self.last.lock().unwrap_or_default();
        let (comm, from, here) = (self.comm, self.rank, self.hub.process());
        let others = self.by_process();
        // Also with no other member here: it is noted that this rank is gone.
        let to = others.get(&here).map(Vec::as_slice).unwrap_or_default();
        let arrival = Arrival { comm, from, to, kind: sighting, tag, bytes: body.len() };
        let delivered = self.hub.shared().router.deliver(arrival, |_| match sighting {
            SightingKind::Goodbye => Notice::Goodbye { from, body: Arc::clone(body) },
            _ => Notice::Abort { from, body: Arc::clone(body) },
        });
        debug_assert_eq!(delivered, Ok(()), "what stays in the process is not bounded");
        for (&process, to) in others.iter().filter(|&(&process, _)| process != here) {
            for to in to.chunks(DESTINATIONS_MAX) {
                let (to, handles) = (to.to_vec(), Vec::new());
                let frame = Frame { kind, comm, from, tag, to, descriptors: 0, handles, body };
                self.hub.post(process, Outgoing::new(&frame, body, Vec::new()));
            }
        }
    }

    /// Tells this rank that something cannot be sent.
    fn refuse(&self, process: ProcessId, why: &str) {
        let ranks = self.by_process().remove(&process).unwrap_or_default();
        tracing::error!(comm = ?self.comm, rank = %self.rank, to = %process, why, "bootstrap.refused");
        let notice = Notice::Broken { ranks, detail: format!("not sent: {why}") };
        self.hub.shared().router.tell(self.comm, self.rank, notice);
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.hub.shared().router.leave(self.comm, self.rank, self.stay);
    }
}
