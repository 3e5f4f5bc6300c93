//! Colours are for people: <https://no-color.org>, and no escape codes in files and pipes.

use std::env;
use std::io::IsTerminal;

/// Whether text that goes there may have colours.
pub(crate) fn wanted(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
