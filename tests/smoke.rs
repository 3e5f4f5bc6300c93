//! The main job, end to end, in each layout.

mod common;

use common::*;
use symwin::coll::{DType, ReduceOp};
use symwin::{DevCommRequirements, Group, WindowFlags};

#[test]
fn windows_reach_every_peer_in_every_layout() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 1 << 16);
        let windows = windows(&ranks, &buffers);
        check_pointers(&ranks, &windows, &buffers);
        for comm in &ranks {
            assert_eq!(comm.status().rounds, 2, "{layout:?}: offer and vote");
            assert_eq!(comm.status().digest, ranks[0].status().digest, "P-1");
        }
        drop(windows);
        finalize(ranks);
    }
}

#[test]
fn an_all_reduce_over_windows_gives_every_rank_the_sum() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 4096);
        let group = Group::start();
        let mut pending = Vec::new();
        for (comm, buffer) in ranks.iter().zip(&buffers) {
            let value = (comm.rank().get() + 1) as f32;
            let bytes: Vec<u8> = std::iter::repeat_n(value.to_le_bytes(), 1024).flatten().collect();
            buffer.write(0, &bytes).unwrap();
            pending.push(group.register(comm, buffer, WindowFlags::COLL_SYMMETRIC));
        }
        let dev: Vec<_> = ranks
            .iter()
            .map(|comm| group.create_dev_comm(comm, DevCommRequirements::new().lsa_barriers(2)))
            .collect();
        group.end().unwrap();
        let windows: Vec<_> = pending.into_iter().map(|p| p.wait().unwrap()).collect();
        let dev: Vec<_> = dev.into_iter().map(|p| p.wait().unwrap()).collect();
        assert_eq!(ranks[0].status().rounds, 2, "the collectives' own device communicator takes no round");
        let running: Vec<_> = ranks
            .iter()
            .zip(&windows)
            .map(|(comm, w)| {
                comm.start_all_reduce(&w.whole(), &w.whole(), DType::F32, ReduceOp::Sum).unwrap()
            })
            .collect();
        for handle in running {
            handle.join().unwrap();
        }
        for buffer in &buffers {
            let mut bytes = [0; 4096];
            buffer.read(0, &mut bytes).unwrap();
            assert!(bytes.chunks(4).all(|c| f32::from_le_bytes(c.try_into().unwrap()) == 10.0));
        }
        let handles: Vec<_> =
            dev.iter().map(|d| d.launch(2, |k| k.barrier(k.block())?.sync()).unwrap()).collect();
        for handle in handles {
            handle.join().unwrap();
        }
        drop((windows, dev));
        finalize(ranks);
    }
}
