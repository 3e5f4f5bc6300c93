use crate::device::run_here;
use crate::device::testing::{Spec, World, user_base};
use crate::error::{Error, Misuse};

/// 70 windows of 16 bytes, 32 bytes apart: a chain of 3 chunks.
fn many() -> Spec {
    Spec { windows: (0..70).map(|i| (32 * i, 16)).collect(), ..Spec::new(2, 4_096) }
}

#[test]
fn every_window_of_a_chain_of_three_chunks_is_found() {
    let world = World::new(many());
    run_here(world.env(1), |kernel| {
        for i in 0..70 {
            for into in [0, 15] {
                let found = kernel.find_window(user_base(1) + 32 * i as u64 + into).unwrap();
                assert_eq!((found.base(), found.size()), (user_base(1) + 32 * i as u64, 16));
                assert_eq!(found.bytes(), kernel.window(world.window(1, i))?.bytes());
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn bug_02_an_entry_ends_after_its_size() {
    let world = World::new(many());
    run_here(world.env(0), |kernel| {
        assert!(kernel.find_window(user_base(0) + 16).is_none());
        assert!(kernel.find_window(user_base(0) + 31).is_none());
        Ok(())
    })
    .unwrap();
}

#[test]
fn bug_36_an_absent_address_is_none_and_no_fault() {
    let empty = World::new(Spec { windows: Vec::new(), ..Spec::new(1, 4_096) });
    run_here(empty.env(0), |kernel| {
        assert!(kernel.find_window(user_base(0)).is_none());
        Ok(())
    })
    .unwrap();
    let world = World::new(many());
    run_here(world.env(0), |kernel| {
        for address in [0, user_base(0) - 1, user_base(0) + 70 * 32, u64::MAX] {
            assert!(kernel.find_window(address).is_none(), "{address:#x}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn bug_36_of_overlapping_windows_the_innermost_is_found() {
    let windows = vec![(0, 4_096), (256, 1_024), (512, 64), (512, 64), (560, 100), (0, 64)];
    let world = World::new(Spec { windows, ..Spec::new(1, 4_096) });
    run_here(world.env(0), |kernel| {
        let size_at = |at| kernel.find_window(user_base(0) + at).map(|window| window.size());
        assert_eq!(size_at(0), Some(64));
        assert_eq!(size_at(64), Some(4_096));
        assert_eq!(size_at(300), Some(1_024));
        assert_eq!(size_at(512), Some(64));
        assert_eq!(size_at(575), Some(64));
        assert_eq!(size_at(576), Some(100));
        assert_eq!(size_at(660), Some(1_024));
        assert_eq!(size_at(4_095), Some(4_096));
        assert_eq!(size_at(4_096), None);
        Ok(())
    })
    .unwrap();
}

#[test]
fn bug_28_a_window_that_is_not_in_the_table_is_closed() {
    let world = World::new(many());
    let outcome = run_here(world.env(0), |kernel| kernel.window(world.window(1, 0)).map(|_| ()));
    assert!(matches!(outcome, Err(Error::Misuse(Misuse::Closed { .. }))), "{outcome:?}");
}
