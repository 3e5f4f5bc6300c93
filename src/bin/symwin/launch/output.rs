//! Passes on what processes print: whole lines, each behind the ranks that it is from.

use std::io::{self, Read, Write};
use std::process::Child;
use std::thread;

use anyhow::Context;
use crossbeam_channel::{Receiver, Sender, unbounded};

use super::lines::Lines;
use crate::colours;
use crate::processes::Ranks;

/// The threads that pass on output, one for each stream of each process.
#[derive(Debug)]
pub(super) struct Output {
    says: Sender<io::Result<()>>,
    done: Receiver<io::Result<()>>,
    out_colours: bool,
    err_colours: bool,
}

impl Output {
    pub(super) fn new() -> Self {
        let (says, done) = unbounded();
        let (out_colours, err_colours) = (colours::wanted(&io::stdout()), colours::wanted(&io::stderr()));
        Self { says, done, out_colours, err_colours }
    }

    /// Passes on what the `index`-th process prints, if it was started with pipes.
    pub(super) fn pass_on(&self, index: usize, ranks: Ranks, child: &mut Child) -> anyhow::Result<()> {
        if let Some(stream) = child.stdout.take() {
            let to =
                |bytes: &[u8]| write(io::stdout().lock(), bytes).map_err(|error| named("output", &error));
            self.spawn(stream, prefix(index, ranks, self.out_colours), to)?;
        }
        if let Some(stream) = child.stderr.take() {
            let to = |bytes: &[u8]| write(io::stderr().lock(), bytes).map_err(|error| named("error", &error));
            self.spawn(stream, prefix(index, ranks, self.err_colours), to)?;
        }
        Ok(())
    }

    /// One result for each stream once it has ended; the channel closes after the last.
    pub(super) fn into_done(self) -> Receiver<io::Result<()>> {
        self.done
    }

    fn spawn(
        &self,
        stream: impl Read + Send + 'static,
        prefix: Vec<u8>,
        to: impl Fn(&[u8]) -> io::Result<()> + Send + 'static,
    ) -> anyhow::Result<()> {
        let says = self.says.clone();
        let body = move || {
            // The stream is closed before anybody hears of its end: a program that still writes must hear first.
            let passed = pass_on(stream, prefix, to);
            let _ = says.send(passed);
        };
        let thread = thread::Builder::new().name("output".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(body).map(drop).context("starting a thread that passes on output")
    }
}

/// Reads to the end. If `to` fails, the stream is closed, so that the program hears of it too.
fn pass_on(mut from: impl Read, prefix: Vec<u8>, to: impl Fn(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let (mut lines, mut whole) = (Lines::new(prefix), Vec::new());
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => lines.push(&buffer[..count], &mut whole),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        to(&whole)?;
        whole.clear();
    }
    lines.finish(&mut whole);
    to(&whole)
}

/// Writes whole lines under the stream's lock, so that those of several processes do not mix.
fn write(mut to: impl Write, lines: &[u8]) -> io::Result<()> {
    to.write_all(lines)?;
    to.flush()
}

fn named(stream: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("standard {stream}: {error}"))
}

/// `[2] `, `[4-7] `.
fn prefix(index: usize, Ranks { first, count }: Ranks, colours: bool) -> Vec<u8> {
    let ranks = if count == 1 { first.to_string() } else { format!("{first}-{}", first + count - 1) };
    // Cyan, yellow, green, magenta, blue, red.
    let colour = [36, 33, 32, 35, 34, 31][index % 6];
    if colours { format!("\x1b[{colour}m[{ranks}]\x1b[0m ") } else { format!("[{ranks}] ") }.into_bytes()
}

const READ_BYTES: usize = 16 << 10;
const STACK_BYTES: usize = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_name_all_ranks_of_a_process() {
        let text =
            |first, count, colours| String::from_utf8(prefix(7, Ranks { first, count }, colours)).unwrap();
        assert_eq!(text(2, 1, false), "[2] ");
        assert_eq!(text(4, 4, false), "[4-7] ");
        assert_eq!(text(2, 1, true), "\u{1b}[33m[2]\u{1b}[0m ");
    }

    #[test]
    fn a_stream_that_nobody_takes_is_closed_with_the_reason() {
        let full = |_: &[u8]| Err(io::Error::from(io::ErrorKind::StorageFull));
        let endless = io::repeat(b'\n');
        let error = pass_on(endless, Vec::new(), full).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
