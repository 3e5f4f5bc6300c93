//! What tests ask of the library, by entry points that no real one has.

use crate::abi::{Out, Text};
use crate::code::Code;
use crate::config::CONFIG;

/// Whether symwin's host code may touch device memory at its own addresses.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
extern "C" fn fakeCudaHostAccess() -> i32 {
    i32::from(CONFIG.host_access)
}

entry! {
    // The n-th call of a name from now on gives the code.
    [TEST] fn fakeCudaFail(name: Text, nth: u64, code: u32) |state| {
        state.faults.arm(&name.get()?, nth, code);
        Ok(())
    }

    // How often a name was called.
    [TEST] fn fakeCudaCalls(name: Text, calls: Out<u64>) |state| {
        calls.put(state.faults.calls(&name.get()?))
    }

    // What is alive of a kind.
    [TEST] fn fakeCudaLive(kind: Text, count: Out<u64>) |state| {
        let (allocations, mappings, reservations) = state.memory.counts();
        let live = match kind.get()?.as_str() {
            "allocations" => allocations,
            "mappings" => mappings,
            "reservations" => reservations,
            "bindings" => state.bindings(),
            "streams" => state.streams.live(),
            "events" => state.streams.live_events(),
            "pinned" => state.host.pinned.len(),
            _ => return Err(Code::INVALID_VALUE),
        };
        count.put(live as u64)
    }

    // The calls so far, a line each, as much as fits; and how long that is.
    [TEST] fn fakeCudaLog(text: Out<u8>, capacity: usize, length: Out<usize>) |state| {
        let lines = state.log.text();
        if capacity > 0 {
            text.put_all(lines.as_bytes(), capacity)?;
        }
        length.put(lines.len())
    }

    // Forgets the log.
    [TEST] fn fakeCudaClearLog() |state| {
        state.log.clear();
        Ok(())
    }
}
