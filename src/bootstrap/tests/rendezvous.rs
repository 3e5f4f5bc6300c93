//! How processes find each other, and the all-gather that communicators are made with. Processes are threads here.

use rustix::net::{SocketAddrUnix, connect, socket_with};

use crate::bootstrap::UnixOptions;
use crate::error::{BootstrapError, Error};

use super::*;

fn options(rendezvous: &str, layout: &[u32], process: u32) -> UnixOptions {
    let process = ProcessId::new(process);
    UnixOptions { rendezvous: rendezvous.to_owned(), layout: layout.to_vec(), process, deadline: PATIENCE }
}

/// A name that no other test and no other run has.
pub(super) fn fresh() -> String {
    use std::hash::{BuildHasher, RandomState};
    let draw = || RandomState::new().hash_one(0);
    format!("symwin-test-{:016x}{:016x}", draw(), draw())
}

fn bootstrap_error(error: Error) -> BootstrapError {
    let Error::Bootstrap(error) = error else { panic!("{error:?}") };
    (*error).clone()
}

fn dial(rendezvous: &str, process: u32) -> OwnedFd {
    let address = SocketAddrUnix::new_abstract_name(format!("{rendezvous}.{process}").as_bytes()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        if connect(&socket, &address).is_ok() {
            return socket;
        }
        assert!(Instant::now() < deadline, "nobody listens");
        std::thread::yield_now();
    }
}

#[test]
fn processes_meet_in_any_order_and_strangers_disturb_nobody() {
    let (name, layout) = (fresh(), [1, 2, 1, 1]);
    let hubs: Vec<Hub> = std::thread::scope(|scope| {
        let first = scope.spawn(|| Hub::unix(&options(&name, &layout, 0)).unwrap());
        let silent = dial(&name, 0);
        let rude = dial(&name, 0);
        write_all(&rude, b"GET / HTTP/1.1\r\n\r\n");
        let wrong = dial(&name, 0);
        write_all(&wrong, &crate::bootstrap::hello::encode(ProcessId::new(1), 1, 0, 12, &layout));
        // Both are turned away while the others are still awaited.
        for refused in [rude, wrong] {
            assert_eq!(rustix::io::read(&refused, &mut [0; 64]).unwrap_or(0), 0);
        }
        let rest: Vec<_> = [3, 1, 2]
            .map(|process| {
                let name = &name;
                scope.spawn(move || Hub::unix(&options(name, &layout, process)).unwrap())
            })
            .into_iter()
            .collect();
        let mut hubs = vec![first.join().unwrap()];
        hubs.extend(rest.into_iter().map(|thread| thread.join().unwrap()));
        drop(silent);
        hubs.sort_by_key(Hub::process);
        hubs
    });
    let members = join_all(&hubs, "world");
    members[4].endpoint.send(Tag::new(0, 0), &body("hello"), &to_all(&hubs[0]));
    for member in &members {
        assert_eq!(&*member.log.messages(1)[0].body, b"hello");
    }
}

/// Runs `act` as another user, on a thread of its own; `None` where this user is not root and so cannot
/// become another.
fn as_another_user<T: Send>(act: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: what another user may do is not tested");
        return None;
    }
    std::thread::scope(|scope| {
        let other = || rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).ok();
        scope.spawn(move || other().map(|()| act())).join().unwrap()
    })
}

#[test]
fn another_user_is_turned_away() {
    let name = fresh();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| Hub::unix(&options(&name, &[1, 1], 0)).unwrap());
        let hello = crate::bootstrap::hello::encode(
            ProcessId::new(1),
            1,
            0,
            xxhash_rust::xxh3::xxh3_128(name.as_bytes()),
            &[1, 1],
        );
        // It knows all that is to be known, and still.
        let intruder = as_another_user(|| dial(&name, 0));
        if let Some(intruder) = intruder {
            let _ = rustix::net::send(&intruder, &hello, rustix::net::SendFlags::NOSIGNAL);
            assert_eq!(rustix::io::read(&intruder, &mut [0; 64]).unwrap_or(0), 0);
        }
        Hub::unix(&options(&name, &[1, 1], 1)).unwrap();
        first.join().unwrap();
    });
}

#[test]
fn another_user_in_place_of_a_process_is_an_error() {
    let name = fresh();
    let squat = || {
        let address = SocketAddrUnix::new_abstract_name(format!("{name}.0").as_bytes()).unwrap();
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 1).unwrap();
        socket
    };
    let Some(_squatter) = as_another_user(squat) else { return };
    let error = bootstrap_error(Hub::unix(&options(&name, &[1, 1], 1)).unwrap_err());
    assert!(matches!(error, BootstrapError::Stranger { .. }), "{error:?}");
}

#[test]
fn nobody_comes_and_the_error_names_them() {
    let mut options = options(&fresh(), &[1, 2, 1], 1);
    options.deadline = Duration::from_millis(50);
    let error = bootstrap_error(Hub::unix(&options).unwrap_err());
    let missing = vec!["process 0 (rank 0)".to_owned(), "process 2 (rank 3)".to_owned()];
    assert_eq!(error, BootstrapError::Deadline { after: options.deadline, missing });
}

