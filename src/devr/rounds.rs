//! What has arrived of the rounds of the present batch and of the next one.
//!
//! A peer can be at most one batch ahead (it has my vote of s before it offers s + 1), so messages are kept by
//! (seq, round) for two batches; anything else is a protocol error.
//!
//! Messages come here straight from the bootstrap and not through the actor's mailbox: the actor is woken once a
//! round, when the last message that its job waits for has come, and not once a message.

use std::collections::BTreeMap;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::task::{Context, Poll};

use parking_lot::Mutex;

use crate::bootstrap::Incoming;
use crate::ids::Rank;

/// The messages of a communicator's rounds on one rank.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The batch that runs, or the next one if none does.
    seq: u64,
    received: BTreeMap<(u64, u8), BTreeMap<Rank, Incoming>>,
    /// Ranks that have said goodbye, in order of their goodbyes, each with the first batch that it has no part in.
    gone: Vec<(Rank, u64)>,
    /// What the job waits for.
    waits: Option<Waits>,
    /// Nobody reads any more: what comes is dropped.
    closed: bool,
}

/// What a job waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waits {
    /// The batch.
    pub(crate) seq: u64,
    /// The round.
    pub(crate) round: u8,
    /// The ranks whose message is not there.
    pub(crate) missing: Vec<Rank>,
}

impl Rounds {
    /// Takes in a message of a peer. Says whether it was the last that the job waits for: then its actor must be told.
    ///
    /// # Errors
    /// In words, when the peer is out of step.
    pub(crate) fn deliver(&self, incoming: Incoming) -> Result<bool, String> {
        let mut inner = self.inner.lock();
        if inner.closed {
            return Ok(false);
        }
        let (seq, round) = (incoming.tag.seq, incoming.tag.round);
        if seq < inner.seq || seq > inner.seq + 1 {
            if !inner.gone.is_empty() {
                // No batch completes any more, and ranks that hear of a goodbye at different times count different
                // numbers of batches.
                return Ok(false);
            }
            return Err(format!("a message of batch {seq} while this rank is at batch {}", inner.seq));
        }
        let from = incoming.from;
        if inner.received.entry((seq, round)).or_default().insert(from, incoming).is_some() {
            return Err(format!("a second message of batch {seq}, round {round}"));
        }
        let Some(waits) = inner.waits.as_mut().filter(|waits| (waits.seq, waits.round) == (seq, round))
        else {
            // The job looks before it waits.
            return Ok(false);
        };
        waits.missing.retain(|&rank| rank != from);
        Ok(waits.missing.is_empty())
    }

    /// The communicator has failed or closes: gives up what has come, and drops what comes from here on.
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        let received = std::mem::take(&mut inner.received);
        drop(inner);
        // Descriptors may ride with them.
        drop(received);
    }

    /// A peer has said goodbye: it has no part in batch `seq` and later ones, and nothing comes from it after this.
    pub(crate) fn goodbye(&self, from: Rank, seq: u64) {
        let mut inner = self.inner.lock();
        if inner.gone.iter().all(|&(rank, _)| rank != from) {
            inner.gone.push((from, seq));
        }
    }

    /// A rank that has said goodbye without a part in the present batch, which so cannot complete.
    pub(crate) fn gone(&self) -> Option<Rank> {
        self.inner.lock().gone()
    }

    /// What has come and what is awaited, for [`crate::actors::Actor::fingerprint`].
    pub(crate) fn print(&self, hash: &mut impl Hasher) {
        let inner = self.inner.lock();
        (inner.seq, &inner.gone, inner.closed).hash(hash);
        for (place, messages) in &inner.received {
            for (from, incoming) in messages {
                (place, from, &incoming.body).hash(hash);
            }
        }
        if let Some(waits) = &inner.waits {
            (waits.seq, waits.round, &waits.missing).hash(hash);
        }
    }

    /// The present batch has ended; the next one may be offered.
    pub(crate) fn next(&self) {
        let mut inner = self.inner.lock();
        inner.seq += 1;
        inner.waits = None;
        let seq = inner.seq;
        inner.received.retain(|&(s, _), _| s >= seq);
    }

    /// The number of the present batch, or of the next one if none runs.
    pub(crate) fn seq(&self) -> u64 {
        self.inner.lock().seq
    }

    /// What the job waits for.
    pub(crate) fn waits(&self) -> Option<Waits> {
        self.inner.lock().waits.clone()
    }

    /// Whether the messages of a round of the present batch from `from` are all there.
    pub(crate) fn is_complete(&self, round: u8, from: &[Rank]) -> bool {
        let inner = self.inner.lock();
        let here = inner.received.get(&(inner.seq, round));
        from.iter().all(|rank| here.is_some_and(|here| here.contains_key(rank)))
    }

    /// The messages of a round of the present batch from `from`, in that order, once all are there; a rank that has
    /// said goodbye before this batch, whichever ranks' messages are missing: nobody completes it.
    pub(crate) fn gather(&self, round: u8, from: Vec<Rank>) -> Gather<'_> {
        Gather { rounds: self, round, from }
    }
}

