use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::device::bell::Bell;
use crate::device::{WaitError, Watch};
use crate::error::{Error, Misuse};

fn error(what: &str) -> Error {
    Misuse::Other { what: what.to_owned() }.into()
}

#[test]
fn the_first_failure_stays_and_its_hook_runs_once() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let watch = Watch::with_hook(
        Duration::MAX,
        Box::new(move |seen| {
            assert_eq!(*seen, error("first"));
            counted.fetch_add(1, Ordering::SeqCst);
        }),
    );
    assert_eq!(watch.error(), None);
    watch.fail(error("first"));
    watch.fail(error("second"));
    assert_eq!(watch.error(), Some(error("first")));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[test]
fn a_deadline_without_end_is_one() {
    assert!(Watch::new(Duration::MAX).until() > Instant::now() + Duration::from_secs(3_600));
}

#[test]
fn a_wait_ends_with_the_word_the_failure_or_the_deadline() {
    for make in [Watch::new, Watch::sliced] {
        let (watch, bell, word) = (make(Duration::from_secs(60)), AtomicU32::new(0), AtomicU32::new(7));
        let is = |value| word.load(Ordering::Acquire) == value;
        let wait = |watch: &Watch, threads, value| watch.wait(Bell::new(&bell), 5, threads, || is(value));
        assert_eq!(wait(&watch, 1, 7), Ok(()));
        assert_eq!(wait(&make(Duration::from_millis(5)), 1, 8), Err(WaitError::Deadline));
        assert_eq!(bell.load(Ordering::Relaxed), 0, "nobody sleeps");
        for threads in [1, usize::MAX] {
            let woken = std::thread::scope(|scope| {
                word.store(7, Ordering::Release);
                let waiter = scope.spawn(|| wait(&watch, threads, 8));
                word.store(8, Ordering::Release);
                Bell::new(&bell).ring(|name| name == 5);
                waiter.join().unwrap()
            });
            assert_eq!(woken, Ok(()));
        }
        watch.fail(error("it"));
        assert_eq!(wait(&watch, 1, 8), Err(WaitError::Failed(error("it"))), "though the word is as awaited");
    }
}

/// Two threads hand a word to and fro and always sleep: one lost wake ends the test by its deadline.
#[test]
fn no_wake_is_lost() {
    let watch = Watch::sleepy(Duration::from_secs(60));
    let (word, bells) = (AtomicU32::new(0), [AtomicU32::new(0), AtomicU32::new(0)]);
    let play = |me: u32| {
        let [mine, other] = if me == 0 { [0, 1] } else { [1, 0] };
        for round in 0..5_000 {
            let turn = 2 * round + me;
            let name = turn + 1;
            watch
                .wait(Bell::new(&bells[mine]), name, usize::MAX, || word.load(Ordering::Acquire) == turn)
                .unwrap();
            word.store(turn + 1, Ordering::Release);
            Bell::new(&bells[other]).ring(|awaited| awaited == turn + 2);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(0));
        scope.spawn(|| play(1));
    });
    assert_eq!(word.load(Ordering::Relaxed), 10_000);
}
