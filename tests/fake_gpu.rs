//! The CUDA backend over `crates/fake-cuda`: what is absent, what fails, and in which order multicast objects are made.
//! Run by `scripts/fake-gpu`, which says by `SYMWIN_FAKE_CUDA_INSTALL` where the fake driver's installer is, on four GPUs with
//! multicast.
#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, reason = "these are tests; clippy takes helpers for none")]

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::device::{Device, on_gpus};
use common::*;
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use symwin::DevCommRequirements;
use symwin::driver::cuda::CudaDriver;
use symwin::driver::{DeviceProblem, Driver};

/// The program on GPUs of a fake driver that lacks some entry points, with these variables.
fn program(without: &[&str], variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    run(install(without).path(), variables, arguments)
}

/// A folder with a fake driver that lacks some entry points.
fn install(without: &[&str]) -> tempfile::TempDir {
    let installer = std::env::var_os("SYMWIN_FAKE_CUDA_INSTALL").expect("run by scripts/fake-gpu");
    let folder = tempfile::tempdir().unwrap();
    let mut install = Command::new(installer);
    install.arg(folder.path());
    for name in without {
        install.args(["--without", name]);
    }
    assert!(install.status().unwrap().success());
    folder
}

fn run(library: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let run = ["run", "--backend", "cuda", "--windows", "2", "--bytes", "64K"];
    symwin(library, variables, &[&run, arguments].concat())
}

fn symwin(library: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symwin"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FAKE_CUDA_"))
    {
        command.env_remove(name);
    }
    command.args(arguments).env("LD_LIBRARY_PATH", library).envs(variables.iter().copied()).output().unwrap()
}

#[track_caller]
fn refused(output: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    words.iter().for_each(|word| assert!(said.contains(word), "{word}: {said}"));
}

#[track_caller]
fn verified(output: &Output) {
    let told = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("verified"), "{told}{said}");
}

/// A rank that fails drops its communicator, which its worker then gives back while the process exits already.
#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn nobody_calls_the_driver_while_the_process_exits() {
    let folder = install(&[]);
    for ranks in ["1", "4", "8"] {
        // The fake driver runs no kernels, so that every rank fails.
        let bench = ["bench", "barrier", "--backend", "cuda", "--ranks", ranks, "--ranks-per-gpu", ranks];
        let output = symwin(folder.path(), &[("FAKE_CUDA_END_MS", "200")], &bench);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("CUDA_ERROR_NOT_SUPPORTED"), "{said}");
        assert!(!said.contains("while the process exits"), "{said}");
        assert_eq!(output.status.code(), Some(1), "{said}");
    }
}

/// Real drivers take calls about memory one after another, at a price for each thread that waits.
#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn ranks_of_a_process_call_about_memory_one_at_a_time() {
    let folder = install(&[]);
    for mode in ["--own", "--arena"] {
        let bench = ["bench", "register", "--backend", "cuda", "--ranks", "8", "--ranks-per-gpu", "8"];
        let arguments =
            [&bench[..], &["--windows", "16", "--bytes", "2MiB", "--samples", "3", mode]].concat();
        let memory = ("FAKE_CUDA_MEMORY", "68719476736");
        let output = symwin(folder.path(), &[("FAKE_CUDA_ALONE", "1"), memory], &arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{mode}: {said}");
    }
}

#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn every_absence_is_told_in_words() {
    let nowhere = tempfile::tempdir().unwrap();
    // Where the machine has a real driver, it is found.
    let alone = run(nowhere.path(), &[], &[]);
    if !alone.status.success() {
        refused(&alone, &["libcuda was not found", "LD_LIBRARY_PATH"]);
    }
    type Words = &'static [&'static str];
    type Variables = &'static [(&'static str, &'static str)];
    let cases: [(Words, Variables, Words); 6] = [
        (&["cuMemSetAccess"], &[], &["no cuMemSetAccess", "too old"]),
        (&["cuThreadExchangeStreamCaptureMode"], &[], &["no cuThreadExchangeStreamCaptureMode", "too old"]),
        (&[], &[("FAKE_CUDA_DEVICES", "0")], &["CUDA_ERROR_NO_DEVICE"]),
        (&[], &[("FAKE_CUDA_ATTRIBUTE_102", "0")], &["no virtual memory management", "GPU 0"]),
        (&[], &[("FAKE_CUDA_ATTRIBUTE_103", "0")], &["no memory with descriptors", "GPU 0"]),
        (&[], &[("FAKE_CUDA_MEMORY", "2097152")], &["out of memory", "available"]),
    ];
    for (without, variables, words) in cases {
        let output = program(without, variables, &[]);
        refused(&output, words);
    }
}

#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn what_is_optional_may_be_missing() {
    let optional = ["cuMulticastCreate", "cuMulticastBindMem", "cuFuncLoad"];
    let with_multicast = [("FAKE_CUDA_DEVICES", "4"), ("FAKE_CUDA_ATTRIBUTE_132", "1")];
    let output = program(&optional, &with_multicast, &[]);
    verified(&output);
}

#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn threads_and_processes_on_one_gpu_and_on_several() {
    for devices in ["1", "2", "4"] {
        for ranks in
            [&["--ranks", "4"][..], &["--ranks", "4", "--procs", "2"], &["--ranks", "2", "--procs", "2"]]
        {
            for multicast in ["0", "1"] {
                let variables = [("FAKE_CUDA_DEVICES", devices), ("FAKE_CUDA_ATTRIBUTE_132", multicast)];
                let output = program(&[], &variables, ranks);
                verified(&output);
            }
        }
    }
}

