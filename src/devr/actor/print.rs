//! What tells an actor's states apart, for a search of a simulation that does not explore a state twice.
//!
//! What a job is about to do is a function of its batch and of the messages that came, so where it waits and what has
//! come tells its state. Numbers that a device gives out (handles, addresses) are left out: nothing depends on them.

use std::hash::{Hash, Hasher};
use std::sync::atomic::Ordering;

use xxhash_rust::xxh3::Xxh3Default;

use super::CommActor;
use crate::bootstrap::Notice;
use crate::devr::flush::message::encode;
use crate::devr::mail::{Closing, CommMsg};
use crate::devr::request::Work;

impl CommActor {
    pub(super) fn print(&self) -> u64 {
        let mut hash = Xxh3Default::new();
        let core = &self.core;
        std::mem::discriminant(&self.mode).hash(&mut hash);
        core.rounds.print(&mut hash);
        let (operation, phase) = core.board.operation();
        (operation, phase.to_string()).hash(&mut hash);
        self.current.as_ref().map(|current| current.id).hash(&mut hash);
        for queued in &self.queue {
            queued.id.hash(&mut hash);
            print_work(&queued.batch.work, &mut hash);
        }
        self.deferred.iter().for_each(|closing| print_closing(closing, &mut hash));
        (self.operations, self.closers.len(), self.clean, self.overdue, self.ticking).hash(&mut hash);
        let state = core.state();
        state.replicated.digest(0).hash(&mut hash);
        for (id, memory) in &state.memories {
            (id.0, memory.windows).hash(&mut hash);
        }
        (state.tokens.len(), state.offered, &state.quarantined).hash(&mut hash);
        state.retired.iter().chain(&state.idle).for_each(|id| id.0.hash(&mut hash));
        drop(state);
        (core.index.len(), core.closed.load(Ordering::Acquire)).hash(&mut hash);
        (core.watch.error().is_some(), core.endpoint().is_some()).hash(&mut hash);
        hash.digest()
    }
}

pub(super) fn of_message(msg: &CommMsg) -> u64 {
    let mut hash = Xxh3Default::new();
    std::mem::discriminant(msg).hash(&mut hash);
    match msg {
        CommMsg::Abort(why) | CommMsg::Overflow(why) => why.hash(&mut hash),
        CommMsg::Batch(batch) => print_work(&batch.work, &mut hash),
        CommMsg::Close(closing) => print_closing(closing, &mut hash),
        CommMsg::Deadline(id) => id.hash(&mut hash),
        CommMsg::Notice(notice) => print_notice(notice, &mut hash),
        CommMsg::Arrived
        | CommMsg::Dropped
        | CommMsg::Failed(_)
        | CommMsg::Finalize(_)
        | CommMsg::KernelEnded
        | CommMsg::Tick => {}
    }
    hash.digest()
}

/// What it asks for, not only how much: batches that come in another order are another state.
fn print_work(work: &Work, hash: &mut impl Hasher) {
    (&work.group, work.abandoned, work.requests.len()).hash(hash);
    for request in &work.requests {
        encode(&request.fingerprint()).hash(hash);
    }
}

fn print_closing(closing: &Closing, hash: &mut impl Hasher) {
    (closing.memory.0, closing.hidden, &closing.running).hash(hash);
}

fn print_notice(notice: &Notice, hash: &mut impl Hasher) {
    std::mem::discriminant(notice).hash(hash);
    match notice {
        Notice::Abort { from, body } | Notice::Goodbye { from, body } => (from, body).hash(hash),
        Notice::Broken { ranks, .. } | Notice::Lost { ranks, .. } => ranks.hash(hash),
        Notice::Message(incoming) => (incoming.from, incoming.tag, &incoming.body).hash(hash),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devr::dev_comm::DevCommRequirements;
    use crate::devr::request::{Batch, Request};

    #[test]
    fn batches_that_ask_for_other_things_are_other_states() {
        let print = |barriers| {
            let requests = vec![Request::DevComm(DevCommRequirements::new().lsa_barriers(barriers))];
            let work = Work { group: None, abandoned: false, requests };
            let (answers, done, deadline) = (Vec::new(), None, crate::actors::Time::ZERO);
            of_message(&CommMsg::Batch(Batch { work, answers, done, deadline }))
        };
        assert_eq!(print(1), print(1));
        assert_ne!(print(1), print(2));
    }
}
