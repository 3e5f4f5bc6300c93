//! Worlds with LSA teams and with multicast, and kernels on all of their ranks.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "these are tests; clippy takes helpers for none")]

use std::sync::Arc;

use symwin::device::Kernel;
use symwin::driver::Driver;
use symwin::driver::faulty::Faulty;
use symwin::driver::multicast::{MulticastBoard, MulticastCounts, MulticastDriver};
use symwin::error::Cause;
use symwin::{Communicator, Config, DevComm, Rank, Result, Window};

use crate::common::device::{Counts, Device};
use crate::common::{config, rolled_back};

/// The three ways to spread `n` ranks over processes: all in one, one each, and mixed.
pub fn layouts(n: u32) -> [Vec<u32>; 3] {
    [vec![n], vec![1; n as usize], vec![n - 1, 1]]
}

/// A world in LSA teams of `lsa` ranks.
pub fn team_world(layout: &[u32], lsa: u32) -> Vec<Communicator> {
    Communicator::in_processes_with(layout, &config().lsa_team_size(lsa)).unwrap()
}

/// Runs a kernel on all ranks at once; results by rank, then block.
pub fn launch_all<T: Send + 'static>(
    dev_comms: &[DevComm],
    blocks: u32,
    kernel: impl Fn(&Kernel<'_>) -> Result<T> + Clone + Send + Sync + 'static,
) -> Vec<Vec<T>> {
    let running: Vec<_> = dev_comms.iter().map(|d| d.launch(blocks, kernel.clone()).unwrap()).collect();
    running.into_iter().map(|handle| handle.join().unwrap()).collect()
}

/// Every rank was rolled back for the same cause, which comes back.
pub fn agreed_cause<T: std::fmt::Debug>(results: Vec<Result<T>>) -> Cause {
    let mut causes = results.into_iter().map(|result| rolled_back(result).cause.clone());
    let first = causes.next().unwrap();
    causes.for_each(|cause| assert_eq!(cause, first, "A-3: every rank hears the same"));
    first
}

/// The ranks that a cause names as those that could not do their part.
pub fn refusers(cause: &Cause) -> Vec<Rank> {
    match cause {
        Cause::Refused { faults } => faults.iter().map(|fault| fault.peer.rank).collect(),
        other => panic!("a refusal was expected, not {other:?}"),
    }
}

/// Handles of windows that must have been made.
pub fn all_ok(windows: Vec<Result<Window>>) -> Vec<Window> {
    windows.into_iter().map(Result::unwrap).collect()
}

/// A world whose devices have multicast objects, all on one board, and fail on demand.
pub struct MulticastWorld {
    pub ranks: Vec<Communicator>,
    pub faults: Vec<Arc<Faulty>>,
    pub hosts: Vec<Device>,
    pub board: Arc<MulticastBoard>,
}

impl MulticastWorld {
    pub fn new(layout: &[u32]) -> Self {
        Self::with(layout, config())
    }

    pub fn with(layout: &[u32], config: Config) -> Self {
        let board = MulticastBoard::new();
        let hosts: Vec<_> = layout.iter().map(|_| Device::new()).collect();
        let faults: Vec<_> = layout
            .iter()
            .zip(&hosts)
            .flat_map(|(&ranks, host)| {
                let board = &board;
                (0..ranks).map(move |_| Faulty::new(MulticastDriver::new(host.driver(), Arc::clone(board))))
            })
            .collect();
        let devices = faults.clone();
        let config = config.devices(move |rank: Rank| Ok(devices[rank.index()].clone() as Arc<dyn Driver>));
        let ranks = Communicator::in_processes_with(layout, &config).unwrap();
        Self { ranks, faults, hosts, board }
    }

    pub fn host_counts(&self) -> Vec<Counts> {
        self.hosts.iter().map(|host| host.counts()).collect()
    }

    /// Finalizes all; nothing is left, and nothing was bound too early.
    pub fn close(self) {
        let Self { ranks, faults, hosts, board } = self;
        for comm in ranks {
            comm.finalize().unwrap();
        }
        assert_eq!(board.check_order(), Ok(()), "P-6: no bind before all added their device");
        assert_eq!(board.counts(), MulticastCounts::default(), "P-5");
        drop(faults);
        for host in hosts {
            assert_eq!(host.counts(), Counts::default(), "P-5");
        }
    }
}
