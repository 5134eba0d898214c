//! Decoding of watch events and list items.

use std::{fmt, marker::PhantomData};

use kube::core::Status;
use serde::{
    Deserialize,
    de::{self, DeserializeSeed, IgnoredAny, MapAccess},
};
use serde_json::value::RawValue;
use weft_model::ObjectKey;

use super::{WatchError, request::retry_seconds};
use crate::{Metadata, Object};

/// One line of a watch.
#[derive(Debug)]
pub(crate) enum WatchEvent<K> {
    Applied(Decoded<K>),
    Deleted(Decoded<K>),
    Bookmark {
        version: String,
        initial_events_end: bool,
    },
    Failed(WatchError),
}

/// An object, or the identity of one that this build's type cannot hold.
#[derive(Debug)]
pub(crate) enum Decoded<K> {
    Object(K),
    Undecodable {
        key: ObjectKey,
        version: Box<str>,
        error: String,
    },
}

impl<K: Object> Decoded<K> {
    /// Version of the object, decodable or not.
    pub(crate) fn version(&self) -> &str {
        match self {
            Self::Object(object) => object.resource_version(),
            Self::Undecodable { version, .. } => version,
        }
    }
}

/// Decodes a line of a watch. `Err` only for lines from which not even an object's name can be
/// read: those break the protocol, not one object.
pub(crate) fn decode_event<K: Object>(
    line: &[u8],
    path: &str,
) -> Result<WatchEvent<K>, WatchError> {
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    let error = match Frame::<K>::deserialize_from(&mut deserializer) {
        Ok(frame) => return Ok(frame.into_event(path)),
        Err(error) => error,
    };
    // The type could not hold the object. Its name and version are all that is needed to mark
    // that one key.
    let frame: Frame<Identity> =
        Frame::deserialize_from(&mut serde_json::Deserializer::from_slice(line))
            .map_err(|_| WatchError::Protocol(format!("unreadable watch event: {error}")))?;
    Ok(match frame.into_event(path) {
        WatchEvent::Applied(identity) => WatchEvent::Applied(identity.into_undecodable(&error)),
        WatchEvent::Deleted(identity) => WatchEvent::Deleted(identity.into_undecodable(&error)),
        WatchEvent::Bookmark {
            version,
            initial_events_end,
        } => WatchEvent::Bookmark {
            version,
            initial_events_end,
        },
        WatchEvent::Failed(error) => WatchEvent::Failed(error),
    })
}

/// Decodes the identity of a list item that its type cannot hold; fails as [`decode_event`] does.
pub(super) fn undecodable_item<K>(
    bytes: &[u8],
    error: &serde_json::Error,
) -> Result<Decoded<K>, WatchError> {
    let identity: Identity = serde_json::from_slice(bytes)
        .map_err(|_| WatchError::Protocol(format!("unreadable list item: {error}")))?;
    Ok(Decoded::Object(identity).into_undecodable(error))
}

/// Decodes a list item of known extent.
#[cfg(test)]
pub(crate) fn decode_item<K: Object>(bytes: &[u8]) -> Result<Decoded<K>, WatchError> {
    match serde_json::from_slice(bytes) {
        Ok(object) => Ok(Decoded::Object(object)),
        Err(error) => undecodable_item(bytes, &error),
    }
}

