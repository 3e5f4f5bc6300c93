//! What went wrong on which rank, and what to tell of it: the cause, not its echo on every other rank.

use std::any::Any;
use std::fmt;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::phases::Phase;

/// One rank's error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankError {
    /// `None`: all ranks of its process, before they were any.
    pub(crate) rank: Option<u32>,
    /// `None`: not known.
    pub(crate) phase: Option<Phase>,
    pub(crate) message: String,
    /// Whether it only says that the communicator has failed, for which another rank may have the reason.
    pub(crate) echo: bool,
}

impl RankError {
    pub(crate) fn new(rank: Option<u32>, phase: Phase, error: &anyhow::Error) -> Self {
        let echo =
            matches!(error.downcast_ref(), Some(symwin::Error::Failed(_) | symwin::Error::Finalized { .. }));
        Self { rank, phase: Some(phase), message: format!("{error:#}"), echo }
    }

    pub(crate) fn panicked(rank: u32, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text =
            text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        let message = format!("a bug in symwin, please report it: {text}");
        Self { rank: Some(rank), phase: None, message, echo: false }
    }
}

impl fmt::Display for RankError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rank) = self.rank {
            write!(f, "rank {rank}, ")?;
        }
        match self.phase {
            Some(phase) => write!(f, "{phase}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// The program's last word on standard error. Where nobody hears it, the status still says that something is wrong.
pub(crate) fn tell(what: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "symwin: error: {what}");
}

/// A word on standard error while the work goes on.
pub(crate) fn note(what: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "symwin: {what}");
}

/// One message for all: `deaths` of processes first, then errors that are no echo; else the echoes. Equal messages of
/// several ranks are one.
pub(crate) fn combine(deaths: &[String], mut errors: Vec<RankError>) -> anyhow::Error {
    errors.sort_by_key(|error| (error.echo, error.rank));
    if errors.iter().any(|error| !error.echo) || !deaths.is_empty() {
        let echoes = errors.iter().filter(|error| error.echo).count();
        errors.retain(|error| !error.echo);
        return message(deaths, &errors, echoes);
    }
    message(deaths, &errors, 0)
}

fn message(deaths: &[String], errors: &[RankError], echoes: usize) -> anyhow::Error {
    let mut lines = deaths.to_vec();
    let mut told: Vec<&str> = Vec::new();
    for error in errors {
        if !told.contains(&error.message.as_str()) {
            told.push(&error.message);
            let same: Vec<_> = errors
                .iter()
                .filter(|other| other.message == error.message && other.rank != error.rank)
                .filter_map(|other| other.rank.map(|rank| rank.to_string()))
                .collect();
            let also =
                if same.is_empty() { String::new() } else { format!(" (also rank {})", same.join(", ")) };
            lines.push(format!("{error}{also}"));
        }
    }
    if echoes > 0 {
        let ranks = if echoes == 1 { "1 other rank" } else { &format!("{echoes} other ranks") };
        lines.push(format!("{ranks} noticed and ended"));
    }
    anyhow::Error::msg(lines.join("\n  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(rank: u32, message: &str, echo: bool) -> RankError {
        RankError { rank: Some(rank), phase: Some(Phase::Register), message: message.to_owned(), echo }
    }

    #[test]
    fn the_cause_is_told_and_its_echoes_are_counted() {
        let errors = vec![
            error(0, "rank 1 is lost", true),
            error(1, "no memory", false),
            error(2, "rank 1 is lost", true),
        ];
        let told = combine(&[], errors).to_string();
        assert_eq!(told, "rank 1, register (group): no memory\n  2 other ranks noticed and ended");
    }

    #[test]
    fn equal_messages_are_told_once() {
        let errors = vec![error(0, "rolled back", false), error(1, "rolled back", false)];
        assert_eq!(combine(&[], errors).to_string(), "rank 0, register (group): rolled back (also rank 1)");
    }

    #[test]
    fn echoes_are_told_where_there_is_nothing_else() {
        let errors = vec![error(0, "the deadline passed", true), error(1, "aborted", true)];
        let told = combine(&[], errors).to_string();
        assert!(told.contains("the deadline passed") && told.contains("aborted"), "{told}");
        let death = ["process 1 was killed".to_owned()];
        let told = combine(&death, vec![error(0, "rank 1 is lost", true)]).to_string();
        assert_eq!(told, "process 1 was killed\n  1 other rank noticed and ended");
    }
}
