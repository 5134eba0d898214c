use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use http_body_util::BodyExt;
use kube::client::Body;

use super::WatchError;

/// Upper bound of one line: objects are limited to 1.5 MiB by etcd and about 3 MiB on the wire.
const LINE_LIMIT: usize = 16 << 20;

/// A response body as chunks.
pub(crate) struct Chunks(BoxStream<'static, Result<Bytes, String>>);

impl Chunks {
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, WatchError> {
        self.0
            .next()
            .await
            .transpose()
            .map_err(WatchError::Connection)
    }
}

impl From<Body> for Chunks {
    fn from(body: Body) -> Self {
        Self(
            body.into_data_stream()
                .map_err(|error| error.to_string())
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

/// The lines of a watch: one JSON document each, without copying where a line lies within a chunk.
pub(crate) struct Lines {
    chunks: Chunks,
    chunk: Bytes,
    partial: BytesMut,
}

impl Lines {
    pub(crate) fn new(chunks: impl Into<Chunks>) -> Self {
        Self {
            chunks: chunks.into(),
            chunk: Bytes::new(),
            partial: BytesMut::new(),
        }
    }

    /// The next line without its newline; `None` at a clean end.
    ///
    /// Safe to cancel: nothing read is lost.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, WatchError> {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.chunk) {
                let line = self.chunk.split_to(end + 1);
                let line = if self.partial.is_empty() {
                    line.slice(..end)
                } else {
                    self.partial.extend_from_slice(&line[..end]);
                    self.partial.split().freeze()
                };
                if line.is_empty() {
                    continue;
                }
                return Ok(Some(line));
            }
            self.partial
                .extend_from_slice(&std::mem::take(&mut self.chunk));
            if self.partial.len() > LINE_LIMIT {
                return Err(WatchError::Protocol("a watch event exceeds 16 MiB".into()));
            }
            match self.chunks.next().await? {
                Some(chunk) => self.chunk = chunk,
                None if self.partial.is_empty() => return Ok(None),
                None => {
                    return Err(WatchError::Connection(
                        "the stream ended in mid-event".into(),
                    ));
                }
            }
        }
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
