//! Hubs in operating-system processes of their own: this test binary, started again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use crate::bootstrap::{Notice, UnixOptions};

use super::rendezvous::fresh;
use super::*;

const LAYOUT: [u32; 3] = [2, 1, 2];
const CHILD: &str = "SYMWIN_TEST_CHILD";

fn options(rendezvous: &str, process: u32) -> UnixOptions {
    let (layout, process) = (LAYOUT.to_vec(), ProcessId::new(process));
    UnixOptions { rendezvous: rendezvous.to_owned(), layout, process, deadline: PATIENCE }
}

/// Starts process `process` of [`LAYOUT`] to play `role`.
fn start(role: &str, rendezvous: &str, process: u32) -> Child {
    let mut command = child_command("processes::child");
    command.env(CHILD, format!("{role} {rendezvous} {process}"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn wait_for_line(child: &mut Child, wanted: &str) {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains(wanted)), "the child never said {wanted}");
}

/// Does nothing unless it is started by another test of this file.
#[test]
fn child() {
    let Ok(orders) = std::env::var(CHILD) else { return };
    let orders: Vec<&str> = orders.split(' ').collect();
    let [role, rendezvous, process] = orders.as_slice() else { panic!("{orders:?}") };
    let hub = Hub::unix(&options(rendezvous, process.parse().unwrap())).unwrap();
    let all = ranks(0..hub.world_size());
    let members: Vec<Member> = hub.ranks_here().map(|rank| join(&hub, "world", rank, &all)).collect();
    match *role {
        "exchange" => {
            exchange(&hub, &members);
            assert!(hub.drain(PATIENCE));
        }
        "flood" => {
            for seq in 0..FLOOD {
                members[0].endpoint.send(Tag::new(seq, 0), &body("before my death"), &to_all(&hub));
            }
            assert!(hub.drain(PATIENCE));
            println!("all is in the kernel");
            std::io::stdout().flush().unwrap();
            // Until killed; the parent never writes.
            let _ = std::io::stdin().read_line(&mut String::new());
        }
        other => panic!("no role {other}"),
    }
}

/// Under what the others keep of early frames.
const FLOOD: u64 = 500;

fn exchange(hub: &Hub, members: &[Member]) {
    hub.publish("hello", format!("{}", hub.process()).as_bytes()).unwrap();
    let all = hub.collect("hello", PATIENCE).unwrap();
    assert_eq!(all, [b"process 0", b"process 1", b"process 2"]);
    for member in members {
        member.endpoint.send(Tag::new(0, 0), &body("x"), &to_all(hub));
    }
    for member in members {
        assert_eq!(member.log.messages(5).len(), 5);
        member.endpoint.goodbye(&Arc::from([]));
    }
    for member in members {
        let goodbyes = |notices: &[Notice]| {
            notices.iter().filter(|notice| matches!(notice, Notice::Goodbye { .. })).count()
        };
        let heard = member.log.until(|notices| goodbyes(notices) == 4);
        assert!(!heard.iter().any(is_end), "nobody who said goodbye is lost: {heard:?}");
    }
}

#[test]
fn processes_exchange_and_end_without_a_loss() {
    let rendezvous = fresh();
    let mut children = [1, 2].map(|process| start("exchange", &rendezvous, process));
    let hub = Hub::unix(&options(&rendezvous, 0)).unwrap();
    let all = ranks(0..hub.world_size());
    let members: Vec<Member> = hub.ranks_here().map(|rank| join(&hub, "world", rank, &all)).collect();
    exchange(&hub, &members);
    assert!(hub.drain(PATIENCE));
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    // Their connections have ended by now, or end soon: after their goodbyes that is no loss.
    let late = join(&hub, "after", 0, &all);
    late.log.until(|notices| notices.iter().filter(|notice| is_end(notice)).count() == 2);
    assert!(members.iter().all(|member| !member.log.now().iter().any(is_end)));
}

#[test]
fn what_a_killed_process_had_sent_is_heard_before_its_loss() {
    let rendezvous = fresh();
    let mut doomed = start("flood", &rendezvous, 2);
    let mut other = start("flood", &rendezvous, 1);
    let hub = Hub::unix(&options(&rendezvous, 0)).unwrap();
    wait_for_line(&mut doomed, "all is in the kernel");
    doomed.kill().unwrap();
    doomed.wait().unwrap();
    let all = ranks(0..hub.world_size());
    let member = join(&hub, "world", 0, &all);
    let heard = member.log.until(|notices| notices.iter().any(is_end));
    let end = heard.iter().position(is_end).unwrap();
    let from_doomed = only_messages(&heard[..end]).into_iter().filter(|m| m.from == Rank::new(3));
    assert!(from_doomed.map(|message| message.tag.seq).eq(0..FLOOD));
    let Notice::Lost { ranks: lost, detail } = &heard[end] else { panic!("{:?}", heard[end]) };
    assert_eq!(*lost, ranks(3..5));
    assert!(detail.contains(&format!("pid {}", doomed.id())), "{detail}");
    other.kill().unwrap();
    other.wait().unwrap();
}
