//! Streaming reader of a list response.

use bytes::{Buf, BytesMut};
use serde::{Deserialize, de::IgnoredAny};

use super::{
    Decoded, WatchError,
    decode::{ListMetadata, undecodable_item},
    frames::Chunks,
};
use crate::{Kind, Object};

/// Reads the items of a list one by one while the body arrives, so that memory holds one item and
/// one chunk, not the list.
pub(crate) struct ListReader {
    chunks: Chunks,
    buffer: BytesMut,
    /// Buffer size for the next try: parsing an incomplete value again before the buffer has
    /// doubled would cost quadratic time.
    retry_at: usize,
    at_end: bool,
    position: Position,
    metadata: ListMetadata,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Start,
    Key,
    Item,
    End,
}

/// Size limit of one list item.
const ITEM_LIMIT: usize = 16 << 20;

impl ListReader {
    pub(crate) fn new(chunks: impl Into<Chunks>) -> Self {
        Self {
            chunks: chunks.into(),
            buffer: BytesMut::new(),
            retry_at: 0,
            at_end: false,
            position: Position::Start,
            metadata: ListMetadata::default(),
        }
    }

    /// The next item and its size on the wire; `None` when the list is complete.
    pub(crate) async fn next<K: Object>(
        &mut self,
        kind: &Kind,
    ) -> Result<Option<(Decoded<K>, usize)>, WatchError> {
        loop {
            match self.position {
                Position::Start => {
                    self.expect(b'{').await?;
                    self.position = Position::Key;
                }
                Position::Key => self.read_member().await?,
                Position::Item => {
                    if let Some(item) = self.read_item(kind).await? {
                        return Ok(Some(item));
                    }
                }
                Position::End => return Ok(None),
            }
        }
    }

    /// Version of the listed state. Known when the list is complete: custom resources' lists put
    /// their metadata last.
    pub(crate) fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }

    /// Token of the next page, if there is one.
    pub(crate) fn continue_token(&self) -> Option<&str> {
        Some(self.metadata.token.as_str()).filter(|token| !token.is_empty())
    }

    async fn read_member(&mut self) -> Result<(), WatchError> {
        match self.peek().await? {
            b',' => self.buffer.advance(1),
            b'}' => {
                self.position = Position::End;
                return Ok(());
            }
            _ => {}
        }
        self.peek().await?;
        let key: String = self.value().await?;
        self.expect(b':').await?;
        match key.as_str() {
            "items" => {
                if self.peek().await? == b'[' {
                    self.buffer.advance(1);
                    self.position = Position::Item;
                } else {
                    // An empty list of an old server: `"items":null`.
                    let IgnoredAny = self.value().await?;
                }
            }
            "metadata" => self.metadata = self.value().await?,
            _ => {
                let IgnoredAny = self.value().await?;
            }
        }
        Ok(())
    }

    async fn read_item<K: Object>(
        &mut self,
        kind: &Kind,
    ) -> Result<Option<(Decoded<K>, usize)>, WatchError> {
        if self.peek().await? == b',' {
            self.buffer.advance(1);
        }
        if self.peek().await? == b']' {
            self.buffer.advance(1);
            self.position = Position::Key;
            return Ok(None);
        }
        loop {
            match self.parse::<K>() {
                Parsed::Value(mut object, size) => {
                    self.buffer.advance(size);
                    // Items of a list are alike: below the last one's size a try would most likely
                    // fail.
                    self.retry_at = size;
                    object.normalise(kind);
                    return Ok(Some((Decoded::Object(object), size)));
                }
                Parsed::Incomplete => self.fill_further().await?,
                Parsed::Wrong(error) => return self.skip_item(&error).await.map(Some),
            }
        }
    }

    /// Skips an item that its type cannot hold, and reads its name.
    async fn skip_item<K: Object>(
        &mut self,
        error: &serde_json::Error,
    ) -> Result<(Decoded<K>, usize), WatchError> {
        loop {
            match self.parse::<IgnoredAny>() {
                Parsed::Value(IgnoredAny, size) => {
                    let decoded = undecodable_item(&self.buffer[..size], error)?;
                    self.buffer.advance(size);
                    return Ok((decoded, size));
                }
                Parsed::Incomplete => self.fill_further().await?,
                Parsed::Wrong(error) => return Err(WatchError::Protocol(format!("list: {error}"))),
            }
        }
    }

    async fn value<T: for<'de> Deserialize<'de>>(&mut self) -> Result<T, WatchError> {
        loop {
            match self.parse::<T>() {
                Parsed::Value(value, size) => {
                    self.buffer.advance(size);
                    return Ok(value);
                }
                Parsed::Incomplete => self.fill_further().await?,
                Parsed::Wrong(error) => return Err(WatchError::Protocol(format!("list: {error}"))),
            }
        }
    }

    fn parse<T: for<'de> Deserialize<'de>>(&mut self) -> Parsed<T> {
        if self.buffer.len() < self.retry_at && !self.at_end {
            return Parsed::Incomplete;
        }
        let mut values = serde_json::Deserializer::from_slice(&self.buffer).into_iter::<T>();
        match values.next() {
            // In a list every value is followed by something: a value that ends with the buffer
            // may go on in the next chunk (a number, for one).
            Some(Ok(value)) if values.byte_offset() < self.buffer.len() => {
                let size = values.byte_offset();
                self.retry_at = 0;
                Parsed::Value(value, size)
            }
            Some(Err(error)) if !error.is_eof() => {
                self.retry_at = 0;
                Parsed::Wrong(error)
            }
            _ => {
                self.retry_at = self.buffer.len() * 2;
                Parsed::Incomplete
            }
        }
    }

    async fn fill_further(&mut self) -> Result<(), WatchError> {
        if self.buffer.len() > ITEM_LIMIT {
            return Err(WatchError::Protocol("list item exceeds 16 MiB".into()));
        }
        if self.at_end {
            return Err(WatchError::Connection("list ended early".into()));
        }
        match self.chunks.next().await? {
            Some(chunk) => self.buffer.extend_from_slice(&chunk),
            None => self.at_end = true,
        }
        Ok(())
    }

    /// The next byte that is not white space.
    async fn peek(&mut self) -> Result<u8, WatchError> {
        loop {
            let blank = self
                .buffer
                .iter()
                .take_while(|byte| byte.is_ascii_whitespace())
                .count();
            self.buffer.advance(blank);
            if let Some(byte) = self.buffer.first() {
                return Ok(*byte);
            }
            self.fill_further().await?;
        }
    }

    async fn expect(&mut self, wanted: u8) -> Result<(), WatchError> {
        let found = self.peek().await?;
        if found != wanted {
            let (wanted, found) = (char::from(wanted), char::from(found));
            return Err(WatchError::Protocol(format!(
                "list: expected {wanted:?}, found {found:?}"
            )));
        }
        self.buffer.advance(1);
        Ok(())
    }
}

