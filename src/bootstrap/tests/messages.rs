//! Messages between living ranks.

use std::sync::Arc;

use crate::bootstrap::{Attachment, Notice, Parcel, SightingKind, Tag};
use crate::ids::{CommId, ProcessId, Rank};

use super::*;

const LAYOUTS: [&[u32]; 4] = [&[4], &[1, 1], &[2, 2], &[3, 1, 4]];

#[test]
fn every_rank_hears_every_rank_in_order_itself_included() {
    for layout in LAYOUTS {
        let hubs = Hub::in_process(layout).unwrap();
        let members = join_all(&hubs, "world");
        let parcels = to_all(&hubs[0]);
        std::thread::scope(|scope| {
            for (rank, member) in members.iter().enumerate() {
                let parcels = &parcels;
                scope.spawn(move || {
                    for seq in 0..COUNT {
                        member.endpoint.send(Tag::new(seq, 0), &body(&format!("{rank}:{seq}")), parcels);
                    }
                });
            }
        });
        for member in &members {
            let heard = member.log.messages(members.len() * usize::try_from(COUNT).unwrap());
            for from in ranks(0..hubs[0].world_size()) {
                let of: Vec<_> = heard.iter().filter(|message| message.from == from).collect();
                let expected: Vec<_> = (0..COUNT)
                    .map(|seq| (Tag::new(seq, 0), body(&format!("{}:{seq}", from.get()))))
                    .collect();
                let came: Vec<_> =
                    of.iter().map(|message| (message.tag, Arc::clone(&message.body))).collect();
                assert_eq!(came, expected, "{layout:?} from {from}");
            }
        }
    }
}

const COUNT: u64 = 100;

#[test]
fn the_ranks_of_a_process_share_one_allocation_of_a_body() {
    let hubs = Hub::in_process(&[3, 1, 4]).unwrap();
    let members = join_all(&hubs, "world");
    members[0].endpoint.send(Tag::new(0, 0), &body("once"), &to_all(&hubs[0]));
    let bodies: Vec<_> = members.iter().map(|member| Arc::clone(&member.log.messages(1)[0].body)).collect();
    for group in [0..3, 3..4, 4..8] {
        let first = &bodies[group.start];
        assert!(bodies[group].iter().all(|other| Arc::ptr_eq(first, other)));
    }
    assert!(!Arc::ptr_eq(&bodies[0], &bodies[4]));
}

#[test]
fn large_bodies_cross_in_both_directions_at_once() {
    let hubs = Hub::in_process(&[1, 1]).unwrap();
    let members = join_all(&hubs, "world");
    let large: Arc<[u8]> = (0..8_u32 << 20).map(|i| u8::try_from(i % 251).unwrap()).collect();
    for round in 0..4 {
        for (rank, member) in (0..2_u32).zip(&members) {
            member.endpoint.send(Tag::new(0, round), &large, &[Parcel::plain(ranks(1 - rank..2 - rank))]);
        }
    }
    for member in &members {
        let heard = member.log.messages(4);
        assert!(heard.iter().all(|message| message.body == large));
    }
    assert!(hubs.iter().all(|hub| hub.drain(PATIENCE)));
}

#[test]
fn hubs_know_their_layout() {
    let hubs = Hub::in_process(&[3, 1, 4]).unwrap();
    assert_eq!(hubs.len(), 3);
    assert_eq!(hubs[2].process(), ProcessId::new(2));
    assert_eq!(hubs[2].layout(), [3, 1, 4]);
    assert_eq!(hubs[2].ranks_here(), 4..8);
    assert_eq!(hubs[0].world_size(), 8);
    let processes: Vec<u32> = (0..9).map(|rank| hubs[0].process_of(Rank::new(rank)).get()).collect();
    assert_eq!(processes, [0, 0, 0, 1, 2, 2, 2, 2, 3]);
    assert!(Hub::in_process(&[]).is_err());
    assert!(Hub::in_process(&[2, 0]).is_err());
    assert!(Hub::in_process(&[u32::MAX, 1]).is_err());
}

