//! Parts of windows that stay mapped although the window is closed.

use std::fmt;
use std::sync::Arc;

use super::core::Core;
use super::mail::CommMsg;

/// While it lives nothing of a window is unmapped, on this rank. The window may be closed, and is given back then when
/// the last of these has gone; closing the communicator waits for it, until its deadline.
pub(crate) struct HeldPart {
    core: Arc<Core>,
    /// The device address of the window's struct.
    window: u64,
}

impl HeldPart {
    /// Only then may the caller look whether the window is open.
    pub(super) fn new(core: &Arc<Core>, window: u64) -> Self {
        core.kernels.begin_view(window);
        Self { core: Arc::clone(core), window }
    }
}

impl Drop for HeldPart {
    fn drop(&mut self) {
        let is_awaited = self.core.kernels.end_view(self.window);
        if is_awaited && let Some(actor) = self.core.actor.upgrade() {
            // What it does about a view is what it does about a kernel: it looks what can be given back.
            let _ = actor.control(CommMsg::KernelEnded);
        }
    }
}

impl fmt::Debug for HeldPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeldPart({:#x})", self.window)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::error::{Error, Misuse, Result};
    use crate::{Communicator, Config, Group, Window, WindowFlags};

    fn world(deadline: Duration) -> (Vec<Communicator>, Vec<Window>) {
        let ranks = Communicator::in_process_with(2, &Config::new().deadline(deadline)).unwrap();
        let windows = register(&ranks);
        (ranks, windows)
    }

    fn register(ranks: &[Communicator]) -> Vec<Window> {
        let group = Group::start();
        let pending: Vec<_> = ranks
            .iter()
            .map(|comm| group.register(comm, comm.alloc_own(4096).unwrap(), WindowFlags::empty()))
            .collect();
        group.end().unwrap();
        pending.into_iter().map(|window| window.wait().unwrap()).collect()
    }

    fn memories(comm: &Communicator) -> usize {
        comm.status().memories
    }

    fn waits_until(what: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(10);
        while !what() {
            assert!(Instant::now() < until, "it never became true");
            std::thread::yield_now();
        }
    }

    /// Windows that are closed at once, for which the actors have work to do.
    fn registers_and_closes(ranks: &[Communicator]) {
        register(ranks).iter().for_each(|window| window.close().unwrap());
    }

    #[test]
    fn a_window_that_is_closed_stays_mapped_while_a_part_of_it_is_held() -> Result<()> {
        let (ranks, windows) = world(Duration::from_secs(20));
        let (address, held) = windows[0].hold(ranks[1].rank(), &(8..16))?;
        assert_eq!(address, windows[0].peer_ptr(ranks[1].rank(), 8)?.addr());
        let second = windows[0].hold(ranks[0].rank(), &(0..0))?.1;
        windows[0].close()?;
        let closed = windows[0].hold(ranks[1].rank(), &(0..8)).unwrap_err();
        assert!(matches!(closed, Error::Misuse(Misuse::Closed { .. })), "{closed}");
        // Other windows that are closed meanwhile are not held by it.
        registers_and_closes(&ranks);
        waits_until(|| memories(&ranks[0]) == 1);
        drop(held);
        // The second part still holds the window.
        registers_and_closes(&ranks);
        waits_until(|| memories(&ranks[0]) == 1);
        drop(second);
        waits_until(|| memories(&ranks[0]) == 0);
        drop(windows);
        ranks.into_iter().try_for_each(Communicator::finalize)
    }

    #[test]
    fn closing_a_communicator_waits_for_held_parts() -> Result<()> {
        let (ranks, windows) = world(Duration::from_secs(20));
        let held = windows[0].hold(ranks[1].rank(), &(0..8))?.1;
        let finalizes = std::thread::spawn(move || ranks.into_iter().try_for_each(Communicator::finalize));
        waits_until(|| !windows[0].is_open());
        assert!(!finalizes.is_finished(), "the part is held");
        drop(held);
        finalizes.join().expect("it has not panicked")
    }

    #[test]
    fn a_part_that_is_never_let_go_leaves_the_range_mapped() -> Result<()> {
        let (mut ranks, windows) = world(Duration::from_millis(300));
        let held = windows[0].hold(ranks[1].rank(), &(0..8))?.1;
        let second = ranks.pop();
        let error = ranks.remove(0).finalize().unwrap_err();
        assert!(matches!(&error, Error::Limit { what, .. } if what.contains("1 views")), "{error}");
        second.map_or(Ok(()), Communicator::finalize)?;
        drop(held);
        Ok(())
    }
}
