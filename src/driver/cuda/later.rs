//! What goes only when a stream has passed, without anybody's waiting for it.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use cudarc::driver::CudaStream;

use super::ending::Calling;
use crate::driver::Driver;
use crate::driver::passing::Passing;

/// What a view keeps.
pub(super) type Keep = Box<dyn Any + Send + Sync>;

/// Something that stays until all has run that a stream holds.
struct Later {
    point: Passing,
    keep: Keep,
}

/// Drops `keep` when the stream has passed its present end: now, if it has, or else on a thread of this module. One that
/// is being captured has no end: it is marked when the capture has ended.
pub(super) fn drop_later(driver: &Arc<dyn Driver>, stream: &Arc<CudaStream>, keep: Keep) {
    let later = Later { point: Passing::later(driver, stream.into()), keep };
    match later.point.has_passed() {
        Ok(true) => return,
        Ok(false) => {}
        Err(error) => return keep_for_ever(later, &error),
    }
    let unsent = match thread_of_drops() {
        Some(thread) => thread.send(later).err().map(|unsent| unsent.0),
        None => Some(later),
    };
    if let Some(later) = unsent {
        // A drop does not wait, and nobody may wait without a deadline.
        keep_for_ever(later, &"the system has no thread for it: raise the limit of threads");
    }
}

/// A stream that cannot be asked may still run.
fn keep_for_ever(later: Later, why: &dyn fmt::Display) {
    tracing::error!(target: "symwin::driver", %why, "what a view has seen stays mapped: its stream cannot be asked");
    Box::leak(Box::new(later.keep));
}

/// The thread that asks the streams; `None` if it could not be started.
fn thread_of_drops() -> Option<&'static Sender<Later>> {
    static THREAD: OnceLock<Option<Sender<Later>>> = OnceLock::new();
    let thread = THREAD.get_or_init(|| {
        let (sender, receiver) = crossbeam_channel::unbounded();
        let spawned = thread::Builder::new().name("symwin-views".to_owned()).spawn(move || serve(&receiver));
        spawned.ok().map(|_| sender)
    });
    thread.as_ref()
}

fn serve(incoming: &Receiver<Later>) {
    let mut waiting: Vec<Later> = Vec::new();
    loop {
        let next = if waiting.is_empty() {
            incoming.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            incoming.recv_timeout(POLL)
        };
        match next {
            Ok(later) => waiting.push(later),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let Some(_calling) = Calling::begin() else {
            // Nobody may drop a stream any more.
            Box::leak(Box::new(waiting));
            return;
        };
        for later in std::mem::take(&mut waiting) {
            match later.point.has_passed() {
                Ok(true) => {}
                Ok(false) => waiting.push(later),
                Err(error) => keep_for_ever(later, &error),
            }
        }
    }
}

/// How often streams are asked: the device tells nobody when it is done.
const POLL: Duration = Duration::from_millis(1);
