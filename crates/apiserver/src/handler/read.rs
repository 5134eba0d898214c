//! GET of objects and collections, with pages and continue tokens.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    api::{Api, Context},
    handler::table,
    kind::ResourceType,
    negotiate::{Format, Negotiated},
    options::{ListOptions, ReadVerb, VersionMatch, version_syntax},
    rendering,
    reply::{Payload, Reply, list_pieces},
    status::{ApiError, Outcome},
    store::{ListError, Page, PageRequest, Stored, object_key},
    view, write_lock,
};

/// Time that a read waits for a resource version in the future.
const VERSION_WAIT: Duration = Duration::from_secs(3);

/// GET of one object, at a resource version not older than asked for.
pub(crate) async fn get(
    api: &Arc<Api>,
    context: &Context,
    kind: &Arc<ResourceType>,
) -> Outcome<Reply> {
    if let Some(version) = context.query.filled("resourceVersion") {
        wait_for(api, parse_version(version)?).await?;
    }
    get_sync(api, context, kind)
}

/// GET of one object at the current version.
pub(crate) fn get_sync(api: &Api, context: &Context, kind: &ResourceType) -> Outcome<Reply> {
    let negotiated = context.negotiated(kind)?;
    let stored = find(api, kind, &context.info.namespace, &context.info.name)?;
    object_reply(api, context, kind, negotiated, StatusCode::OK, &stored)
}

/// Finds a stored object, or 404.
pub(crate) fn find(
    api: &Api,
    kind: &ResourceType,
    namespace: &str,
    name: &str,
) -> Outcome<Arc<Stored>> {
    let stored = api.store.get(&kind.storage, &object_key(namespace, name));
    stored.ok_or_else(|| ApiError::not_found(kind, name))
}

/// Renders one object in the negotiated representation.
pub(crate) fn object_reply(
    api: &Api,
    context: &Context,
    kind: &ResourceType,
    negotiated: Negotiated,
    code: StatusCode,
    stored: &Stored,
) -> Outcome<Reply> {
    match negotiated.format {
        Format::Full => Ok(Reply::json(code, view::full(kind, stored))),
        Format::Metadata => Ok(Reply::value(code, view::metadata(stored))),
        Format::MetadataList => Err(ApiError::not_acceptable(format!(
            "you requested PartialObjectMetadataList, but the requested object is not a list \
             (*{}.{})",
            internal_package(kind),
            kind.kind
        ))),
        Format::Table => {
            let include = table::Include::read(context)?;
            let metadata = json!({"resourceVersion": stored.version.to_string()});
            let make = || {
                let rows = table::rows(api, kind, std::slice::from_ref(stored), include);
                table::table(kind, &metadata, rows, table::Definitions::Included)
            };
            let table = if stored.bytes.len() > rendering::LARGE {
                write_lock::off_worker(make)
            } else {
                make()
            };
            Ok(Reply::value(code, table))
        }
    }
}

/// The Go package of upstream's internal type, which some messages show.
fn internal_package(kind: &ResourceType) -> &str {
    match kind.group.split('.').next().unwrap_or_default() {
        _ if kind.is_custom() => "unstructured",
        "" => "core",
        group => group,
    }
}

/// GET of a collection, whole or by pages.
pub(crate) async fn list(
    api: &Arc<Api>,
    context: &Context,
    kind: &Arc<ResourceType>,
) -> Outcome<Reply> {
    let negotiated = context.negotiated(kind)?;
    if negotiated.format == Format::Metadata {
        return Err(ApiError::not_acceptable(format!(
            "you requested PartialObjectMetadata, but the requested object is a list (*{}.{})",
            internal_package(kind),
            kind.list_kind
        )));
    }
    let options = ListOptions::read(
        &context.query,
        kind,
        &context.info.namespace,
        ReadVerb::List,
    )?;
    let (page, token) = page(api, context, kind, &options).await?;
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".into(), page.version.to_string().into());
    if let Some(token) = token {
        metadata.insert("continue".into(), token.into());
    } else if kind.is_custom() && negotiated.format == Format::Full {
        metadata.insert("continue".into(), "".into());
    }
    if let Some(remaining) = page.remaining {
        metadata.insert("remainingItemCount".into(), remaining.into());
    }
    list_reply(api, context, kind, negotiated, &metadata.into(), page.items)
}

