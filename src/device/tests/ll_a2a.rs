use std::sync::Arc;
use std::time::Duration;

use crate::device::testing::{AGES, LL_BUFFER, Spec, World};
use crate::device::{Kernel, launch, run_here};
use crate::error::{Error, FailureCause, Misuse, Result};
use crate::ids::LsaRank;

/// What rank `from` sends to rank `to` in a round: both halves matter.
fn value(from: u32, to: u32, round: u32) -> u64 {
    u64::from(from << 16 | to) << 32 | u64::from(round.wrapping_mul(0x9e37_79b9))
}

/// Rounds of an all-to-all: slot r is rank r's.
fn rounds(kernel: &Kernel<'_>, block: u32, count: u32) -> Result<u32> {
    let mut session = kernel.ll_a2a(block)?;
    let me = kernel.lsa_rank().get();
    for round in 0..count {
        for peer in 0..kernel.lsa_size() {
            session.send(LsaRank::new(peer), me, value(me, peer, round))?;
        }
        for peer in 0..kernel.lsa_size() {
            assert_eq!(session.recv(peer)?, value(peer, me, round), "round {round} from rank {peer}");
        }
        session.end_epoch()?;
    }
    Ok(session.epoch())
}

fn spec(ranks: u32) -> Spec {
    Spec { ll_a2a: (3, ranks + 2), ..Spec::new(ranks, 4_096) }
}

/// The first word of a block's state line.
fn state_word(world: &World, block: u32) -> usize {
    let line = block * (1 + 2 * world.spec.ll_a2a.1);
    LL_BUFFER as usize * 32 + 4 * line as usize
}

fn two_kernels(spec: Spec, start: u32, count: u32) {
    let world = World::new(spec);
    let word = state_word(&world, 1);
    for rank in 0..world.spec.ranks {
        world.set_resource_word(rank, word, start);
    }
    // Epochs are their state plus 2, and skip 0 and 1.
    let after = |epochs: u32| {
        let epoch = u64::from(start) + 2 + u64::from(epochs);
        u32::try_from(if epoch > u64::from(u32::MAX) { epoch - u64::from(u32::MAX) + 1 } else { epoch })
            .unwrap()
    };
    for kernel in 1..=2 {
        let results = world.run(move |k| rounds(k, 1, count));
        assert_eq!(results, vec![Ok(after(kernel * count)); world.spec.ranks as usize]);
    }
    for rank in 0..world.spec.ranks {
        assert_eq!(world.resource_word(rank, word), after(2 * count) - 2, "the state of the block");
        assert_eq!(world.resource_word(rank, word + 1), 0, "nobody sleeps");
        for other in [0, 2] {
            assert_eq!(world.resource_word(rank, state_word(&world, other)), 0, "another block's state");
        }
    }
}

#[test]
fn values_arrive_in_their_epochs() {
    for ranks in [1, 2, 3, 8] {
        two_kernels(spec(ranks), 0, 500);
    }
}

#[test]
fn values_arrive_where_waits_are_sliced() {
    two_kernels(Spec { sliced: true, ..spec(3) }, 0, 50);
}

#[test]
fn epochs_wrap_past_0_and_1() {
    two_kernels(spec(3), u32::MAX - 6, 4);
    two_kernels(spec(2), u32::MAX - 7, 100);
}

/// Banks that hold what an epoch after the wrap would look for are emptied before it comes.
#[test]
fn no_value_of_before_the_wrap_is_taken_for_a_new_one() {
    let world = World::new(spec(2));
    let first = state_word(&world, 1);
    for rank in 0..2 {
        // The next epochs are 2^32 - 2, 2^32 - 1, 2 and 3.
        world.set_resource_word(rank, first, u32::MAX - 3);
        for word in first + 4..first + 4 * (1 + 2 * 4) {
            world.set_resource_word(rank, word, 2 + u32::from(word >= first + 4 * 5));
        }
    }
    let results = world.run(|kernel| {
        let mut session = kernel.ll_a2a(1)?;
        let (me, peer) = (kernel.lsa_rank().get(), 1 - kernel.lsa_rank().get());
        for round in 0..4 {
            // Slots that no epoch before the wrap has used.
            let first = if round < 2 { 0 } else { 2 };
            session.send(LsaRank::new(peer), first + me, value(me, peer, round))?;
            assert_eq!(session.recv(first + peer)?, value(peer, me, round));
            session.end_epoch()?;
        }
        Ok(session.epoch())
    });
    assert_eq!(results, vec![Ok(4); 2]);
}

