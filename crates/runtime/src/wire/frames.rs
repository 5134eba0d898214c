//! Lines of a watch stream, found in chunks of any size.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use http_body_util::BodyExt;
use kube::client::Body;

use super::WatchError;

/// Upper bound of one line: objects are limited to 1.5 MiB by etcd and about 3 MiB on the wire.
const LINE_LIMIT: usize = 16 << 20;

/// A response body as chunks.
pub(crate) struct Chunks(BoxStream<'static, Result<Bytes, WatchError>>);

impl Chunks {
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, WatchError> {
        self.0.next().await.transpose()
    }
}

impl From<Body> for Chunks {
    fn from(body: Body) -> Self {
        Self(
            body.into_data_stream()
                .map_err(|error| WatchError::Connection(error.to_string()))
                .boxed(),
        )
    }
}

#[cfg(test)]
impl From<&[&str]> for Chunks {
    fn from(chunks: &[&str]) -> Self {
        let chunks: Vec<_> = chunks
            .iter()
            .map(|chunk| Ok(Bytes::copy_from_slice(chunk.as_bytes())))
            .collect();
        Self(futures::stream::iter(chunks).boxed())
    }
}

/// The lines of a watch: one JSON document each. A line within a chunk is not copied; one that
/// spans chunks is assembled in a buffer that is reused.
pub(crate) struct Lines {
    chunks: Chunks,
    chunk: Bytes,
    partial: Vec<u8>,
    /// The line that was returned last.
    current: Current,
}

enum Current {
    None,
    Chunk(Bytes),
    Partial,
}

/// Larger buffers, stretched by one huge event, are not kept.
const KEPT_BUFFER: usize = 1 << 20;

impl Lines {
    pub(crate) fn new(chunks: impl Into<Chunks>) -> Self {
        Self {
            chunks: chunks.into(),
            chunk: Bytes::new(),
            partial: Vec::new(),
            current: Current::None,
        }
    }

    /// The next line without its newline; `None` at a clean end.
    ///
    /// Safe to cancel: nothing read is lost.
    pub(crate) async fn next(&mut self) -> Result<Option<&[u8]>, WatchError> {
        if let Current::Partial = std::mem::replace(&mut self.current, Current::None) {
            self.partial.clear();
            self.partial.shrink_to(KEPT_BUFFER);
        }
        while !self.take_line() {
            self.partial
                .extend_from_slice(&std::mem::take(&mut self.chunk));
            if self.partial.len() > LINE_LIMIT {
                return Err(WatchError::Protocol("watch event exceeds 16 MiB".into()));
            }
            match self.chunks.next().await? {
                Some(chunk) => self.chunk = chunk,
                None if self.partial.is_empty() => return Ok(None),
                None => {
                    return Err(WatchError::Connection(
                        "stream ended within an event".into(),
                    ));
                }
            }
        }
        Ok(match &self.current {
            Current::None => None,
            Current::Chunk(line) => Some(line),
            Current::Partial => Some(&self.partial),
        })
    }

    /// Makes the next complete line the current one. Empty lines are passed over.
    fn take_line(&mut self) -> bool {
        while let Some(end) = memchr::memchr(b'\n', &self.chunk) {
            let line = self.chunk.split_to(end + 1).slice(..end);
            if !self.partial.is_empty() {
                self.partial.extend_from_slice(&line);
                self.current = Current::Partial;
                return true;
            }
            if !line.is_empty() {
                self.current = Current::Chunk(line);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(chunks: &[&str]) -> (Vec<String>, bool) {
        let mut lines = Lines::new(chunks);
        let mut seen = Vec::new();
        loop {
            match lines.next().await {
                Ok(Some(line)) => seen.push(String::from_utf8(line.to_vec()).unwrap()),
                Ok(None) => return (seen, true),
                Err(_) => return (seen, false),
            }
        }
    }

    #[tokio::test]
    async fn lines_are_found_however_the_stream_is_cut() {
        let text = "{\"a\":1}\n{\"b\":\"22\"}\n\n{\"c\":333}\n";
        for width in 1..text.len() {
            let chunks: Vec<&str> = text
                .as_bytes()
                .chunks(width)
                .map(|c| std::str::from_utf8(c).unwrap())
                .collect();
            let expected = vec![
                "{\"a\":1}".into(),
                "{\"b\":\"22\"}".into(),
                "{\"c\":333}".into(),
            ];
            assert_eq!(lines(&chunks).await, (expected, true), "chunks of {width}");
        }
    }

    #[tokio::test]
    async fn a_stream_cut_within_a_line_is_an_error_not_an_end() {
        assert_eq!(lines(&["{}\n{\"a\""]).await, (vec!["{}".into()], false));
    }
}
