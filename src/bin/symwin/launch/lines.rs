//! Cuts a stream of bytes into whole lines, each behind a prefix.

/// The begun line of one stream.
#[derive(Debug)]
pub(super) struct Lines {
    prefix: Vec<u8>,
    begun: Vec<u8>,
    /// The line has been broken where the next byte belongs.
    broken: bool,
}

impl Lines {
    pub(super) fn new(prefix: Vec<u8>) -> Self {
        Self { prefix, begun: Vec::new(), broken: false }
    }

    /// Takes the next bytes of the stream, whatever they are, and puts the lines that they end to `out`. A line of more
    /// than [`LINE_BYTES`] is broken.
    pub(super) fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.broken) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let room = (LINE_BYTES - self.begun.len()).min(bytes.len());
            let end = bytes[..room].iter().position(|byte| *byte == b'\n').map_or(room, |at| at + 1);
            self.begun.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end..];
            if self.begun.ends_with(b"\n") {
                self.end_line(out);
            } else if self.begun.len() == LINE_BYTES {
                self.end_line(out);
                self.broken = true;
            }
        }
    }

    /// Ends the last line, if the stream has not.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.begun.is_empty() {
            self.end_line(out);
        }
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.prefix);
        out.append(&mut self.begun);
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
    }
}

/// The longest line that comes in one piece.
pub(super) const LINE_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut lines, mut out) = (Lines::new(b"> ".to_vec()), Vec::new());
        pieces.iter().for_each(|piece| lines.push(piece, &mut out));
        lines.finish(&mut out);
        out
    }

    #[test]
    fn a_line_comes_when_it_is_whole() {
        let (mut lines, mut out) = (Lines::new(b"> ".to_vec()), Vec::new());
        lines.push(b"on", &mut out);
        assert_eq!(out, b"");
        lines.push(b"e\n\ntw", &mut out);
        assert_eq!(out, b"> one\n> \n");
        lines.finish(&mut out);
        assert_eq!(out, b"> one\n> \n> tw\n");
        assert_eq!(cut(&[b"no text \xff\xfe\0\n"]), b"> no text \xff\xfe\0\n");
        assert_eq!(cut(&[]), b"");
    }

    #[test]
    fn a_long_line_comes_in_pieces() {
        let long = vec![b'x'; LINE_BYTES];
        let whole = [b"> ", &long[..], b"\n"].concat();
        assert_eq!(cut(&[&long]), whole);
        assert_eq!(cut(&[&long, b"\n"]), whole, "not an empty line more");
        assert_eq!(cut(&[&long, b"y\n"]), [&whole[..], b"> y\n"].concat());
        assert_eq!(cut(&[&long, b"\n\nz"]), [&whole[..], b"> \n> z\n"].concat());
        assert_eq!(cut(&[&long[1..], b"\n"]), [b"> ", &long[1..], b"\n"].concat());
    }

    proptest! {
        #[test]
        fn how_a_stream_is_cut_into_pieces_does_not_matter(text in "[ab\n]{0,64}", at in 0..64_usize) {
            let bytes = text.as_bytes();
            let (head, tail) = bytes.split_at(at.min(bytes.len()));
            let expected: String = text.lines().map(|line| format!("> {line}\n")).collect();
            prop_assert_eq!(cut(&[head, tail]), expected.as_bytes());
        }
    }
}
