//! How windows are closed, and how the whole communicator is.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::failing::Told;
use super::{CommActor, Mode};
use crate::actors::{Cx, Flow};
use crate::devr::close;
use crate::devr::mail::{CloseReply, Closing, CommMsg};
use crate::devr::zoo::Bug;
use crate::driver::DeviceError;
use crate::driver::passing::Passing;
use crate::error::{Error, FailureCause, Result};

impl CommActor {
    pub(super) fn close_window(&mut self, mut closing: Closing) {
        if matches!(self.mode, Mode::Failed(_) | Mode::Closing) {
            self.deferred.push(closing);
            return;
        }
        self.hide(&mut closing);
        if self.is_unseen(&mut closing) {
            self.retire(closing);
        } else {
            self.deferred.push(closing);
        }
    }

    /// Whether no kernel and no view of this rank can see the window any more.
    fn is_unseen(&self, closing: &mut Closing) -> bool {
        let kernels = &self.core.kernels;
        if !closing.hidden || !kernels.ended(&closing.running) || kernels.is_viewed(closing.struct_address) {
            return false;
        }
        closing.after.retain(|point| match point.has_passed() {
            Ok(passed) => !passed,
            Err(error) => {
                // A stream that cannot be asked may still run: what it may see stays.
                self.undo_failed(&error);
                true
            }
        });
        closing.after.is_empty()
    }

    /// Whether streams must pass before everything that was closed is given back.
    pub(super) fn awaits_streams(&self) -> bool {
        let closed = || self.deferred.iter().any(|closing| !closing.after.is_empty());
        match self.mode {
            Mode::Open | Mode::Draining => closed(),
            // A failed communicator gives nothing back before its close.
            Mode::Failed(_) => false,
            Mode::Closing => closed() || self.core.launches.last().is_some() || self.fence.is_some(),
        }
    }

    /// Takes a closed window from lookups of kernels that begin from here on; those that run now may have seen it.
    fn hide(&self, closing: &mut Closing) {
        if let (Some(entry), Some(objects)) = (closing.entry, self.core.state().objects.as_mut())
            && let Err(error) = objects.withdraw(entry)
        {
            // Tried again when a kernel or a batch has ended.
            return self.undo_failed(&error);
        }
        closing.hidden = true;
        closing.running = self.core.kernels.running();
        closing.after.extend(self.core.launches.last());
    }

    fn undo_failed(&self, error: &DeviceError) {
        let agreed = &self.core.agreed;
        tracing::error!(comm = %agreed.name, rank = agreed.rank.get(), %error, "window.undo_failed");
        self.core.board.undo_failures(std::slice::from_ref(error));
        self.core.kernels.await_end(true);
    }

    /// Nothing of this rank can see the window any more.
    fn retire(&mut self, closing: Closing) {
        // Copies that began before the close are short; nothing is unmapped under them.
        drop(self.core.copies.write());
        let mut state = self.core.state();
        if let Some(objects) = state.objects.as_mut()
            && let Err(error) = objects.retire(closing.slot, closing.entry)
        {
            // Its memory stays; tried again when a kernel or a batch has ended.
            self.undo_failed(&error);
            drop(state);
            return self.deferred.push(closing);
        }
        state.unuse(closing.memory, &self.core);
        drop(state);
        self.core.sizes.write().remove(&closing.struct_address);
        // Its buffer may go back to its slab now; the driver's calls for that are none of the state's.
        drop(closing.keep);
        // Last: who sees in the status that it is closed finds its buffer free.
        self.core.board.committed(&self.core.state());
    }

    /// Retires what was closed while kernels ran that have ended meanwhile.
    pub(super) fn retire_deferred(&mut self) {
        if matches!(self.mode, Mode::Failed(_) | Mode::Closing) {
            return;
        }
        for mut closing in std::mem::take(&mut self.deferred) {
            if !closing.hidden {
                self.hide(&mut closing);
            }
            if self.is_unseen(&mut closing) {
                self.retire(closing);
            } else {
                self.deferred.push(closing);
            }
        }
        // Nobody is told of kernels' ends while nothing waits for them.
        self.core.kernels.await_end(!self.deferred.is_empty());
    }

    pub(super) fn dropped(&mut self, cx: &mut Cx<'_, CommMsg>) {
        if matches!(self.mode, Mode::Closing) || !self.closers.is_empty() {
            return;
        }
        let by = self.core.agreed.me().clone();
        self.fail(FailureCause::Dropped { by }, Told::Nobody, cx);
        self.begin_close(cx);
    }