/// The attribute alone says nothing: where no daemon permits fabric handles, all fall back to descriptors together.
#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn fabric_handles_are_used_where_they_work_and_only_there() {
    // "only": no memory is exported by a descriptor.
    for fabric in ["only", "works", "refused"] {
        let output = program(&[], &[("FAKE_CUDA_FABRIC", fabric)], &["--ranks", "4", "--procs", "4"]);
        verified(&output);
    }
}

/// Each call of a registration fails once: an error that says which, on the rank that had it, and no panic.
#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn a_call_that_fails_is_named_and_ends_cleanly() {
    let cases = [
        ("cuMemCreate:1:801", "CUDA_ERROR_NOT_SUPPORTED"),
        ("cuMemMap:2:1", "CUDA_ERROR_INVALID_VALUE"),
        ("cuMemSetAccess:2:304", "CUDA_ERROR_OPERATING_SYSTEM"),
        ("cuStreamCreateWithPriority:2:2", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuMemAddressReserve:1:2", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuEventQuery:1:700", "CUDA_ERROR_ILLEGAL_ADDRESS"),
    ];
    for (fault, name) in cases {
        let output = program(&[], &[("FAKE_CUDA_FAIL", fault)], &[]);
        refused(&output, &[name, "rank "]);
    }
}

/// The user captures a stream while the runtime allocates, maps, copies, and asks for events.
#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn a_registration_amid_a_capture_breaks_nothing() {
    assert!(on_gpus(), "run by scripts/fake-gpu");
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let begin = || stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let end = || {
        stream
            .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
            .map(drop)
    };
    for layout in LAYOUTS {
        begin();
        let ranks = world(layout);
        let buffers = buffers(&ranks, 8192);
        let windows = windows(&ranks, &buffers);
        check_pointers(&ranks, &windows, &buffers);
        drop((windows, buffers));
        finalize(ranks);
        end().unwrap();
    }
    // What others would have done to it: the driver's rules are in force.
    let event = context.new_event(None).unwrap();
    begin();
    assert!(context.synchronize().is_err(), "no call that CUDA calls unsafe is allowed meanwhile");
    assert!(end().is_err(), "and it has ended the capture");
    drop(event);
}

/// Making and destroying an event takes longer than a kernel's launch.
#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn an_event_that_nobody_asks_for_is_recorded_again_and_known_no_more() {
    assert!(on_gpus(), "run by scripts/fake-gpu");
    let driver = CudaDriver::new(0).unwrap();
    let stream = driver.stream_create().unwrap();
    let (passed, forgotten) = (driver.record(stream).unwrap(), driver.record(stream).unwrap());
    while !driver.done(passed).unwrap() {
        std::thread::yield_now();
    }
    driver.event_destroy(forgotten).unwrap();
    assert_eq!(driver.counts().events, 0);
    for event in [passed, forgotten] {
        let error = driver.done(event).unwrap_err();
        assert!(matches!(error.problem, DeviceProblem::InvalidHandle { .. }), "{error}");
        assert!(driver.event_destroy(event).is_err());
    }
    let mut again = [driver.record(stream).unwrap(), driver.record(stream).unwrap()];
    again.sort_by_key(|event| event.0);
    let mut before = [passed, forgotten];
    before.sort_by_key(|event| event.0);
    assert_eq!(again, before, "the same events, each once");
    assert_eq!(driver.counts().events, 2);
    again.into_iter().for_each(|event| driver.event_destroy(event).unwrap());
    driver.stream_destroy(stream).unwrap();
}

/// Multicast objects are made, every device is added before anything is bound, and all is given back; the fake driver
/// refuses any other order.
#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn multicast_objects_are_made_in_the_drivers_order() {
    assert!(on_gpus(), "run by scripts/fake-gpu");
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 8192);
        let old = windows(&ranks, &buffers);
        let devs = dev_comms(&ranks, &DevCommRequirements::new().lsa_multimem(true));
        let new = windows(&ranks, &buffers);
        for ((comm, dev), windows) in ranks.iter().zip(&devs).zip(old.iter().zip(&new)) {
            let base = dev.device().lsa_multimem.base;
            assert_ne!(base, 0);
            for window in [windows.0, windows.1] {
                let pointer = window.multicast_ptr(comm.lsa_team().unwrap(), 8).unwrap();
                assert_eq!(pointer.addr() as u64, base + window.offset() + 8);
            }
        }
        check_pointers(&ranks, &new, &buffers);
        drop((old, new, devs, buffers));
        finalize(ranks);
    }
    let gpu = Device::new().driver();
    let size = usize::try_from(gpu.info().granularity).unwrap();
    let (object, memory) = (gpu.multicast_create(size, 2).unwrap(), gpu.create(size).unwrap());
    gpu.multicast_add_device(object).unwrap();
    let refused = gpu.multicast_bind(object, 0, memory, size).unwrap_err();
    assert!(
        matches!(refused.problem, DeviceProblem::Cuda { code: 401, .. }),
        "one device is missing: {refused}"
    );
    gpu.release(object).unwrap();
    gpu.release(memory).unwrap();
}
