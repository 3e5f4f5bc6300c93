//! The actor of one rank's communicator: it takes batches, messages and closes, and polls the flush.
//!
//! A handler runs to completion and never waits (A-1). What takes several rounds is the [`flush`] job, an `async fn`
//! that is polled here whenever a message has come. Batches wait in a queue of their own that is never full.
//!
//! ```text
//! Open --finalize--> Draining --queue empty--> Closing --kernels ended--> closed
//!   \--failure--> Failed --finalize or drop--> Closing --kernels ended--> closed
//! ```

mod batches;
mod closing;
mod failing;
mod print;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use self::failing::Told;
use super::core::Core;
use super::flush::Ended;
use super::flush::message::round_name;
use super::mail::{CloseReply, Closing, CommMsg};
use super::request::{Answer, Batch};
use crate::actors::{Actor, Addr, Cx, Flow, Reply, Time, TimerId};
use crate::driver::passing::Passing;
use crate::error::{Error, Failure, FailureCause, Phase, Result};

/// See the module's text.
pub(crate) struct CommActor {
    core: Arc<Core>,
    queue: VecDeque<Queued>,
    current: Option<Current>,
    /// Closed while kernels ran.
    deferred: Vec<Closing>,
    mode: Mode,
    operations: u64,
    /// Who awaits the close.
    closers: Vec<CloseReply>,
    /// The communicator had not failed when it began to close.
    clean: bool,
    /// The close's deadline has passed.
    overdue: bool,
    /// The end of its own stream when it began to close: what is still being written lies in what the close unmaps.
    fence: Option<Passing>,
    /// Its own address while it closes, so that it lives until that is done.
    me: Option<Addr<CommMsg>>,
    /// A timer of [`CommMsg::Tick`] is pending.
    ticking: bool,
}

#[derive(Debug)]
enum Mode {
    Open,
    /// Finalize was called.
    Draining,
    Failed(Arc<Failure>),
    /// Goodbye is said; kernels must end.
    Closing,
}

struct Queued {
    id: u64,
    batch: Batch,
    timer: TimerId,
}

struct Current {
    id: u64,
    job: Pin<Box<dyn Future<Output = Ended> + Send>>,
    answers: Vec<Answer>,
    done: Option<Reply<Result<()>>>,
    timer: TimerId,
    deadline: Time,
}

impl CommActor {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            queue: VecDeque::new(),
            current: None,
            deferred: Vec::new(),
            mode: Mode::Open,
            operations: 0,
            closers: Vec::new(),
            clean: true,
            overdue: false,
            fence: None,
            me: None,
            ticking: false,
        }
    }
}

impl CommActor {
    /// Has the actor run again soon. One timer at a time, whatever else makes it run meanwhile.
    fn tick(&mut self, after: Duration, cx: &mut Cx<'_, CommMsg>) {
        if !std::mem::replace(&mut self.ticking, true) {
            let at = cx.now() + after;
            cx.timer(at, CommMsg::Tick);
        }
    }
}

impl Actor for CommActor {
    type Msg = CommMsg;

    fn handle(&mut self, msg: CommMsg, cx: &mut Cx<'_, CommMsg>) -> Flow {
        match msg {
            CommMsg::Abort(reason) => {
                let by = self.core.agreed.me().clone();
                drop(self.fail(FailureCause::Aborted { by, reason }, Told::Nobody, cx));
            }
            // The job is polled below.
            CommMsg::Arrived => {}
            CommMsg::Batch(batch) => self.take(batch, cx),
            CommMsg::Close(closing) => self.close_window(closing),
            CommMsg::Deadline(id) => self.deadline(id, cx),
            CommMsg::Dropped => self.dropped(cx),
            CommMsg::Failed(failure) => drop(self.fail_with(failure, Told::Nobody, cx)),
            CommMsg::Finalize(reply) => self.finalize(reply, cx),
            CommMsg::KernelEnded => self.retire_deferred(),
            CommMsg::Notice(notice) => self.notice(notice, cx),
            CommMsg::Overflow(detail) => drop(self.fail(FailureCause::Parted { detail }, Told::Nobody, cx)),
            CommMsg::Tick => {
                self.ticking = false;
                if self.awaits_streams() {
                    self.retire_deferred();
                }
            }
        }
        self.advance(cx);
        let flow = self.close_if_done();
        if flow == Flow::Continue && self.awaits_streams() {
            self.tick(STREAM_TICK, cx);
        }
        flow
    }

    fn panicked(&mut self, message: &str, cx: &mut Cx<'_, CommMsg>) -> Flow {
        let by = self.core.agreed.me().clone();
        let closing = matches!(self.mode, Mode::Closing);
        let error = self.fail(FailureCause::Panicked { by, message: message.to_owned() }, Told::Nobody, cx);
        if closing {
            // Half of it is given back; the rest is not touched again.
            self.leak();
            return self.end(&Err(error));
        }
        self.close_if_done()
    }

    fn waits_for(&self) -> Option<String> {
        let waits = self.core.rounds.waits()?;
        let name = &self.core.agreed.name;
        Some(format!("`{name}`, batch {}: {} of {:?}", waits.seq, round_name(waits.round), waits.missing))
    }

    fn fingerprint(&self) -> Option<u64> {
        Some(self.print())
    }

    fn message_fingerprint(&self, msg: &CommMsg) -> u64 {
        print::of_message(msg)
    }
}

impl Drop for CommActor {
    /// An actor that ends before it has closed (a panic while it failed, a runtime that was shut down) says so to
    /// all ranks: they must not wait for it.
    fn drop(&mut self) {
        let Some(endpoint) = self.core.endpoint() else { return };
        // The collectives' device communicator holds the core that holds it.
        drop(self.core.collectives.lock().take());
        self.core.closed.store(true, Ordering::Release);
        let failure = self.core.failure("no operation", Phase::Idle, FailureCause::RuntimeEnded);
        let error = Error::Failed(failure);
        self.core.watch.fail(error.clone());
        // Without it `status` would show a rank that nobody drives any more as idle.
        self.core.board.failed(error);
        if !(matches!(self.mode, Mode::Closing) && self.clean) {
            failing::say_farewell(&endpoint, &FailureCause::RuntimeEnded);
        }
        self.core.disconnect();
    }
}

impl fmt::Debug for CommActor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommActor")
            .field("comm", &self.core.agreed.name)
            .field("rank", &self.core.agreed.rank)
            .field("mode", &self.mode)
            .field("queued", &self.queue.len())
            .field("deferred", &self.deferred.len())
            .finish_non_exhaustive()
    }
}

/// How soon streams are asked again that closed windows wait for.
const STREAM_TICK: Duration = Duration::from_millis(1);