enum Parsed<T> {
    Value(T, usize),
    Incomplete,
    Wrong(serde_json::Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MetadataOnly;

    async fn read(chunks: &[&str]) -> Result<(Vec<String>, String, Option<String>), WatchError> {
        let kind = Kind::new("", "v1", "pods", "Pod");
        let mut reader = ListReader::new(chunks);
        let mut items = Vec::new();
        while let Some((item, _)) = reader.next::<MetadataOnly>(&kind).await? {
            items.push(match item {
                Decoded::Object(object) => object.key().to_string(),
                Decoded::Undecodable { key, .. } => format!("!{key}"),
            });
        }
        let token = reader.continue_token().map(str::to_owned);
        Ok((items, reader.resource_version().to_owned(), token))
    }

    const BUILT_IN: &str = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"12","continue":"abc"},"items":[{"metadata":{"name":"a","namespace":"n"}}, {"metadata":{"name":"b","labels":{"x":1}},"spec":{"n":12}},{"metadata":{"name":"c"}}]}"#;
    const CUSTOM: &str = r#"{"apiVersion":"x/v1","items":[{"metadata":{"name":"a"}}],"kind":"WidgetList","metadata":{"continue":"","resourceVersion":"13"}}"#;

    #[tokio::test]
    async fn items_are_found_however_the_body_is_cut() {
        let expected = (
            vec!["n/a".into(), "!b".into(), "c".into()],
            "12".into(),
            Some("abc".into()),
        );
        for width in 1..=BUILT_IN.len() {
            let chunks: Vec<&str> = BUILT_IN
                .as_bytes()
                .chunks(width)
                .map(|c| std::str::from_utf8(c).unwrap())
                .collect();
            assert_eq!(read(&chunks).await.unwrap(), expected, "chunks of {width}");
        }
    }

    #[tokio::test]
    async fn metadata_may_come_last() {
        assert_eq!(
            read(&[CUSTOM]).await.unwrap(),
            (vec!["a".into()], "13".into(), None)
        );
    }

    #[tokio::test]
    async fn empty_and_null_lists_are_complete() {
        for items in ["[]", "null", "[ ]"] {
            let text = format!(r#"{{"items":{items},"metadata":{{"resourceVersion":"1"}}}}"#);
            assert_eq!(read(&[&text]).await.unwrap(), (vec![], "1".into(), None));
        }
    }

    #[tokio::test]
    async fn a_list_cut_off_anywhere_is_an_error() {
        for end in 0..BUILT_IN.len() {
            assert!(read(&[&BUILT_IN[..end]]).await.is_err(), "cut at {end}");
        }
    }
}