#[test]
fn a_round_is_a_new_tag_and_what_is_sent_is_counted() {
    let hubs = Hub::in_process(&[2, 1]).unwrap();
    let members = join_all(&hubs, "world");
    let sender = &members[0].endpoint;
    let parcels = to_all(&hubs[0]);
    for (seq, round) in [(0, 0), (0, 0), (0, 1), (1, 0), (1, 0), (0, 1)] {
        sender.send(Tag::new(seq, round), &body("four"), &parcels);
    }
    assert_eq!(sender.rounds(), 4);
    assert_eq!(sender.messages_sent(), 12);
    assert_eq!(sender.bytes_sent(), 48);
    assert_eq!(sender.descriptors_sent(), 0);
    assert_eq!(members[1].endpoint.rounds(), 0);
}

#[test]
fn early_frames_are_kept_and_come_before_later_ones() {
    for layout in LAYOUTS {
        let hubs = Hub::in_process(layout).unwrap();
        let all = ranks(0..hubs[0].world_size());
        let last = all.len() - 1;
        let sender = join(&hubs[0], "world", 0, &all);
        let to = Parcel::plain(vec![all[last]]);
        for seq in 0..10 {
            sender.endpoint.send(Tag::new(seq, 0), &body("early"), std::slice::from_ref(&to));
        }
        sender.endpoint.goodbye(&Arc::from([]));
        // Whether they have come or not when the receiver joins, it hears the same.
        let receiver = join(hubs.last().unwrap(), "world", all[last].get(), &all);
        let heard = receiver.log.until(|notices| notices.len() == 11);
        let seqs: Vec<u64> = only_messages(&heard).iter().map(|message| message.tag.seq).collect();
        assert_eq!(seqs, (0..10).collect::<Vec<_>>(), "{layout:?}");
        assert!(matches!(heard[10], Notice::Goodbye { from, .. } if from == Rank::new(0)));
    }
}

#[test]
fn frames_for_a_communicator_that_was_left_are_dropped() {
    let hubs = Hub::in_process(&[1, 1]).unwrap();
    let members = join_all(&hubs, "left");
    let witness = join_all(&hubs, "witness");
    let [first, second] = <[Member; 2]>::try_from(members).ok().unwrap();
    drop(second.endpoint);
    let kept_alive = Arc::downgrade(&second.log);
    drop(second.log);
    assert!(kept_alive.upgrade().is_none(), "a rank that left keeps no inbox");
    let to = [Parcel::plain(ranks(1..2))];
    for seq in 0..2_000 {
        first.endpoint.send(Tag::new(seq, 0), &body("too late"), &to);
    }
    // More than would be kept: had they been, the connection would be broken.
    witness[0].endpoint.send(Tag::new(0, 0), &body("still there"), &to);
    assert_eq!(&*witness[1].log.messages(1)[0].body, b"still there");
}

#[test]
fn goodbyes_and_aborts_reach_all_others_once_and_per_communicator() {
    for layout in LAYOUTS {
        let hubs = Hub::in_process(layout).unwrap();
        let (a, b) = (join_all(&hubs, "a"), join_all(&hubs, "b"));
        a[0].endpoint.goodbye(&Arc::from([]));
        a[0].endpoint.goodbye(&Arc::from([]));
        a[0].endpoint.send(Tag::new(9, 0), &body("mark"), &to_all(&hubs[0]));
        b[0].endpoint.abort(&body("because"));
        for member in &a[1..] {
            let heard = member.log.until(|notices| only_messages(notices).len() == 1);
            let goodbyes = heard.iter().filter(|n| matches!(n, Notice::Goodbye { .. })).count();
            assert_eq!((goodbyes, heard.len()), (1, 2), "{layout:?}");
        }
        for member in &b[1..] {
            let heard = member.log.until(|notices| !notices.is_empty());
            let Notice::Abort { from, body } = &heard[0] else { panic!("{heard:?}") };
            assert_eq!((*from, &**body), (Rank::new(0), b"because".as_slice()));
        }
        assert!(b[0].log.now().is_empty(), "nobody aborts itself");
    }
}

