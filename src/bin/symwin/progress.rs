//! How far a run is, while it goes on.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::phases::Phase;

/// Who is told what ranks do.
pub(crate) trait Progress: Sync {
    /// A rank is in this phase and has done so many more bytes of it, or samples where it measures.
    fn tell(&self, phase: Phase, bytes: u64);
}

/// A bar on standard error, or nothing where that is no terminal.
#[derive(Debug)]
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// For so many bytes of work in all, or other units.
    pub(crate) fn new(length: u64, wanted: bool) -> Self {
        if !wanted || !io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("{msg:16} {wide_bar} {percent:>3} %  {elapsed}");
        let style = style.expect("the template is a valid one").progress_chars("=> ");
        let bar = ProgressBar::new(length).with_style(style).with_message(Phase::Bootstrap.to_string());
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }
}

impl Progress for Bar {
    fn tell(&self, phase: Phase, bytes: u64) {
        self.0.set_message(phase.to_string());
        self.0.inc(bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
