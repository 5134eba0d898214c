//! Splits text that arrives in blocks into lines.

/// The lines of text that arrives in blocks.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// The beginning of a line whose end has not come yet.
    begun: Vec<u8>,
}

impl Lines {
    /// Takes the next block and passes on the lines that end in it.
    pub(crate) fn block(&mut self, mut block: &[u8], each: &mut dyn FnMut(&str)) {
        while let Some(end) = block.iter().position(|byte| *byte == b'\n') {
            if self.begun.is_empty() {
                each(&String::from_utf8_lossy(&block[..end]));
            } else {
                self.begun.extend_from_slice(&block[..end]);
                each(&String::from_utf8_lossy(&self.begun));
                self.begun.clear();
            }
            block = &block[end + 1..];
        }
        self.begun.extend_from_slice(block);
    }

    /// Passes on the last line if no newline ended it.
    pub(crate) fn finish(self, each: &mut dyn FnMut(&str)) {
        if !self.begun.is_empty() {
            each(&String::from_utf8_lossy(&self.begun));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], size: usize) -> Vec<String> {
        let mut found = Vec::new();
        let mut each = |line: &str| found.push(line.to_owned());
        let mut lines = Lines::default();
        for block in text.chunks(size) {
            lines.block(block, &mut each);
        }
        lines.finish(&mut each);
        found
    }

    #[test]
    fn lines_are_the_same_however_the_text_is_cut() {
        // The character of two bytes is cut as well.
        let text = "one\n\nzwölf\nlast".as_bytes();
        for size in 1..=text.len() {
            assert_eq!(lines(text, size), ["one", "", "zwölf", "last"], "{size}");
        }
        assert_eq!(lines(b"one\n", 64), ["one"]);
        assert_eq!(lines(b"", 64), [""; 0]);
    }

    #[test]
    fn bytes_that_are_no_text_spoil_only_their_line() {
        assert_eq!(lines(b"a\xff\nb\n", 64), ["a\u{fffd}", "b"]);
    }
}
