//! Signed calls of EC2's query API.

use std::io;

use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::Full;
use quick_xml::events::Event;
use serde::de::DeserializeOwned;
use weft_routes::ProviderError;

use super::{failure, form::Form, settings::AwsSettings, signer::Signer, wire};
use crate::{
    Calls,
    http::{Effect, HttpAnswer, HttpClient, shortened},
};

/// Maximum number of XML tags in an answer: a page of 40 tables with 1,000 routes each, a dozen
/// tags for a route.
const MOST_TAGS: usize = 500_000;

/// Signed calls, counted by operation.
#[derive(Debug)]
pub(super) struct Api {
    http: HttpClient,
    endpoint: Uri,
    signer: Signer,
    calls: Calls,
}

/// The EC2 actions in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    DescribeRouteTables,
    DescribeInstances,
    CreateRoute,
    ReplaceRoute,
    DeleteRoute,
    ModifyInstanceAttribute,
    ModifyNetworkInterfaceAttribute,
}

impl Operation {
    fn action(self) -> &'static str {
        match self {
            Self::DescribeRouteTables => "DescribeRouteTables",
            Self::DescribeInstances => "DescribeInstances",
            Self::CreateRoute => "CreateRoute",
            Self::ReplaceRoute => "ReplaceRoute",
            Self::DeleteRoute => "DeleteRoute",
            Self::ModifyInstanceAttribute => "ModifyInstanceAttribute",
            Self::ModifyNetworkInterfaceAttribute => "ModifyNetworkInterfaceAttribute",
        }
    }

    /// Value of the metric label `operation`.
    fn counted_as(self) -> &'static str {
        match self {
            Self::DescribeRouteTables => "list",
            Self::DescribeInstances => "instances",
            Self::CreateRoute => "create",
            Self::ReplaceRoute => "replace",
            Self::DeleteRoute => "delete",
            Self::ModifyInstanceAttribute | Self::ModifyNetworkInterfaceAttribute => {
                "source_dest_check"
            }
        }
    }

    /// Effect for the classification of lost answers. Switching a check off twice is harmless, so
    /// it counts as a read.
    pub(super) fn effect(self) -> Effect {
        match self {
            Self::CreateRoute | Self::ReplaceRoute | Self::DeleteRoute => Effect::Change,
            Self::DescribeRouteTables
            | Self::DescribeInstances
            | Self::ModifyInstanceAttribute
            | Self::ModifyNetworkInterfaceAttribute => Effect::Read,
        }
    }
}

impl Api {
    pub(super) fn new(settings: AwsSettings, calls: Calls) -> io::Result<Self> {
        Ok(Self {
            http: HttpClient::new(&settings.endpoint, settings.timeout)?,
            endpoint: settings.endpoint,
            signer: Signer::new(settings.region, settings.credentials),
            calls,
        })
    }

    /// Makes a call whose answer is only success or failure.
    pub(super) async fn change(
        &self,
        operation: Operation,
        form: Form,
    ) -> Result<(), ProviderError> {
        let reply: wire::Done = self.call(operation, &form).await?;
        if reply.done == Some(false) {
            return Err(ProviderError::Garbage("neither success nor error".into()));
        }
        Ok(())
    }

    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        operation: Operation,
        form: &Form,
    ) -> Result<T, ProviderError> {
        let call = async {
            let mut request = self.request(form.encode(operation.action()))?;
            self.signer.sign(&mut request.0, &request.1).await?;
            let request = request.0.map(|()| Full::new(request.1));
            let answer = self.http.send(request).await;
            let answer = answer.map_err(|error| error.classify(operation.effect()))?;
            decode(&answer, operation)
        };
        self.calls.count(operation.counted_as(), call).await
    }

    fn request(&self, body: String) -> Result<(Request<()>, Bytes), ProviderError> {
        let request = Request::post(self.endpoint.clone())
            .header(
                header::CONTENT_TYPE,
                "application/x-www-form-urlencoded; charset=utf-8",
            )
            .header(
                header::USER_AGENT,
                concat!("weft/", env!("CARGO_PKG_VERSION")),
            )
            .body(());
        let invalid = |_| ProviderError::Invalid("cannot build the request".into());
        Ok((request.map_err(invalid)?, Bytes::from(body)))
    }
}

fn decode<T: DeserializeOwned>(
    answer: &HttpAnswer,
    operation: Operation,
) -> Result<T, ProviderError> {
    if answer.status.is_success() {
        let garbage = |reason: &str| ProviderError::Garbage(shortened(reason).as_str().into());
        // The deserializer ignores the name of the root element, and many elements are optional.
        if !is_answer_to(operation, &answer.body) {
            return Err(garbage("not an answer to the request"));
        }
        if !is_bounded(&answer.body) {
            return Err(garbage(&format!("answer has more than {MOST_TAGS} tags")));
        }
        let read = quick_xml::de::from_reader(&*answer.body);
        return read.map_err(|error: quick_xml::DeError| garbage(&error.to_string()));
    }
    let reply = quick_xml::de::from_reader::<_, wire::ProblemReply>(&*answer.body).ok();
    let problem = reply.and_then(|reply| reply.errors.errors.into_iter().next());
    Err(problem.map_or_else(
        || failure::classify_status(answer.status, operation),
        |problem| failure::classify(&problem, answer.status, operation),
    ))
}

fn is_answer_to(operation: Operation, body: &[u8]) -> bool {
    let mut reader = quick_xml::Reader::from_reader(body);
    let name = loop {
        match reader.read_event() {
            Ok(Event::Start(start) | Event::Empty(start)) => {
                break start.local_name().as_ref().to_owned();
            }
            Ok(Event::Eof) | Err(_) => return false,
            Ok(_) => {}
        }
    };
    name.strip_suffix("Response") == Some(operation.action())
}

/// True if the number of tags is bounded: an empty element of seven bytes would become a route of
/// hundreds.
fn is_bounded(body: &[u8]) -> bool {
    // There is one part more than there are tags.
    let mut parts = body.split(|byte| *byte == b'<');
    parts.nth(MOST_TAGS + 1).is_none()
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use super::*;

    fn answered(body: &'static str) -> HttpAnswer {
        HttpAnswer {
            status: StatusCode::OK,
            headers: HeaderMap::new(),
            body: Bytes::from_static(body.as_bytes()),
        }
    }

    #[test]
    fn a_well_formed_page_of_another_server_is_not_a_success() {
        let read = |body| decode::<wire::Done>(&answered(body), Operation::CreateRoute);
        let page = read("<html><body>It works!</body></html>");
        assert!(matches!(page, Err(ProviderError::Garbage(_))), "{page:?}");
        let other = read("<DeleteRouteResponse/>");
        assert!(matches!(other, Err(ProviderError::Garbage(_))), "{other:?}");
        let right = "<?xml version=\"1.0\"?><!-- hello --><CreateRouteResponse/>";
        assert_eq!(read(right).unwrap().done, None);
    }

    #[test]
    fn an_answer_without_tables_is_not_an_empty_list_of_tables() {
        let read =
            |body| decode::<wire::RouteTables>(&answered(body), Operation::DescribeRouteTables);
        let bare = read("<DescribeRouteTablesResponse><requestId/></DescribeRouteTablesResponse>");
        assert!(matches!(bare, Err(ProviderError::Garbage(_))), "{bare:?}");
        let none = "<DescribeRouteTablesResponse><routeTableSet/></DescribeRouteTablesResponse>";
        assert_eq!(read(none).unwrap().tables.items.len(), 0);
    }
}
