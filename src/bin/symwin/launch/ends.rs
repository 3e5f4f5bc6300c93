//! In which order processes end. Signals and `wait` do not say: of several ended processes, they name any first.

use std::os::fd::OwnedFd;

use rustix::event::{Timespec, epoll};
use rustix::io;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Watches processes.
#[derive(Debug)]
pub(super) struct Ends {
    /// Its list of what is ready is in order of time.
    epoll: OwnedFd,
    /// They are watched for as long as they are open.
    processes: Vec<OwnedFd>,
}

impl Ends {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, processes: Vec::new() })
    }

    /// Watches one more process, which must not have been collected yet.
    pub(super) fn watch(&mut self, pid: Pid) -> io::Result<()> {
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let index = epoll::EventData::new_u64(self.processes.len() as u64);
        // Told once: some kernels tell it again when the process is collected.
        epoll::add(&self.epoll, &process, index, epoll::EventFlags::IN | epoll::EventFlags::ONESHOT)?;
        self.processes.push(process);
        Ok(())
    }

    /// The processes that have ended since the last call, by their place among those watched, the first to end first.
    /// Whatever has been collected is among them, or was before.
    pub(super) fn since_last(&self) -> io::Result<Vec<usize>> {
        let mut ended = Vec::new();
        loop {
            let mut events = Vec::with_capacity(64);
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&NO_TIME)) {
                Ok(0) => return Ok(ended),
                Ok(_) | Err(io::Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            ended.extend(events.iter().filter_map(|event| usize::try_from(event.data.u64()).ok()));
        }
    }
}

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::processes::ends_within;

    #[test]
    fn ends_come_in_the_order_of_time() {
        let start = || Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut children: Vec<_> = (0..4).map(|_| start()).collect();
        let mut ends = Ends::new().unwrap();
        children.iter().for_each(|child| ends.watch(Pid::from_child(child)).unwrap());
        assert!(ends.since_last().unwrap().is_empty());
        let end = |index: usize, children: &mut Vec<std::process::Child>| {
            drop(children[index].stdin.take());
            assert!(ends_within(children[index].id(), std::time::Duration::from_secs(60)));
        };
        for index in [2, 0, 3] {
            end(index, &mut children);
        }
        // Collected in another order.
        for index in [0, 2, 3] {
            children[index].wait().unwrap();
        }
        assert_eq!(ends.since_last().unwrap(), [2, 0, 3]);
        end(1, &mut children);
        assert_eq!(ends.since_last().unwrap(), [1]);
        children[1].wait().unwrap();
        assert!(ends.since_last().unwrap().is_empty());
    }
}