impl Inner {
    fn gone(&self) -> Option<Rank> {
        self.gone.iter().find(|(_, seq)| *seq <= self.seq).map(|&(rank, _)| rank)
    }
}

/// See [`Rounds::gather`]. Its actor polls it again when all messages have come, and whenever anything else has; it
/// keeps no waker.
#[derive(Debug)]
pub(crate) struct Gather<'a> {
    rounds: &'a Rounds,
    round: u8,
    from: Vec<Rank>,
}

impl Future for Gather<'_> {
    type Output = Result<Vec<Incoming>, Rank>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let mut inner = self.rounds.inner.lock();
        let key = (inner.seq, self.round);
        let here = inner.received.get(&key);
        let missing: Vec<Rank> =
            self.from.iter().copied().filter(|rank| !here.is_some_and(|h| h.contains_key(rank))).collect();
        if missing.is_empty() {
            inner.waits = None;
            let mut all = inner.received.remove(&key).unwrap_or_default();
            return Poll::Ready(Ok(self.from.iter().filter_map(|rank| all.remove(rank)).collect()));
        }
        if let Some(rank) = inner.gone() {
            inner.waits = None;
            return Poll::Ready(Err(rank));
        }
        inner.waits = Some(Waits { seq: key.0, round: self.round, missing });
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Waker;

    use super::*;
    use crate::bootstrap::{Attachment, Tag};

    fn message(from: u32, seq: u64, round: u8, handles: Vec<Attachment>) -> Incoming {
        Incoming {
            from: Rank::new(from),
            tag: Tag::new(seq, round),
            body: Arc::from([]),
            handles,
            lost: None,
        }
    }

    fn look(gather: &mut Gather<'_>) -> Poll<Result<Vec<Incoming>, Rank>> {
        Pin::new(gather).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_last_message_that_is_awaited_is_told_and_no_other() {
        let rounds = Rounds::default();
        let mut gather = rounds.gather(3, vec![Rank::new(1), Rank::new(2)]);
        // Nobody waits yet: the job looks before it does.
        assert_eq!(rounds.deliver(message(1, 0, 3, Vec::new())), Ok(false));
        assert!(look(&mut gather).is_pending());
        assert_eq!(rounds.deliver(message(2, 0, 4, Vec::new())), Ok(false), "of another round");
        assert_eq!(rounds.deliver(message(2, 1, 3, Vec::new())), Ok(false), "of the next batch");
        assert_eq!(rounds.waits().unwrap().missing, [Rank::new(2)]);
        assert_eq!(rounds.deliver(message(2, 0, 3, Vec::new())), Ok(true));
        let Poll::Ready(Ok(all)) = look(&mut gather) else { panic!("all are there") };
        assert_eq!(all.iter().map(|incoming| incoming.from.get()).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(rounds.waits(), None);
    }

    #[test]
    fn who_is_out_of_step_is_refused() {
        let rounds = Rounds::default();
        assert_eq!(rounds.deliver(message(1, 0, 0, Vec::new())), Ok(false));
        assert!(rounds.deliver(message(1, 0, 0, Vec::new())).is_err(), "twice");
        assert!(rounds.deliver(message(1, 2, 0, Vec::new())).is_err(), "two batches ahead");
        rounds.next();
        rounds.next();
        assert!(rounds.deliver(message(2, 1, 0, Vec::new())).is_err(), "a batch that has ended");
    }

    #[test]
    fn what_nobody_will_read_is_given_up_with_its_handles() {
        let rounds = Rounds::default();
        let value: Arc<dyn std::any::Any + Send + Sync> = Arc::new(7);
        let handles = || vec![Attachment::Value(Arc::clone(&value))];
        rounds.deliver(message(1, 0, 0, handles())).unwrap();
        assert_eq!(Arc::strong_count(&value), 2);
        rounds.close();
        assert_eq!(rounds.deliver(message(2, 9, 0, handles())), Ok(false));
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
