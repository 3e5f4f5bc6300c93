//! What all entry points have in common: one lock, failures on demand, and the checks that come before the
//! call's own work. A panic becomes `CUDA_ERROR_UNKNOWN`: it must not pass through C.

use std::panic::AssertUnwindSafe;

use parking_lot::MutexGuard;

use crate::code::{Code, Done};
use crate::state::{self, State};

/// The state while a call holds it; calls that wait let go of it meanwhile.
pub(crate) type Guard = MutexGuard<'static, State>;

/// What must hold before a call does its work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    initialized: bool,
    context: bool,
    /// CUDA's documentation calls these "potentially unsafe" while a stream captures.
    unsafe_in_capture: bool,
}

impl Rules {
    /// May come before `cuInit`.
    pub(crate) const NOTHING: Self = Self { initialized: false, context: false, unsafe_in_capture: false };
    /// After `cuInit`.
    pub(crate) const INIT: Self = Self { initialized: true, ..Self::NOTHING };
    /// With a current context.
    pub(crate) const CONTEXT: Self = Self { context: true, ..Self::INIT };
    /// With a current context, and not while a stream captures.
    pub(crate) const CONTEXT_NO_CAPTURE: Self = Self { unsafe_in_capture: true, ..Self::CONTEXT };
}

/// Makes entry points: C functions of the driver's names, whose bodies get the state and give a `Done`.
macro_rules! entry {
    ($( $(#[$meta:meta])* [$rules:ident] fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) |$state:ident| $body:block )*) => { $(
        $(#[$meta])*
        // SAFETY: no other library of the process defines the driver's symbols but the driver that this one stands for.
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> $crate::code::Code {
            $crate::entry::run(stringify!($name), $crate::entry::Rules::$rules, |$state| $body)
        }
    )* };
}

/// Runs an entry point's body under the lock.
pub(crate) fn run(name: &'static str, rules: Rules, body: impl FnOnce(&mut Guard) -> Done) -> Code {
    crate::exit::check(name);
    let _turn = crate::turn::begin(name);
    let done = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut state = state::lock();
        before(&mut state, name, rules).and_then(|()| body(&mut state))
    }));
    match done {
        Ok(Ok(())) => Code(0),
        Ok(Err(code)) => code,
        Err(_) => Code::UNKNOWN,
    }
}

fn before(state: &mut State, name: &'static str, rules: Rules) -> Done {
    state.faults.count(name)?;
    if rules.initialized && !state.initialized {
        return Err(Code::NOT_INITIALIZED);
    }
    if rules.context {
        state.contexts.current()?;
    }
    if rules.unsafe_in_capture { state.captures.check_unsafe_call() } else { Ok(()) }
}