#[test]
fn a_communicator_that_all_have_finished_is_forgotten() {
    let hubs = Hub::in_process(&[2, 1]).unwrap();
    for round in 0..3 {
        let members = join_all(&hubs, &format!("comm {round}"));
        members.iter().for_each(|member| member.endpoint.goodbye(&Arc::from([])));
        for member in &members {
            member.log.until(|notices| notices.len() == 2);
        }
        drop(members);
        assert!(hubs.iter().all(|hub| hub.shared().router.remembered() == 0));
    }
}

#[test]
fn peers_are_last_seen_in_any_communicator() {
    for layout in LAYOUTS {
        let hubs = Hub::in_process(layout).unwrap();
        let (a, b) = (join_all(&hubs, "a"), join_all(&hubs, "b"));
        let all = ranks(0..hubs[0].world_size());
        let last = all.len() - 1;
        assert_eq!(a[last].endpoint.last_seen(Rank::new(0)), None);
        a[0].endpoint.send(Tag::new(3, 1), &body("x"), &[Parcel::plain(vec![all[last]])]);
        a[last].log.messages(1);
        b[0].endpoint.send(Tag::new(7, 0), &body("x"), &[Parcel::plain(vec![all[last]])]);
        b[0].endpoint.goodbye(&Arc::from([]));
        b[last].log.until(|notices| notices.len() == 2);
        // Only stashed: nobody there has joined it.
        let c = join(&hubs[0], "c", 0, &all);
        c.endpoint.send(Tag::new(0, 0), &body("x"), &[Parcel::plain(vec![all[last]])]);
        a[0].endpoint.send(Tag::new(3, 2), &body("x"), &[Parcel::plain(vec![all[last]])]);
        a[last].log.messages(2);
        let seen = a[last].endpoint.sightings(Rank::new(0));
        let names: Vec<_> = seen.iter().map(|s| (s.comm, s.tag, s.kind)).collect();
        let expected = [
            (CommId::root("a"), Tag::new(3, 2), SightingKind::Message),
            (CommId::root("c"), Tag::new(0, 0), SightingKind::Message),
            (CommId::root("b"), Tag::new(7, 0), SightingKind::Goodbye),
        ];
        assert_eq!(names, expected, "{layout:?}");
        assert_eq!(seen[0].comm_name, "a");
        let latest = b[last].endpoint.last_seen(Rank::new(0)).unwrap();
        assert_eq!((latest.comm, latest.tag), (CommId::root("a"), Tag::new(3, 2)));
    }
}

#[test]
fn values_stay_in_their_process_and_what_cannot_be_sent_comes_back() {
    let hubs = Hub::in_process(&[2, 1]).unwrap();
    let members = join_all(&hubs, "world");
    let value = Attachment::Value(Arc::new(42_u64));
    let parcel = |to| Parcel { to, handles: vec![value.clone()] };
    members[0].endpoint.send(Tag::new(0, 0), &body("v"), &[parcel(ranks(0..2)), parcel(ranks(2..3))]);
    let own = members[0].log.until(|notices| notices.len() == 2);
    let Attachment::Value(came) = &only_messages(&own)[0].handles[0] else { panic!("{own:?}") };
    assert_eq!(came.downcast_ref::<u64>(), Some(&42));
    let Notice::Broken { ranks: named, .. } = &own[1] else { panic!("{own:?}") };
    assert_eq!(*named, ranks(2..3));
    assert!(members[1].log.messages(1)[0].handles.is_empty(), "only the first of a parcel gets its handles");
    members[0].endpoint.send(Tag::new(0, 1), &body("next"), &to_all(&hubs[0]));
    assert_eq!(members[2].log.messages(1)[0].tag, Tag::new(0, 1));
}
