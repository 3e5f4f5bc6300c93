//! The calls in order, as lines of text: `cuMemMap(ptr=0x7f.., size=0x200000, ...) = 0`.

use std::collections::VecDeque;
use std::fmt::{Debug, Write};

use crate::code::Code;
use crate::config::CONFIG;

/// The last lines; older ones are dropped.
#[derive(Debug, Default)]
pub(crate) struct Log {
    lines: VecDeque<String>,
    dropped: usize,
}

impl Log {
    /// Writes a call down; its result follows. Gives the line's number.
    pub(crate) fn begin(&mut self, name: &str, arguments: &[(&str, &dyn Debug)]) -> usize {
        let mut line = format!("{name}(");
        for (index, (argument, value)) in arguments.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            let _ = write!(line, "{comma}{argument}={value:#x?}");
        }
        line.push(')');
        self.push(line)
    }

    /// Adds the result to a call's line.
    pub(crate) fn end(&mut self, number: usize, code: Option<Code>) {
        if let Some(line) = number.checked_sub(self.dropped).and_then(|at| self.lines.get_mut(at)) {
            let _ = write!(line, " = {}", code.map_or(0, |code| code.0));
        }
    }

    /// A line of its own.
    pub(crate) fn push(&mut self, line: String) -> usize {
        self.lines.push_back(line);
        while self.lines.len() > CONFIG.log_lines {
            self.lines.pop_front();
            self.dropped += 1;
        }
        // With no lines kept the number is of a line that is gone.
        (self.dropped + self.lines.len()).saturating_sub(1)
    }

    pub(crate) fn text(&self) -> String {
        self.lines.iter().fold(String::new(), |mut text, line| {
            text.push_str(line);
            text.push('\n');
            text
        })
    }

    pub(crate) fn clear(&mut self) {
        self.dropped += self.lines.len();
        self.lines.clear();
    }
}