#[test]
fn many_values_at_once_and_broadcasts() {
    let world = World::new(Spec { ll_a2a: (1, 12), ..Spec::new(3, 4_096) });
    let results = world.run(|kernel| {
        let mut session = kernel.ll_a2a(0)?;
        let me = kernel.lsa_rank().get();
        for round in 0..50_u64 {
            let values = [0, 1, 2].map(|i| round << 40 | u64::from(me) << 8 | i);
            for peer in (0..3).map(LsaRank::new) {
                session.send_all(peer, 3 * me, &values)?;
            }
            session.broadcast(9 + me, round)?;
            for peer in 0..3 {
                let mut got = [0; 3];
                session.recv_all(LsaRank::new(peer), 3 * peer, &mut got)?;
                assert_eq!(got, [0, 1, 2].map(|i| round << 40 | u64::from(peer) << 8 | i));
                assert_eq!(session.recv(9 + peer)?, round);
            }
            session.end_epoch()?;
        }
        Ok(())
    });
    assert_eq!(results, vec![Ok(()); 3]);
}

#[test]
fn blocks_have_buffers_of_their_own() {
    let world = World::new(spec(2));
    let handles: Vec<_> =
        (0..2).map(|rank| launch(world.env(rank), 3, |kernel| rounds(kernel, kernel.block(), 200))).collect();
    for handle in handles {
        assert_eq!(handle.join(), Ok(vec![202; 3]));
    }
}

#[test]
fn a_deadline_names_who_has_not_sent() {
    let after = Duration::from_millis(30);
    let world = World::new(Spec { first: 4, deadline: after, ..spec(3) });
    let error = run_here(world.env(0), |kernel| {
        let mut session = kernel.ll_a2a(2)?;
        session.recv_all(LsaRank::new(1), 3, &mut [0])
    })
    .unwrap_err();
    let Error::Failed(failure) = &error else { panic!("{error:?}") };
    assert_eq!(failure.operation, "LL all-to-all 2, slot 3 not filled in epoch 2");
    let FailureCause::Deadline { after: told, missing, .. } = &failure.cause else { panic!("{error:?}") };
    assert_eq!((*told, &missing[0].peer, missing.len()), (after, &world.peer(1), 1));
    assert_eq!(world.watch(0).error(), Some(error.clone()));
    // From here on every wait, and every send, ends with it.
    let later = run_here(world.env(0), |kernel| kernel.ll_a2a(0)?.send(LsaRank::new(1), 0, 1));
    assert_eq!(later, Err(error));
}

#[test]
fn a_failure_ends_a_wait_for_a_value() {
    let world = World::new(Spec { deadline: AGES, ..spec(2) });
    let waiting = launch(world.env(0), 1, |kernel| kernel.ll_a2a(0)?.recv(1));
    let failure: Error = Misuse::Other { what: "a test".to_owned() }.into();
    world.watch(0).fail(failure.clone());
    assert_eq!(waiting.join(), Err(failure));
}

#[test]
fn what_is_not_there_or_in_use_is_misuse() {
    let world = World::new(spec(2));
    let inside = Arc::clone(&world);
    run_here(world.env(0), move |kernel| {
        let is_misuse = |outcome: Result<()>| matches!(outcome, Err(Error::Misuse(_)));
        let mut session = kernel.ll_a2a(0)?;
        assert!(is_misuse(kernel.ll_a2a(0).map(drop)), "in use");
        assert!(is_misuse(kernel.ll_a2a(3).map(drop)), "no such block");
        assert!(is_misuse(session.send(LsaRank::new(1), 4, 1)), "no such slot");
        assert!(is_misuse(session.send_all(LsaRank::new(1), 3, &[1, 2])), "not all slots");
        assert!(is_misuse(session.send(LsaRank::new(2), 0, 1)), "no such rank");
        assert!(is_misuse(session.recv(4).map(drop)), "no such slot");
        assert_eq!(inside.resource_word(1, state_word(&inside, 0) + 4 * 4), 0, "nothing was sent");
        drop(session);
        kernel.ll_a2a(0).map(drop)
    })
    .unwrap();
}
