use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use half::{bf16, f16};

use crate::device::abi::TeamStruct;
use crate::device::testing::{RESOURCE_BYTES, Spec, World};
use crate::device::{Element, Kernel, launch, run_here};
use crate::error::{Error, Misuse, Result};
use crate::ids::{LsaRank, Rank};

fn is_out_of_range<T>(outcome: Result<T>) -> bool {
    matches!(outcome, Err(Error::Misuse(Misuse::OutOfRange { .. })))
}

fn is_not_in_team<T>(outcome: Result<T>) -> bool {
    matches!(outcome, Err(Error::Misuse(Misuse::NotInTeam { .. })))
}

fn is_other<T>(outcome: Result<T>) -> bool {
    matches!(outcome, Err(Error::Misuse(Misuse::Other { .. })))
}

#[test]
fn what_a_rank_writes_to_a_peer_lands_in_the_peers_own_memory() {
    let world = World::new(Spec { windows: vec![(4_096, 8_192)], ..Spec::new(4, 3 * 4_096) });
    let inside = Arc::clone(&world);
    let results = world.run(move |kernel| {
        let me = kernel.lsa_rank();
        let window = kernel.window(inside.window(me.get(), 0))?;
        for peer in (0..kernel.lsa_size()).map(LsaRank::new) {
            let value = 1_000 * me.get() + peer.get();
            kernel.slice::<u32>(&window, peer, 64, 16)?.store(me.index(), value)?;
        }
        Ok(())
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    for peer in 0..4 {
        for from in 0..4 {
            let mut bytes = [0; 4];
            world.peek(peer, 4_096 + 64 + 4 * from as usize, &mut bytes);
            assert_eq!(u32::from_ne_bytes(bytes), 1_000 * from + peer);
        }
    }
}

#[test]
fn all_kinds_of_pointer_to_a_rank_are_one() {
    let world = World::new(Spec { first: 6, ..Spec::new(4, 4_096) });
    run_here(world.env(1), |kernel| {
        let window = kernel.window(world.window(1, 0))?;
        let team = TeamStruct { n_ranks: 2, rank: 0, stride: 2 };
        assert_eq!(window.local_ptr(9)?, window.lsa_ptr(LsaRank::new(1), 9)?);
        assert_eq!(window.world_ptr(Rank::new(9), 9)?, window.lsa_ptr(LsaRank::new(3), 9)?);
        assert_eq!(window.team_ptr(team, 1, 9)?, window.lsa_ptr(LsaRank::new(3), 9)?);
        assert_eq!(window.team_ptr(team, 0, 9)?, window.local_ptr(9)?);
        assert_eq!((kernel.rank(), kernel.n_ranks(), kernel.lsa_size()), (7, 11, 4));
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_is_not_there_is_a_typed_error() {
    let world = World::new(Spec { first: 6, ..Spec::new(4, 4_096) });
    run_here(world.env(1), |kernel| {
        let window = kernel.window(world.window(1, 0))?;
        let zero = LsaRank::new(0);
        assert!(window.lsa_ptr(zero, 4_096).is_ok());
        assert!(is_out_of_range(window.lsa_ptr(zero, 4_097)));
        assert!(is_out_of_range(window.slice::<u64>(zero, 8, 512)));
        assert!(is_out_of_range(window.slice::<u64>(zero, 8, usize::MAX)));
        assert!(is_out_of_range(window.slice::<u8>(zero, u64::MAX, 2)));
        assert!(is_other(window.slice::<u64>(zero, 4, 1)));
        assert!(is_not_in_team(window.lsa_ptr(LsaRank::new(4), 0)));
        assert!(is_not_in_team(window.world_ptr(Rank::new(5), 0)));
        assert!(is_not_in_team(window.world_ptr(Rank::new(10), 0)));
        let far = TeamStruct { n_ranks: 9, rank: 0, stride: i32::MAX };
        assert!(is_not_in_team(window.team_ptr(far, 1, 0)));
        assert!(window.team_ptr(far, u32::MAX, 0).is_err());
        assert!(is_out_of_range(kernel.resource::<u8>(0, zero, RESOURCE_BYTES + 1)));
        assert!(is_out_of_range(kernel.resource::<u8>(u32::MAX, zero, 0)));
        assert!(is_not_in_team(kernel.resource::<u8>(0, LsaRank::new(4), 0)));
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_peer_with_a_smaller_window_is_checked_against_its_own_size() {
    let world = World::new(Spec::new(2, 4_096));
    let sizes: Arc<[u64]> = Arc::new([4_096, 100]);
    let env = world.env(0).sizes(Arc::new(move |_| Some(Arc::clone(&sizes))));
    run_here(env, |kernel| {
        let window = kernel.window(world.window(0, 0))?;
        assert!(window.slice::<u8>(LsaRank::new(0), 0, 4_096).is_ok());
        assert!(window.slice::<u8>(LsaRank::new(1), 0, 100).is_ok());
        assert!(is_out_of_range(window.slice::<u8>(LsaRank::new(1), 0, 101)));
        Ok(())
    })
    .unwrap();
}

#[test]
fn copies_of_every_length_and_alignment_are_exact() {
    let world = World::new(Spec::new(1, 4_096));
    run_here(world.env(0), |kernel| {
        let slice = kernel.window(world.window(0, 0))?.local_slice::<u8>(0, 128)?;
        for start in 0..9 {
            for len in 0..40_u8 {
                slice.write_from(0, &[0xee; 128])?;
                let bytes: Vec<u8> = (1..=len).collect();
                slice.write_from(start, &bytes)?;
                let mut all = [0; 128];
                slice.read_into(0, &mut all)?;
                let mut expected = [0xee; 128];
                expected[start..start + bytes.len()].copy_from_slice(&bytes);
                assert_eq!(all, expected);
                let mut back = vec![0; bytes.len()];
                slice.read_into(start, &mut back)?;
                assert_eq!(back, bytes);
            }
        }
        assert!(is_out_of_range(slice.read_into(120, &mut [0; 9])));
        assert!(is_out_of_range(slice.write_from(usize::MAX, &[0; 2])));
        assert!(is_out_of_range(slice.load(128)));
        assert!(is_out_of_range(slice.store(usize::MAX, 0)));
        Ok(())
    })
    .unwrap();
}

#[test]
fn every_element_type_keeps_its_bits() {
    fn check<T: Element + PartialEq + std::fmt::Debug>(
        kernel: &Kernel<'_>,
        window: u64,
        value: T,
    ) -> Result<()> {
        let slice = kernel.window(window)?.local_slice::<T>(16, 3)?;
        slice.store(1, value)?;
        assert_eq!(slice.load(1)?, value);
        let mut bulk = [value; 3];
        slice.read_into(0, &mut bulk)?;
        assert_eq!(bulk[1], value);
        slice.write_from(2, &[value])?;
        assert_eq!(slice.load(2)?, value);
        Ok(())
    }
    let world = World::new(Spec::new(1, 4_096));
    run_here(world.env(0), |kernel| {
        let window = world.window(0, 0);
        check(kernel, window, 200_u8)?;
        check(kernel, window, -100_i8)?;
        check(kernel, window, 60_000_u16)?;
        check(kernel, window, -30_000_i16)?;
        check(kernel, window, f16::from_f32(-1.5))?;
        check(kernel, window, bf16::from_f32(2.5))?;
        check(kernel, window, u32::MAX - 1)?;
        check(kernel, window, i32::MIN)?;
        check(kernel, window, -3.25_f32)?;
        check(kernel, window, u64::MAX - 1)?;
        check(kernel, window, i64::MIN)?;
        check(kernel, window, 1e300_f64)
    })
    .unwrap();
}

#[test]
fn a_panic_in_one_block_is_a_typed_error_and_all_blocks_are_joined() {
    let world = World::new(Spec::new(1, 4_096));
    let ended = Arc::new(AtomicU32::new(0));
    let blocks_ended = Arc::clone(&ended);
    let outcome: Result<Vec<()>> = launch(world.env(0), 4, move |kernel| {
        blocks_ended.fetch_add(1, Ordering::SeqCst);
        match kernel.block() {
            0 => Err(Misuse::Closed { what: "a thing".to_owned() }.into()),
            2 => panic!("block {} of {}", kernel.block(), kernel.blocks()),
            _ => Ok(()),
        }
    })
    .join();
    let panicked = Misuse::KernelPanicked { block: 2, message: "block 2 of 4".to_owned() };
    assert_eq!(outcome, Err(panicked.into()));
    assert_eq!(ended.load(Ordering::SeqCst), 4);
    let here: Result<()> = run_here(world.env(0), |_| panic!("here"));
    assert_eq!(here, Err(Misuse::KernelPanicked { block: 0, message: "here".to_owned() }.into()));
}

#[test]
fn results_come_by_block_and_the_hook_runs_once_after_the_last() {
    let world = World::new(Spec::new(1, 4_096));
    let (running, hooks) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (at_end, hooked) = (Arc::clone(&running), Arc::clone(&hooks));
    let keep = Arc::clone(&world);
    let env = world.env_with(0, world.dev_comm(0), move || {
        assert_eq!(at_end.load(Ordering::SeqCst), 8, "a block still runs");
        hooked.fetch_add(1, Ordering::SeqCst);
        drop(keep);
    });
    let blocks = launch(env, 8, move |kernel| {
        running.fetch_add(1, Ordering::SeqCst);
        Ok(kernel.block())
    })
    .join();
    assert_eq!(blocks, Ok((0..8).collect()));
    assert_eq!(hooks.load(Ordering::SeqCst), 1);
}

#[test]
fn a_kernel_of_no_blocks_is_refused() {
    let world = World::new(Spec::new(1, 4_096));
    let outcome = launch(world.env(0), 0, |_| Ok(())).join();
    assert!(matches!(outcome, Err(Error::Misuse(Misuse::BadSetting { .. }))), "{outcome:?}");
}
