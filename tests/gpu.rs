//! The runtime on a real GPU, several ranks on it. Run by `scripts/gpu-bundle` on a machine that has one; everything
//! that needs no kernel of a GPU is tested on the host device.
#![allow(unsafe_code, reason = "kernels and bare addresses")]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "these are tests of few ranks; clippy takes helpers for none"
)]

#[path = "common/gpus.rs"]
mod gpus;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUstreamCaptureMode;
use cudarc::driver::{CudaContext, DevicePtr, DeviceSlice};
use gpus::*;
use half::{bf16, f16};
use symwin::coll::{DType, ReduceOp};
use symwin::driver::cuda::{CudaDriver, devices};
use symwin::driver::{DeviceProblem, Driver, Stream};
use symwin::error::{Cause, Misuse, Reason};
use symwin::{Buffer, Communicator, Config, Error, Group, Rank, Region, WindowFlags};
use zerocopy::IntoBytes;

#[test]
#[ignore = "needs a GPU"]
fn every_peer_pointer_is_written_and_read_by_kernels() {
    for ranks in [1, 2, 4, 8] {
        let world = world(ranks);
        world.check_peers(&world.alloc(4 * MIB));
        world.check_peers(&world.carve(MIB));
        world.finalize();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn host_copies_reach_every_peer() {
    let world = world(2);
    let buffers = world.alloc(6 * MIB);
    let windows = world.register(&buffers, WindowFlags::empty());
    let data: Vec<u8> = (0..3 * MIB + 5).map(|i| (i * 31 % 251) as u8).collect();
    windows[0].write(Rank::new(1), 3, &data).unwrap();
    let mut seen = vec![0; data.len()];
    buffers[1].read(3, &mut seen).unwrap();
    assert!(seen == data);
    drop((windows, buffers));
    world.finalize();
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
#[ignore = "needs a GPU"]
fn a_thousand_cycles_leave_memory_addresses_and_descriptors_flat() {
    let world = world(2);
    let buffers = world.alloc(4 * MIB);
    let cycle = || {
        let windows = world.register(&buffers, WindowFlags::empty());
        windows.iter().for_each(|window| window.close().unwrap());
    };
    (0..10).for_each(|_| cycle());
    let held = || {
        // What was closed is given back with the next batch.
        world.settle();
        let free = world.gpu.context().mem_get_info().unwrap().0;
        (world.gpu.counts(), descriptors(), free)
    };
    let before = held();
    for _ in 0..1000 {
        cycle();
    }
    let after = held();
    assert_eq!(before.0.handles, after.0.handles);
    assert_eq!(before.0.reservations, after.0.reservations);
    assert_eq!(before.1, after.1, "descriptors");
    assert!(before.2.abs_diff(after.2) <= 4 * MIB, "device memory: {} -> {}", before.2, after.2);
    drop(buffers);
    world.finalize();
}

fn encode(value: f64, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F64 => value.to_le_bytes().to_vec(),
        DType::I32 => (value as i32).to_le_bytes().to_vec(),
        DType::I64 => (value as i64).to_le_bytes().to_vec(),
        DType::U8 => vec![value as u8],
        DType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        _ => bf16::from_f64(value).to_le_bytes().to_vec(),
    }
}

fn input(rank: usize, i: usize) -> usize {
    (rank * 3 + i * 7) % 11
}

fn expected(ranks: usize, i: usize, dtype: DType, op: ReduceOp) -> f64 {
    let inputs = (0..ranks).map(|rank| input(rank, i));
    let sum: usize = inputs.clone().sum();
    let is_integer = matches!(dtype, DType::I32 | DType::I64 | DType::U8);
    match op {
        ReduceOp::Sum => sum as f64,
        ReduceOp::Mean if is_integer => (sum / ranks) as f64,
        ReduceOp::Mean => sum as f64 / ranks as f64,
        ReduceOp::Min => inputs.min().unwrap() as f64,
        _ => inputs.max().unwrap() as f64,
    }
}

#[test]
#[ignore = "needs a GPU"]
fn all_reduce_is_right_for_all_types_operations_sizes_and_alignments() {
    for ranks in [1, 2, 3, 8] {
        let world = world(ranks);
        let bytes = 4 * MIB;
        let buffers = world.alloc(2 * bytes);
        let windows = world.register(&buffers, WindowFlags::COLL_SYMMETRIC);
        let streams = world.streams();
        for dtype in DType::ALL {
            let size = dtype.size_bytes();
            for op in ReduceOp::ALL {
                // One shot and two shots; whole vectors, edges, nothing but edges; in place and not.
                for (count, from, to) in [
                    (1, 0, 0),
                    (1000, 0, bytes),
                    (1003, size, bytes + size),
                    (777, 0, bytes + size),
                    (20_000, 0, bytes + size),
                    (300_001, 16, 16),
                    (300_001, 3 * size, bytes + 5 * size),
                ] {
                    for (rank, buffer) in buffers.iter().enumerate() {
                        let data: Vec<u8> =
                            (0..count).flat_map(|i| encode(input(rank, i) as f64, dtype)).collect();
                        buffer.write(from, &data).unwrap();
                    }
                    for ((comm, window), &stream) in world.ranks.iter().zip(&windows).zip(&streams) {
                        let send = window.slice(from..from + count * size).unwrap();
                        let recv = window.slice(to..to + count * size).unwrap();
                        comm.all_reduce_on(stream, &send, &recv, dtype, op).unwrap();
                    }
                    world.join(&streams);
                    let want: Vec<u8> = (0..count)
                        .flat_map(|i| encode(expected(ranks as usize, i, dtype, op), dtype))
                        .collect();
                    for buffer in &buffers {
                        let mut seen = vec![0; count * size];
                        buffer.read(to, &mut seen).unwrap();
                        let wrong = seen.iter().zip(&want).position(|(a, b)| a != b);
                        assert_eq!(wrong, None, "{ranks} ranks, {dtype} {op:?}, {count} from {from} to {to}");
                    }
                }
            }
        }
        for stream in streams {
            world.gpu.stream_destroy(stream).unwrap();
        }
        drop((windows, buffers));
        world.finalize();
    }
}

/// The user captures a graph, with our collective in it, registers in the middle of the capture, and runs the graph
/// several times.
#[test]
#[ignore = "needs a GPU"]
fn a_collective_is_captured_and_a_registration_in_the_middle_breaks_nothing() {
    let world = world(2);
    let context = Arc::clone(world.gpu.context());
    let buffers = world.alloc(MIB);
    let windows = world.register(&buffers, WindowFlags::COLL_SYMMETRIC);
    for buffer in &buffers {
        buffer.write(0, &1.0_f32.to_le_bytes().repeat(1024)).unwrap();
    }
    let streams: Vec<_> = world.ranks.iter().map(|_| context.new_stream().unwrap()).collect();
    let mut graphs = Vec::new();
    for ((comm, window), stream) in world.ranks.iter().zip(&windows).zip(&streams) {
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        let slice = window.slice(0..4096).unwrap();
        comm.all_reduce_on(stream, &slice, &slice, DType::F32, ReduceOp::Sum).unwrap();
        let others = world.alloc(2 * MIB);
        drop(world.register(&others, WindowFlags::empty()));
        let error = window.close_after(stream).unwrap_err();
        assert!(error.to_string().contains("captured"), "{error}");
        let flags =
            cudarc::driver::sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        graphs.push(stream.end_capture(flags).unwrap().unwrap());
    }
    for _ in 0..3 {
        graphs.iter().for_each(|graph| graph.launch().unwrap());
    }
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    for buffer in &buffers {
        let mut seen = [0; 4];
        buffer.read(4092, &mut seen).unwrap();
        assert_eq!(f32::from_le_bytes(seen), 8.0, "three sums over two ranks");
    }
    drop((graphs, streams, windows, buffers));
    world.finalize();
}

fn refusal<T: std::fmt::Debug>(outcome: Result<T, Error>) -> DeviceProblem {
    let Err(Error::RolledBack(rolled_back)) = outcome else {
        panic!("a refusal was expected, not {outcome:?}")
    };
    let Cause::Refused { faults } = &rolled_back.cause else { panic!("{rolled_back}") };
    let Reason::Device(error) = &faults[0].reason else { panic!("{rolled_back}") };
    error.problem.clone()
}

#[test]
#[ignore = "needs a GPU"]
fn memory_that_was_not_made_for_sharing_is_refused_on_every_rank() {
    let world = world(2);
    let stream = world.gpu.context().new_stream().unwrap();
    let foreign = stream.alloc_zeros::<u8>(MIB).unwrap();
    stream.synchronize().unwrap();
    let own = world.ranks[1].alloc(MIB).unwrap();
    let address = foreign.device_ptr(&stream).0;
    // SAFETY: nothing is registered: it is refused.
    let region = unsafe { Region::raw(std::ptr::without_provenance_mut(address as usize), 4096) };
    let group = Group::start();
    let first = group.register(&world.ranks[0], region, WindowFlags::empty());
    let second = group.register(&world.ranks[1], own.slice(0..4096).unwrap(), WindowFlags::empty());
    assert!(group.end().is_err());
    for outcome in [first.wait(), second.wait()] {
        let problem = refusal(outcome);
        assert!(matches!(problem, DeviceProblem::NotShareable { .. }), "{problem}");
    }
    drop((own, foreign));
    world.finalize();
}

#[test]
#[ignore = "needs a GPU"]
fn a_window_spans_several_allocations() {
    let world = world(2);
    let buffers: Vec<Buffer> =
        world.ranks.iter().map(|comm| comm.alloc_segments(&[2 * MIB, 4 * MIB, 2 * MIB]).unwrap()).collect();
    let windows = world.register(&buffers, WindowFlags::empty());
    assert_eq!(windows[0].size(), 8 * MIB);
    for at in [0, 2 * MIB - 4, 2 * MIB, 6 * MIB - 2, 8 * MIB - 4] {
        windows[0].write(Rank::new(1), at, &[1, 2, 3, at as u8]).unwrap();
        let mut seen = [0; 4];
        buffers[1].read(at, &mut seen).unwrap();
        assert_eq!(seen, [1, 2, 3, at as u8]);
    }
    drop((windows, buffers));
    world.finalize();
}

/// A kernel that fills the GPU and spins: another communicator's batches go on.
#[test]
#[ignore = "needs a GPU"]
fn a_kernel_that_fills_the_gpu_stops_no_other_communicator() {
    let world = world(2);
    let other = world_with(2, Config::new().name("other").deadline(Duration::from_secs(10)));
    let buffers = world.alloc(2 * MIB);
    let windows = world.register(&buffers, WindowFlags::empty());
    let dev_comms = world.dev_comms();
    let stream = world.gpu.stream_create().unwrap();
    let sms = world
        .gpu
        .context()
        .attribute(cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    let (limit_ns, stop) = (4_000_000_000, buffers[0].address() as u64);
    let parameter = parameter(&dev_comms[0], &windows[0], 0, &buffers[1], limit_ns, stop);
    launch(&world.gpu, stream, "symwin_bench_spin", (2 * sms.unwrap() as u32, 1024), &parameter);
    let began = Instant::now();
    let others = other.alloc(4 * MIB);
    for _ in 0..5 {
        let windows = other.register(&others, WindowFlags::empty());
        windows.iter().for_each(|window| window.close().unwrap());
    }
    // And its own communicator's too, as nothing of a batch runs on the SMs.
    drop(world.register(&buffers, WindowFlags::empty()));
    let took = began.elapsed();
    println!("six registrations beside a spinning kernel: {took:?}");
    assert!(took < Duration::from_secs(3), "registrations waited for the kernel: {took:?}");
    buffers[0].write(0, &[1]).unwrap();
    world.join(&[stream]);
    world.gpu.stream_destroy(stream).unwrap();
    drop((windows, dev_comms, buffers, others));
    other.finalize();
    world.finalize();
}

/// A rank whose peers do not come: its kernel ends by its deadline, and the next call says so.
#[test]
#[ignore = "needs a GPU"]
fn a_collective_that_a_rank_does_not_join_ends_by_its_deadline() {
    let world = world_with(2, Config::new().deadline(Duration::from_secs(1)));
    let buffers = world.alloc(MIB);
    let windows = world.register(&buffers, WindowFlags::COLL_SYMMETRIC);
    let slice = windows[0].slice(0..1024).unwrap();
    let error = world.ranks[0].all_reduce(&slice, &slice, DType::F32, ReduceOp::Sum).unwrap_err();
    assert!(matches!(error, Error::Failed(_)), "{error}");
    let next = world.ranks[0].all_reduce(&slice, &slice, DType::F32, ReduceOp::Sum).unwrap_err();
    assert!(matches!(next, Error::Failed(_)), "{next}");
}

/// Lookups of kernels among 8 and among 1,024 windows.
#[test]
#[ignore = "needs a GPU"]
fn a_lookup_among_1024_windows_takes_at_most_three_times_that_among_8() {
    let mut times = Vec::new();
    for n in [8_usize, 1024] {
        let world = world(1);
        let arena = world.ranks[0].alloc_own(n * 4096).unwrap();
        let group = Group::start();
        let slices: Vec<_> = (0..n).map(|i| arena.slice(i * 4096..(i + 1) * 4096).unwrap()).collect();
        let pending: Vec<_> =
            slices.iter().map(|s| group.register(&world.ranks[0], s, WindowFlags::empty())).collect();
        group.end().unwrap();
        let windows: Vec<_> = pending.into_iter().map(|window| window.wait().unwrap()).collect();
        let list: Vec<u64> =
            std::iter::once(n as u64).chain(slices.iter().map(|s| s.address() as u64 + 100)).collect();
        let aux = world.ranks[0].alloc(list.len() * 8).unwrap();
        aux.write(0, list.as_bytes()).unwrap();
        let (dev_comms, results, streams) = (world.dev_comms(), world.alloc(8), world.streams());
        let mut best = u64::MAX;
        for _ in 0..5 {
            let parameter =
                parameter(&dev_comms[0], &windows[0], 0, &results[0], 10_000, aux.address() as u64);
            launch(&world.gpu, streams[0], "symwin_bench_lookup", (1, 1), &parameter);
            world.join(&streams);
            assert_ne!(word(&results[0]), u64::MAX, "every address is in a window");
            best = best.min(word(&results[0]));
        }
        println!("lookup among {n} windows: {:.0} ns", best as f64 / 1e4);
        times.push(best);
        world.gpu.stream_destroy(streams[0]).unwrap();
        drop((windows, slices, arena, aux, results, dev_comms));
        world.finalize();
    }
    assert!(times[1] <= 3 * times[0], "{times:?}");
}

/// cudarc's copies into this rank's buffer, out of it through a peer's view, and on the device; on the view's own
/// stream, on another one, and on the default one, whether or not cudarc manages streams.
#[test]
#[ignore = "needs a GPU"]
fn copies_of_cudarc_go_through_views() {
    let world = world(2);
    let context = Arc::clone(world.gpu.context());
    let buffers = world.alloc(4 * MIB);
    let windows = world.register(&buffers, WindowFlags::empty());
    let default = context.default_stream();
    assert!(!context.is_in_multi_stream_mode());
    let others = [context.new_stream().unwrap(), context.new_stream().unwrap(), context.per_thread_stream()];
    for (round, own) in [&default, &others[0], &others[2]].into_iter().enumerate() {
        for (turn, other) in [own, &default, &others[1], &others[2]].into_iter().enumerate() {
            let numbers: Vec<u32> = (0..MIB as u32).map(|i| i ^ ((10 * round + turn) as u32) << 24).collect();
            let mut mine = buffers[1].device_view::<u32>(own).unwrap();
            assert_eq!((mine.len(), mine.num_bytes()), (MIB, 4 * MIB));
            own.memcpy_htod(&numbers, &mut mine).unwrap();
            let theirs = windows[0].device_view::<u32>(Rank::new(1), 0..4 * MIB, own).unwrap();
            let mut copy = other.alloc_zeros::<u32>(MIB).unwrap();
            other.memcpy_dtod(&theirs, &mut copy).unwrap();
            assert!(other.clone_dtoh(&copy).unwrap() == numbers, "on another stream");
            assert!(own.clone_dtoh(&theirs).unwrap() == numbers, "on its own stream");
            // Back, through the peer's window on this rank's memory.
            let mut back = windows[1].device_view::<u32>(Rank::new(0), 0..4 * MIB, own).unwrap();
            other.memcpy_dtod(&theirs, &mut back).unwrap();
            other.memset_zeros(&mut mine).unwrap();
            let mut seen = vec![0; 4 * MIB];
            other.synchronize().unwrap();
            own.synchronize().unwrap();
            buffers[0].read(0, &mut seen).unwrap();
            assert!(seen == numbers.as_bytes(), "round {round}, turn {turn}");
            assert_eq!(word(&buffers[1]), 0);
        }
    }
    default.synchronize().unwrap();
    drop((windows, buffers, others));
    world.finalize();
}

/// Views whose copies wait behind a kernel are dropped, their window closed and their buffers too: nothing waits, and
/// nothing is unmapped before the copies have run.
#[test]
#[ignore = "needs a GPU"]
fn what_a_dropped_view_has_queued_runs_before_its_memory_goes() {
    let world = world(2);
    let context = Arc::clone(world.gpu.context());
    let buffers = world.alloc(2 * MIB);
    let windows = world.register(&buffers, WindowFlags::empty());
    let dev_comms = world.dev_comms();
    let control = world.alloc(8);
    let held = world.gpu.counts();
    let more = world.alloc(2 * MIB);
    more[0].write(0, &7_u64.to_le_bytes().repeat(MIB / 4)).unwrap();
    let more_windows = world.register(&more, WindowFlags::empty());
    let stream = context.new_stream().unwrap();
    let limit_ns = 10_000_000_000;
    let parameter =
        parameter(&dev_comms[0], &windows[0], 0, &control[1], limit_ns, control[0].address() as u64);
    launch(&world.gpu, Stream::from(&stream), "symwin_bench_spin", (1, 32), &parameter);
    let mut copy = stream.alloc_zeros::<u64>(MIB / 4).unwrap();
    let mut late = more[1].device_view::<u64>(&stream).unwrap();
    let peer = more_windows[1].device_view::<u64>(Rank::new(0), 0..2 * MIB, &stream).unwrap();
    let began = Instant::now();
    stream.memcpy_dtod(&peer, &mut late).unwrap();
    stream.memcpy_dtod(&late, &mut copy).unwrap();
    drop((late, peer));
    more_windows.iter().for_each(|window| window.close().unwrap());
    drop((more_windows, more));
    assert!(began.elapsed() < Duration::from_secs(3), "something waited for the kernel");
    assert_ne!(world.gpu.counts().mappings, held.mappings, "the copies have not run");
    control[0].write(0, &[1]).unwrap();
    assert!(stream.clone_dtoh(&copy).unwrap() == vec![7; MIB / 4]);
    stream.synchronize().unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while world.gpu.counts().handles != held.handles {
        assert!(Instant::now() < until, "what the views kept has not gone: {:?}", world.gpu.counts());
        std::thread::yield_now();
    }
    drop((windows, dev_comms, control, buffers, copy));
    world.finalize();
}

#[test]
#[ignore = "needs a GPU"]
fn views_that_cannot_be_are_refused() {
    let world = world(1);
    let stream = world.gpu.context().new_stream().unwrap();
    let buffers = world.alloc(4096);
    let windows = world.register(&buffers, WindowFlags::empty());
    let misuse = |error: Error| match error {
        Error::Misuse(misuse) => misuse,
        other => panic!("{other}"),
    };
    let slice = buffers[0].slice(4..20).unwrap();
    let misaligned = misuse(slice.device_view::<u64>(&stream).unwrap_err());
    assert!(matches!(misaligned, Misuse::Misaligned { align: 8, .. }), "{misaligned}");
    let rest = misuse(windows[0].device_view::<u64>(Rank::new(0), 0..12, &stream).unwrap_err());
    assert!(matches!(rest, Misuse::NotWhole { len: 12, size: 8, .. }), "{rest}");
    let beyond = misuse(windows[0].device_view::<u8>(Rank::new(0), 0..4097, &stream).unwrap_err());
    assert!(matches!(beyond, Misuse::OutOfRange { .. }), "{beyond}");
    let nobody = misuse(windows[0].device_view::<u8>(Rank::new(1), 0..8, &stream).unwrap_err());
    assert!(matches!(nobody, Misuse::NotInTeam { .. }), "{nobody}");
    windows[0].close().unwrap();
    let closed = misuse(windows[0].device_view::<u8>(Rank::new(0), 0..8, &stream).unwrap_err());
    assert!(matches!(closed, Misuse::Closed { .. }), "{closed}");
    let on_host = Communicator::in_process_with(1, &Config::new()).unwrap().remove(0);
    let memory = misuse(on_host.alloc(4096).unwrap().device_view::<u8>(&stream).unwrap_err());
    assert!(matches!(memory, Misuse::WrongDevice { .. }), "{memory}");
    on_host.finalize().unwrap();
    drop((windows, slice, buffers));
    world.finalize();
}

/// Ranks that name GPUs which are not there hear so.
#[test]
#[ignore = "needs a GPU"]
fn a_gpu_that_is_not_there_is_a_typed_absence() {
    let count = CudaContext::device_count().unwrap() as usize;
    let error = CudaDriver::new(count).unwrap_err();
    assert!(matches!(error, Error::NoCuda(_)), "{error}");
    let make = devices(Some(1));
    assert!(matches!(make(Rank::new(count as u32)).unwrap_err(), Error::NoCuda(_)));
}