    pub(super) fn finalize(&mut self, reply: CloseReply, cx: &mut Cx<'_, CommMsg>) {
        tracing::debug!(comm = %self.core.agreed.name, rank = self.core.agreed.rank.get(), "comm.finalize");
        self.closers.push(reply);
        if self.core.has_bug(Bug::GoodbyeEarly) {
            self.say_goodbye();
        }
        match self.mode {
            Mode::Open => self.mode = Mode::Draining,
            Mode::Failed(_) => self.begin_close(cx),
            Mode::Draining | Mode::Closing => {}
        }
    }

    pub(super) fn begin_close(&mut self, cx: &mut Cx<'_, CommMsg>) {
        if matches!(self.mode, Mode::Closing) {
            return;
        }
        self.clean = !matches!(self.mode, Mode::Failed(_));
        self.mode = Mode::Closing;
        self.core.rounds.close();
        // The last handle may be gone before the last kernel has ended.
        self.me = Some(cx.me().clone());
        self.core.closed.store(true, Ordering::Release);
        drop(self.core.collectives.lock().take());
        self.fence = self.fence();
        let at = cx.now() + self.core.deadline;
        cx.timer(at, CommMsg::Deadline(CLOSE));
    }

    /// The present end of its own stream, if it has one. A stream that cannot be marked runs nothing any more: the
    /// device has lost its context.
    fn fence(&self) -> Option<Passing> {
        let stream = self.core.state().objects.as_ref()?.stream();
        Passing::of(&self.core.driver, stream).inspect_err(|error| self.undo_failed(error)).ok()
    }

    /// Gives everything back once this rank's kernels have ended, or says that they have not.
    pub(super) fn close_if_done(&mut self) -> Flow {
        if !matches!(self.mode, Mode::Closing) {
            return Flow::Continue;
        }
        let running = self.core.kernels.running().len();
        let views = self.core.kernels.views();
        let streams = self.streams_behind();
        if running + views + streams > 0 && !self.overdue {
            return Flow::Continue;
        }
        self.fence = None;
        let result = if running + views + streams == 0 {
            Ok(close::close(&self.core, self.clean))
        } else {
            self.leak();
            let rank = self.core.agreed.rank;
            let viewed = if views == 0 { String::new() } else { format!(", {views} views") };
            let what = format!(
                "{running} host kernels{viewed} and {streams} streams of {rank} to end; its range stays mapped"
            );
            Err(Error::Limit { what, waited: self.core.deadline })
        };
        self.end(&result)
    }

    /// How many streams have not passed what closed windows and collectives wait for.
    fn streams_behind(&mut self) -> usize {
        let launched = self.core.launches.last();
        let points = self.deferred.iter().flat_map(|closing| &closing.after).chain(&launched);
        let mut behind = 0;
        let mut failed = Vec::new();
        // Many windows may wait for one.
        let mut asked = BTreeSet::new();
        for point in points.filter(|point| asked.insert(point.id())) {
            match point.has_passed() {
                Ok(true) => {}
                Ok(false) => behind += 1,
                Err(error) => {
                    behind += 1;
                    failed.push(error);
                }
            }
        }
        // As in `fence`: one that cannot be asked is none.
        let passed = self.fence.as_ref().map_or(Ok(true), Passing::has_passed);
        if passed.unwrap_or_else(|error| {
            self.undo_failed(&error);
            true
        }) {
            self.fence = None;
        } else {
            behind += 1;
        }
        for error in failed {
            // It will not say anything else later.
            self.undo_failed(&error);
            self.overdue = true;
        }
        behind
    }

    /// Leaves what is mapped as it is, for ever, and counts it.
    pub(super) fn leak(&self) {
        self.core.flat.leak();
        self.core.board.leaked(&self.core.state());
    }

    /// The last thing that this actor does.
    pub(super) fn end(&mut self, result: &Result<Vec<DeviceError>>) -> Flow {
        tracing::debug!(comm = %self.core.agreed.name, rank = self.core.agreed.rank.get(), "comm.closed");
        self.core.keep_buffers(self.deferred.drain(..));
        self.me = None;
        self.core.disconnect();
        self.core.board.closed();
        for closer in self.closers.drain(..) {
            let _ = closer.send(result.clone());
        }
        Flow::Stop
    }
}

/// The close as an operation, for its deadline.
pub(super) const CLOSE: u64 = 0;