#[test]
fn layouts_that_differ_are_an_error_on_both_sides_that_names_both() {
    let name = fresh();
    let errors = std::thread::scope(|scope| {
        let [a, b] = [(0, [1, 2]), (1, [2, 1])].map(|(process, layout)| {
            let name = &name;
            scope.spawn(move || bootstrap_error(Hub::unix(&options(name, &layout, process)).unwrap_err()))
        });
        [a.join().unwrap(), b.join().unwrap()]
    });
    assert_eq!(errors[0], errors[1]);
    let BootstrapError::Differ { settings, .. } = &errors[0] else { panic!("{errors:?}") };
    assert_eq!(settings, &["process 0 has [1, 2]", "process 1 has [2, 1]"]);
}

#[test]
fn another_version_is_an_error_that_names_both() {
    let name = fresh();
    let error = std::thread::scope(|scope| {
        let first = scope.spawn(|| bootstrap_error(Hub::unix(&options(&name, &[1, 1], 0)).unwrap_err()));
        let peer = dial(&name, 0);
        let mut hello = crate::bootstrap::hello::encode(ProcessId::new(1), 1, 0, 2, &[1, 1]);
        hello[4] = 77;
        write_all(&peer, &hello);
        first.join().unwrap()
    });
    let BootstrapError::Differ { settings, .. } = &error else { panic!("{error:?}") };
    assert_eq!(settings, &["process 0 has 1", "process 1 has 77"]);
}

#[test]
fn settings_that_cannot_work_are_refused() {
    assert!(matches!(Hub::unix(&options("short", &[1, 1], 0)), Err(Error::Misuse(_))));
    assert!(matches!(Hub::unix(&options(&fresh(), &[1, 1], 2)), Err(Error::Misuse(_))));
    assert!(matches!(Hub::unix(&options(&"x".repeat(200), &[1, 1], 0)), Err(Error::Misuse(_))));
    // One process needs nobody.
    assert_eq!(Hub::unix(&options(&fresh(), &[3], 0)).unwrap().world_size(), 3);
}

#[test]
fn a_name_that_is_taken_is_an_error() {
    let name = fresh();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| Hub::unix(&options(&name, &[1, 1], 0)));
        let witness = dial(&name, 0);
        let error = bootstrap_error(Hub::unix(&options(&name, &[1, 1], 0)).unwrap_err());
        assert!(matches!(error, BootstrapError::Os { .. }), "{error:?}");
        drop(witness);
        Hub::unix(&options(&name, &[1, 1], 1)).unwrap();
        first.join().unwrap().unwrap();
    });
}

#[test]
fn what_is_published_is_gathered_by_topic_and_in_order() {
    for layout in [[1].as_slice(), &[2, 1, 1]] {
        let hubs = Hub::in_process(layout).unwrap();
        for (i, hub) in hubs.iter().enumerate() {
            hub.publish("b", format!("b{i}").as_bytes()).unwrap();
            hub.publish("a", format!("first {i}").as_bytes()).unwrap();
            hub.publish("a", format!("second {i}").as_bytes()).unwrap();
        }
        for hub in &hubs {
            for (topic, what) in [("a", "first "), ("a", "second "), ("b", "b")] {
                let expected: Vec<Vec<u8>> =
                    (0..layout.len()).map(|i| format!("{what}{i}").into_bytes()).collect();
                assert_eq!(hub.collect(topic, PATIENCE).unwrap(), expected);
            }
        }
    }
    let hub = Hub::in_process(&[1]).unwrap().remove(0);
    assert!(matches!(hub.publish("large", &vec![0; 64 << 20]), Err(Error::Misuse(_))));
}

#[test]
fn a_gathering_that_is_not_complete_names_who_is_missing() {
    let mut hubs = Hub::in_process(&[1, 1, 2]).unwrap();
    hubs[0].publish("t", b"0").unwrap();
    hubs[1].publish("t", b"1").unwrap();
    let after = Duration::from_millis(20);
    let error = bootstrap_error(hubs[0].collect("t", after).unwrap_err());
    let missing = vec!["process 2 (ranks 2 to 3)".to_owned()];
    // Process 1's may be on its way, but process 2's is not.
    let BootstrapError::Deadline { missing: named, .. } = error else { panic!("{error:?}") };
    assert!(named.ends_with(&missing));
    drop(hubs.pop());
    let error = bootstrap_error(hubs[0].collect("t", PATIENCE).unwrap_err());
    let BootstrapError::Protocol { who, .. } = error else { panic!("{error:?}") };
    assert_eq!(who, missing[0]);
    // What came before a death counts.
    let mut hubs = Hub::in_process(&[1, 1]).unwrap();
    hubs.iter().for_each(|hub| hub.publish("u", b"last words").unwrap());
    drop(hubs.pop());
    let witness = join(&hubs[0], "world", 0, &ranks(0..2));
    witness.log.until(|notices| notices.iter().any(is_end));
    assert_eq!(hubs[0].collect("u", PATIENCE).unwrap(), [b"last words"; 2]);
}
