//! Answers of handlers, before they are rendered as HTTP responses.

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use serde_json::Value;

use crate::status::ApiError;

/// The error that ends a body early.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of every HTTP response of the server.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// An answer: status code, headers and payload.
pub(crate) struct Reply {
    pub(crate) code: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Payload,
}

/// The payload of an answer.
pub(crate) enum Payload {
    /// JSON to print in the negotiated encoding.
    Value(Value),
    /// JSON text without its closing newline.
    Json(Bytes),
    /// JSON in consecutive pieces; `size` is the number of stored bytes of its objects.
    Pieces {
        size: usize,
        pieces: Box<dyn Iterator<Item = Bytes> + Send>,
    },
    /// JSON that is built once a rendering permit is free; `size` is the number of stored bytes of its
    /// objects.
    Deferred {
        size: usize,
        make: Box<dyn FnOnce() -> Value + Send>,
    },
    /// Bytes with their content type.
    Raw(Bytes, HeaderValue),
    /// The stream of a watch.
    Stream(Body),
}

impl Reply {
    pub(crate) fn new(code: StatusCode, payload: Payload) -> Self {
        Self {
            code,
            headers: HeaderMap::new(),
            payload,
        }
    }

    pub(crate) fn value(code: StatusCode, value: Value) -> Self {
        Self::new(code, Payload::Value(value))
    }

    pub(crate) fn json(code: StatusCode, bytes: Bytes) -> Self {
        Self::new(code, Payload::Json(bytes))
    }

    pub(crate) fn text(code: StatusCode, text: impl Into<String>) -> Self {
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        Self::new(code, Payload::Raw(Bytes::from(text.into()), plain))
            .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
    }

    pub(crate) fn error(error: &ApiError) -> Self {
        let mut reply = match error.plain {
            Some(text) => Self::text(error.code, text),
            None => Self::value(error.code, error.status()),
        };
        if let Some(seconds) = error.retry_after {
            reply = reply.header(header::RETRY_AFTER, &seconds.to_string());
        }
        reply
    }

    /// Adds a header; an invalid value is dropped.
    pub(crate) fn header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.append(name, value);
        }
        self
    }
}

/// A body of one piece.
pub(crate) fn whole(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A body that is produced while it is sent.
pub(crate) fn streamed(
    chunks: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
) -> Body {
    StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data))).boxed_unsync()
}

/// Chunk size of a streamed list in bytes.
const CHUNK: usize = 64 * 1024;

/// A body of many pieces, collected into chunks as the client reads.
pub(crate) fn gathered(pieces: Box<dyn Iterator<Item = Bytes> + Send>) -> Body {
    let chunks = stream::unfold(pieces, |mut pieces| async move {
        let mut chunk = Vec::new();
        while chunk.len() < CHUNK {
            let Some(piece) = pieces.next() else { break };
            chunk.extend_from_slice(&piece);
        }
        (!chunk.is_empty()).then(|| (Ok(Bytes::from(chunk)), pieces))
    });
    streamed(chunks)
}

/// The pieces of a list: head, items with commas between, tail.
pub(crate) fn list_pieces(
    head: String,
    items: Vec<Arc<crate::store::Stored>>,
    present: impl Fn(&crate::store::Stored) -> Bytes + Send + 'static,
    tail: &'static str,
) -> Box<dyn Iterator<Item = Bytes> + Send> {
    let items = items
        .into_iter()
        .enumerate()
        .flat_map(move |(position, item)| {
            let comma = (position > 0).then(|| Bytes::from_static(b","));
            comma.into_iter().chain([present(&item)])
        });
    Box::new(
        std::iter::once(Bytes::from(head))
            .chain(items)
            .chain([Bytes::from_static(tail.as_bytes())]),
    )
}

/// A response without headers.
pub(crate) fn response(code: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response
}
