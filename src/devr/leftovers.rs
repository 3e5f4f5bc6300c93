//! What a batch leaves behind when it has ended: the descriptors that it exported.
//!
//! Peers have their own ones by then, and nobody waits for these to be closed; but a GPU's driver takes its time over
//! it (two milliseconds for 64 of them on an H200). So an actor of their own closes them, which a worker runs, and
//! not the thread that runs the batch for its caller.

use std::sync::Arc;

use crate::actors::{Actor, Cx, Flow, Runtime};
use crate::bootstrap::Attachment;

/// Has a worker close these, those apart that somebody else still holds: the host device keeps a descriptor as long as
/// its memory.
pub(crate) fn close_later(runtime: &Runtime, exports: Vec<Attachment>) {
    let ours: Vec<_> = exports.into_iter().filter(is_last).collect();
    if ours.is_empty() {
        return;
    }
    let closer = runtime.spawn("descriptors", 1, |_| Closer);
    // Where the runtime has ended they come back, and are closed here.
    let _ = closer.control(ours);
}

fn is_last(attachment: &Attachment) -> bool {
    matches!(attachment, Attachment::Descriptor(descriptor) if Arc::strong_count(descriptor) == 1)
}

struct Closer;

impl Actor for Closer {
    type Msg = Vec<Attachment>;

    fn handle(&mut self, exports: Vec<Attachment>, _: &mut Cx<'_, Vec<Attachment>>) -> Flow {
        drop(exports);
        Flow::Stop
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, PipeReader, Read};
    use std::os::fd::OwnedFd;
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::close_later;
    use crate::actors::{Actor, Cx, Flow, Runtime};
    use crate::bootstrap::Attachment;

    /// A descriptor, and the end of a pipe that says whether it is still open.
    fn watched() -> (PipeReader, Arc<OwnedFd>) {
        let (reader, writer) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        (reader, Arc::new(OwnedFd::from(writer)))
    }

    fn is_open(mut reader: &PipeReader) -> bool {
        reader.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Keeps its worker until it is told.
    struct Busy(mpsc::Receiver<()>);

    impl Actor for Busy {
        type Msg = ();

        fn handle(&mut self, (): (), _: &mut Cx<'_, ()>) -> Flow {
            let _ = self.0.recv_timeout(PATIENCE);
            Flow::Stop
        }
    }

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn a_worker_closes_them_and_not_the_caller() {
        let runtime = Runtime::threads(1).unwrap();
        let (go, told) = mpsc::channel();
        runtime.spawn("busy", 1, |_| Busy(told)).control(()).unwrap();
        let (reader, descriptor) = watched();
        close_later(&runtime, vec![Attachment::Descriptor(descriptor)]);
        assert!(is_open(&reader));
        go.send(()).unwrap();
        let patience = Timespec::try_from(PATIENCE).unwrap();
        poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&patience)).unwrap();
        assert!(!is_open(&reader));
    }

    #[test]
    fn what_somebody_holds_costs_no_actor() {
        let runtime = Runtime::threads(1).unwrap();
        let (reader, descriptor) = watched();
        let held = Attachment::Descriptor(Arc::clone(&descriptor));
        close_later(&runtime, vec![held, Attachment::Fabric([0; 64])]);
        assert_eq!(runtime.actors().len(), 0);
        drop(descriptor);
        assert!(!is_open(&reader));
    }
}