/// The readable part of an object that does not decode.
#[derive(Deserialize)]
struct Identity {
    metadata: IdentityMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdentityMetadata {
    name: String,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    resource_version: Box<str>,
}

impl Decoded<Identity> {
    fn into_undecodable<K>(self, error: &serde_json::Error) -> Decoded<K> {
        match self {
            Self::Object(Identity { metadata }) => Decoded::Undecodable {
                key: ObjectKey::new(metadata.namespace.as_deref(), &metadata.name),
                version: metadata.resource_version,
                error: error.to_string(),
            },
            Self::Undecodable {
                key,
                version,
                error,
            } => Decoded::Undecodable {
                key,
                version,
                error,
            },
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum EventType {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

/// A watch line after decoding. The type comes first on the wire, so the object is decoded
/// straight into its type; another order is read correctly, with one more pass.
enum Frame<K> {
    Object(EventType, K),
    Bookmark(BookmarkObject),
    Error(Box<Status>),
}

#[derive(Deserialize)]
struct BookmarkObject {
    metadata: BookmarkMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMetadata {
    resource_version: String,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

impl<K: de::DeserializeOwned> Frame<K> {
    fn deserialize_from<'de, R: serde_json::de::Read<'de>>(
        deserializer: &mut serde_json::Deserializer<R>,
    ) -> Result<Self, serde_json::Error> {
        let frame = FrameSeed(PhantomData).deserialize(&mut *deserializer)?;
        deserializer.end()?;
        Ok(frame)
    }

    fn into_event(self, path: &str) -> WatchEvent<K> {
        match self {
            Self::Object(EventType::Deleted, object) => {
                WatchEvent::Deleted(Decoded::Object(object))
            }
            Self::Object(_, object) => WatchEvent::Applied(Decoded::Object(object)),
            Self::Bookmark(object) => WatchEvent::Bookmark {
                initial_events_end: object
                    .metadata
                    .annotations
                    .get(INITIAL_EVENTS_END)
                    .is_some_and(|value| value == "true"),
                version: object.metadata.resource_version,
            },
            Self::Error(status) => WatchEvent::Failed(WatchError::Api {
                method: "watch",
                path: path.to_owned(),
                retry_after: retry_seconds(status.details.as_ref())
                    .map(std::time::Duration::from_secs),
                status,
            }),
        }
    }
}

struct FrameSeed<K>(PhantomData<K>);

impl<'de, K: de::DeserializeOwned> DeserializeSeed<'de> for FrameSeed<K> {
    type Value = Frame<K>;
    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Frame<K>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, K: de::DeserializeOwned> de::Visitor<'de> for FrameSeed<K> {
    type Value = Frame<K>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a watch event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Frame<K>, A::Error> {
        let mut event_type: Option<EventType> = None;
        let mut early: Option<Box<RawValue>> = None;
        let mut frame = None;
        while let Some(key) = map.next_key::<&str>()? {
            match (key, event_type) {
                ("type", _) => event_type = Some(map.next_value()?),
                ("object", None) => early = Some(map.next_value()?),
                ("object", Some(EventType::Bookmark)) => {
                    frame = Some(Frame::Bookmark(map.next_value()?));
                }
                ("object", Some(EventType::Error)) => frame = Some(Frame::Error(map.next_value()?)),
                ("object", Some(kind)) => frame = Some(Frame::Object(kind, map.next_value()?)),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if let Some(frame) = frame {
            return Ok(frame);
        }
        let raw = early.ok_or_else(|| de::Error::missing_field("object"))?;
        let raw = raw.get();
        match event_type.ok_or_else(|| de::Error::missing_field("type"))? {
            EventType::Bookmark => serde_json::from_str(raw).map(Frame::Bookmark),
            EventType::Error => serde_json::from_str(raw).map(Frame::Error),
            kind => serde_json::from_str(raw).map(|object| Frame::Object(kind, object)),
        }
        .map_err(de::Error::custom)
    }
}

/// Metadata of a list, at any position in the document.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListMetadata {
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) token: String,
}

/// Checks at compile time that slim metadata does not grow.
const _: () = assert!(size_of::<Metadata>() <= 136);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MetadataOnly;

    fn event(line: &str) -> Result<WatchEvent<MetadataOnly>, WatchError> {
        decode_event(line.as_bytes(), "/api/v1/pods")
    }

    #[test]
    fn event_types_are_decoded() {
        let object = r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"5"}}"#;
        for kind in ["ADDED", "MODIFIED"] {
            let decoded = event(&format!(r#"{{"type":"{kind}","object":{object}}}"#)).unwrap();
            assert!(
                matches!(decoded, WatchEvent::Applied(Decoded::Object(o)) if o.key().to_string() == "n/a")
            );
        }
        let deleted = event(&format!(r#"{{"object":{object},"type":"DELETED"}}"#)).unwrap();
        assert!(
            matches!(deleted, WatchEvent::Deleted(Decoded::Object(o)) if o.resource_version() == "5")
        );
        let bookmark = event(
            r#"{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
        );
        assert!(matches!(
            bookmark.unwrap(),
            WatchEvent::Bookmark { version, initial_events_end: true } if version == "9"
        ));
        let failed = event(r#"{"type":"ERROR","object":{"code":410,"reason":"Expired"}}"#).unwrap();
        assert!(
            matches!(failed, WatchEvent::Failed(WatchError::Api { status, .. }) if status.code == 410)
        );
    }

    #[test]
    fn an_object_that_does_not_decode_keeps_its_name() {
        let line = r#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7","labels":{"x":3}}}}"#;
        let WatchEvent::Applied(Decoded::Undecodable {
            key,
            version,
            error,
        }) = event(line).unwrap()
        else {
            panic!("decoded")
        };
        assert_eq!((key, &*version), (ObjectKey::cluster("a"), "7"));
        assert!(error.contains("expected a string"), "{error}");
        assert!(matches!(
            decode_item::<MetadataOnly>(br#"{"metadata":{"name":"a","labels":{"x":3}}}"#).unwrap(),
            Decoded::Undecodable { .. }
        ));
    }

    #[test]
    fn what_is_not_an_event_breaks_the_protocol() {
        for line in [
            "",
            "7",
            "{}",
            r#"{"type":"ADDED"}"#,
            r#"{"type":"NEW","object":{}}"#,
            "{\"type\"",
        ] {
            assert!(
                matches!(event(line), Err(WatchError::Protocol(_))),
                "{line}"
            );
        }
    }
}
