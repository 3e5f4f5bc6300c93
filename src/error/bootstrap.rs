//! Why no communicator could be made.

use std::time::Duration;

use super::List;

/// Why no communicator could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The processes' configurations differ.
    #[error("the ranks' settings differ in {what}: {}", List(.settings))]
    Differ {
        /// In what.
        what: String,
        /// Each process's setting, in words.
        settings: Vec<String>,
    },
    /// The operating system refused.
    #[error("{what}: {}", rustix::io::Errno::from_raw_os_error(*errno))]
    Os {
        /// What was attempted.
        what: String,
        /// The error number.
        errno: i32,
    },
    /// A connecting process is not allowed in.
    #[error("{who} is not allowed in: {why}")]
    Stranger {
        /// Who it is, as far as known.
        who: String,
        /// Why not.
        why: String,
    },
    /// Processes did not come in time.
    #[error("no connection within {after:?} with {}", List(.missing))]
    Deadline {
        /// The deadline.
        after: Duration,
        /// The processes that did not come, in words.
        missing: Vec<String>,
    },
    /// A process broke the protocol, or ended.
    #[error("{who}: {detail}")]
    Protocol {
        /// Which process.
        who: String,
        /// What it did.
        detail: String,
    },
}