/// Renders a list in the negotiated representation.
pub(crate) fn list_reply(
    api: &Arc<Api>,
    context: &Context,
    kind: &Arc<ResourceType>,
    negotiated: Negotiated,
    metadata: &Value,
    items: Vec<Arc<Stored>>,
) -> Outcome<Reply> {
    let (api_version, shown) = (kind.api_version(), kind.clone());
    let size = items.iter().map(|stored| stored.bytes.len()).sum();
    let pieces = match negotiated.format {
        Format::Table => {
            let include = table::Include::read(context)?;
            let (api, metadata) = (api.clone(), metadata.clone());
            let make = move || {
                let rows = table::rows(&api, &shown, items.iter().map(AsRef::as_ref), include);
                table::table(&shown, &metadata, rows, table::Definitions::Included)
            };
            let make = Box::new(make);
            return Ok(Reply::new(StatusCode::OK, Payload::Deferred { size, make }));
        }
        Format::MetadataList | Format::Metadata => {
            let head = format!(
                "{{\"kind\":\"PartialObjectMetadataList\",\"apiVersion\":\"meta.k8s.io/v1\",\
                 \"metadata\":{metadata},\"items\":["
            );
            list_pieces(
                head,
                items,
                |stored| view::metadata(stored).to_string().into(),
                "]}",
            )
        }
        Format::Full => {
            let head = format!(
                "{{\"kind\":\"{}\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},\
                 \"items\":[",
                kind.list_kind
            );
            list_pieces(head, items, move |stored| view::item(&shown, stored), "]}")
        }
    };
    Ok(Reply::new(StatusCode::OK, Payload::Pieces { size, pieces }))
}

/// The contents of a continue token, in upstream's format.
#[derive(Debug, Serialize, Deserialize)]
struct Token {
    v: String,
    rv: i64,
    start: String,
}

impl Token {
    fn text(version: i64, last: &str) -> String {
        let token = Self {
            v: "meta.k8s.io/v1".to_owned(),
            rv: version,
            start: format!("/{last}\0"),
        };
        URL_SAFE_NO_PAD.encode(serde_json::to_string(&token).unwrap_or_default())
    }

    fn parse(text: &str) -> Outcome<Self> {
        let invalid = |detail: String| {
            ApiError::bad_request(format!(
                "invalid continue token: continue key is not valid: {detail}"
            ))
        };
        let bytes = URL_SAFE_NO_PAD
            .decode(text.trim_end_matches('='))
            .map_err(|error| invalid(error.to_string()))?;
        let token: Self = serde_json::from_slice(&bytes)
            .map_err(|error| invalid(crate::encoding::json::go_error(&error, &bytes)))?;
        if token.v != "meta.k8s.io/v1" {
            return Err(invalid(format!(
                "server does not recognize this encoded version {:?}",
                token.v
            )));
        }
        if token.rv == 0 {
            return Err(invalid(
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)".to_owned(),
            ));
        }
        Ok(token)
    }

    /// The last key of the page before, within the namespace.
    fn after(&self) -> &str {
        self.start.trim_start_matches('/').trim_end_matches('\0')
    }
}

async fn page(
    api: &Arc<Api>,
    context: &Context,
    kind: &ResourceType,
    options: &ListOptions,
) -> Outcome<(Page, Option<String>)> {
    let limit = if context.interference.ignore_limit {
        None
    } else {
        options.limit
    };
    let mut request = PageRequest {
        filter: Some(&options.filter),
        limit,
        ..PageRequest::default()
    };
    let token = options
        .continue_token
        .as_deref()
        .map(Token::parse)
        .transpose()?;
    if let Some(token) = &token {
        if !options.version.is_empty() && options.version != "0" {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        request.after = Some(token.after());
        // A negative version continues with the newest state.
        request.at = u64::try_from(token.rv).ok();
        request.continued = request.at.is_some();
    } else if !options.version.is_empty() {
        let version = parse_version(&options.version)?;
        match options.version_match {
            VersionMatch::Exact => request.at = Some(version),
            // As upstream's watch cache: any state is fine, and there are no pages.
            _ if version == 0 => request.limit = None,
            _ => wait_for(api, version).await?,
        }
    }
    if let Some(stale) = context.interference.stale {
        request.at = Some(stale);
    }
    let page = match api.store.page(&kind.storage, &request) {
        Ok(page) => page,
        Err(ListError::Expired) => {
            return Err(match token {
                Some(token) => ApiError::expired_token(Token::text(-1, token.after())),
                None => ApiError::too_old_list(),
            });
        }
        Err(ListError::Future { current }) => {
            let asked = request.at.unwrap_or_default();
            return Err(ApiError::future_version(asked, current));
        }
    };
    let next = page.items.last().filter(|_| page.more).map(|last| {
        let relative = match &options.filter.namespace {
            Some(_) => last.name.as_str(),
            None => &last.key,
        };
        Token::text(i64::try_from(page.version).unwrap_or(i64::MAX), relative)
    });
    Ok((page, next))
}

/// Parses the resource version of a query.
pub(crate) fn parse_version(text: &str) -> Outcome<u64> {
    text.parse().map_err(|_| {
        ApiError::bad_request(format!(
            "invalid resource version: resourceVersion: Invalid value: {text:?}: {}",
            version_syntax(text)
        ))
    })
}

/// Waits up to [`VERSION_WAIT`] until the store reaches a version.
pub(crate) async fn wait_for(api: &Api, version: u64) -> Outcome<()> {
    let deadline = tokio::time::Instant::now() + VERSION_WAIT;
    loop {
        let current = api.store.version();
        if current >= version {
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(ApiError::future_version(version, current));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
