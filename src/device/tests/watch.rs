use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::device::watch::wake_all;
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
    for watch in [Watch::new(Duration::from_secs(60)), Watch::sliced(Duration::from_secs(60))] {
        let word = AtomicU32::new(7);
        assert_eq!(watch.wait_word(&word, watch.until(), 1, |x| x == 7), Ok(7));
        let soon = Instant::now() + Duration::from_millis(5);
        let late = watch.wait_word(&word, soon, 1, |x| x == 8);
        assert_eq!(late, Err(WaitError::Deadline { last: 7 }));
        let woken = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| watch.wait_word(&word, watch.until(), usize::MAX, |x| x == 8));
            word.store(8, Ordering::Release);
            wake_all(&word);
            waiter.join().unwrap()
        });
        assert_eq!(woken, Ok(8));
        watch.fail(error("it"));
        let failed = watch.wait_word(&word, watch.until(), 1, |x| x == 8);
        assert_eq!(failed, Err(WaitError::Failed(error("it"))));
    }
}
