//! Content negotiation: encoding and format of an answer, by the Accept header.

use crate::{
    kind::Origin,
    status::{ApiError, Outcome},
};

/// Encoding of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
}

/// Representation of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// The object itself.
    Full,
    /// A `Table`, as kubectl prints it.
    Table,
    /// As `PartialObjectMetadata`.
    Metadata,
    /// As `PartialObjectMetadataList`.
    MetadataList,
}

/// The representation chosen for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Negotiated {
    pub(crate) encoding: Encoding,
    pub(crate) format: Format,
}

/// The kind of content of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseKind {
    Object,
    Collection,
    Watch,
}

/// One entry of an Accept header.
pub(crate) struct MediaRange<'a> {
    pub(crate) kind: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> MediaRange<'a> {
    pub(crate) fn parse_all(accept: &'a str) -> Vec<Self> {
        let parse = |entry: &'a str| {
            let mut parts = entry.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let parameters = parts.filter_map(|part| part.split_once('=')).collect();
            Self { kind, parameters }
        };
        accept
            .split(',')
            .map(parse)
            .filter(|range| !range.kind.is_empty())
            .collect()
    }

    pub(crate) fn parameter(&self, name: &str) -> Option<&'a str> {
        self.parameters
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| *value)
    }
}

const ACCEPTED: &str = "only the following media types are accepted: ";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Picks the first acceptable entry. Protobuf is never written: a client that names it alone gets
/// JSON for built-in kinds (its decoder follows the answer's type) and 406 for custom ones.
pub(crate) fn negotiate(
    accept: Option<&str>,
    origin: Origin,
    kind: ResponseKind,
) -> Outcome<Negotiated> {
    let custom = origin == Origin::Custom;
    let watch = kind == ResponseKind::Watch;
    let json = Negotiated {
        encoding: Encoding::Json,
        format: Format::Full,
    };
    let ranges = MediaRange::parse_all(accept.unwrap_or_default());
    if ranges.is_empty() {
        return Ok(json);
    }
    let mut yaml_watch = false;
    let mut protobuf = false;
    for range in &ranges {
        let Some(format) = format_of(range) else {
            continue;
        };
        match range.kind {
            "application/json" | "*/*" | "application/*" => {
                return Ok(Negotiated {
                    encoding: Encoding::Json,
                    format,
                });
            }
            "application/yaml" if watch => yaml_watch = true,
            "application/yaml" => {
                return Ok(Negotiated {
                    encoding: Encoding::Yaml,
                    format,
                });
            }
            PROTOBUF if !custom => protobuf = true,
            _ => {}
        }
    }
    if protobuf {
        let range = ranges.iter().find(|range| range.kind == PROTOBUF);
        let format = range.and_then(format_of).unwrap_or(Format::Full);
        return Ok(Negotiated {
            encoding: Encoding::Json,
            format,
        });
    }
    Err(if yaml_watch {
        ApiError::not_acceptable(format!(
            "{ACCEPTED}application/json;stream=watch, {PROTOBUF};stream=watch"
        ))
    } else if !custom && ranges.iter().any(is_known_type) {
        // The media type is supported, but `as=` is not.
        ApiError::not_acceptable(format!(
            "{ACCEPTED}application/json, application/yaml, {PROTOBUF}"
        ))
    } else if custom || ranges.iter().any(|range| range.kind == PROTOBUF) {
        ApiError::not_acceptable(format!("{ACCEPTED}application/json, application/yaml"))
    } else {
        ApiError::not_acceptable_representation(kind)
    })
}

fn is_known_type(range: &MediaRange<'_>) -> bool {
    matches!(range.kind, "application/json" | "application/yaml")
}

/// The format of a media range; `None` when it is not supported.
fn format_of(range: &MediaRange<'_>) -> Option<Format> {
    let version = range.parameter("v");
    if range.parameter("as").is_some() && !matches!(version, Some("v1" | "v1beta1")) {
        return None;
    }
    match (range.parameter("as"), range.parameter("g")) {
        (None, _) => Some(Format::Full),
        (Some("Table"), Some("meta.k8s.io")) => Some(Format::Table),
        (Some("PartialObjectMetadata"), Some("meta.k8s.io")) => Some(Format::Metadata),
        (Some("PartialObjectMetadataList"), Some("meta.k8s.io")) => Some(Format::MetadataList),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_acceptable_entry_wins() {
        let pick = |accept| negotiate(Some(accept), Origin::Builtin, ResponseKind::Object).unwrap();
        assert_eq!(
            pick("application/vnd.kubernetes.protobuf, */*").encoding,
            Encoding::Json
        );
        assert_eq!(pick("application/yaml").encoding, Encoding::Yaml);
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(pick(kubectl).format, Format::Table);
        assert_eq!(
            pick("application/json;as=Foo;g=x,application/json").format,
            Format::Full
        );
    }

    #[test]
    fn unsupported_media_types_are_refused() {
        assert!(
            negotiate(
                Some("application/xml"),
                Origin::Builtin,
                ResponseKind::Object
            )
            .is_err()
        );
        assert!(
            negotiate(
                Some("application/yaml"),
                Origin::Builtin,
                ResponseKind::Watch
            )
            .is_err()
        );
        assert!(negotiate(Some(PROTOBUF), Origin::Custom, ResponseKind::Object).is_err());
        assert!(negotiate(Some(PROTOBUF), Origin::Builtin, ResponseKind::Object).is_ok());
    }
}
