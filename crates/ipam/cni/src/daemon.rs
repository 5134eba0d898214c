//! Client of the daemon: one method for each request of the plugin.

use std::{path::Path, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use weft_cns::{
    GcRequest, GcResponse, IpConfigsRequest, IpConfigsResponse, PodIpInfo,
    ReleaseIpConfigsResponse, Response, ReturnCode, StatusResponse, header, path,
};

use crate::{
    deadline::Deadline,
    http::{self, Answer, HttpError, Request},
};

/// Time kept back from the deadline that the daemon is given, so that its response arrives in time.
const MARGIN: Duration = Duration::from_secs(2);

/// Asks the daemon behind a socket whether it can serve an ADD.
pub fn status(socket: &Path, within: Duration) -> Result<StatusResponse, DaemonError> {
    Daemon { socket }.status(Deadline::after(within), &[])
}

/// The same for an installer that stays: also reports how many repairs it has made.
pub fn status_for_installer(
    socket: &Path,
    within: Duration,
    repairs: u64,
) -> Result<StatusResponse, DaemonError> {
    let headers = [(header::CNI_REPAIRS, repairs.to_string())];
    Daemon { socket }.status(Deadline::after(within), &headers)
}

pub(crate) struct Daemon<'a> {
    pub(crate) socket: &'a Path,
}

/// The daemon did not carry out a request.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// No usable response.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// It runs, but is not ready to serve.
    #[error("the daemon is not ready: {0}")]
    NotReady(String),
    /// It refused the request.
    #[error("{}: {}", .0.return_code, .0.message)]
    Refused(Response),
    /// Its response is not one of the CNS API.
    #[error("HTTP {status}: {excerpt}")]
    InvalidResponse {
        /// HTTP status.
        status: u16,
        /// The beginning of the body, or the error of decoding it.
        excerpt: String,
    },
}

impl Daemon<'_> {
    pub(crate) fn request(
        &self,
        request: &IpConfigsRequest,
        deadline: Deadline,
    ) -> Result<Vec<PodIpInfo>, DaemonError> {
        let answer: IpConfigsResponse = self.post(path::REQUEST_IP_CONFIGS, request, deadline)?;
        accepted(answer.response)?;
        Ok(answer.pod_ip_info)
    }

    pub(crate) fn release(
        &self,
        request: &IpConfigsRequest,
        deadline: Deadline,
    ) -> Result<(), DaemonError> {
        let answer: ReleaseIpConfigsResponse =
            self.post(path::RELEASE_IP_CONFIGS, request, deadline)?;
        accepted(answer.0)
    }

    /// Addresses held under a key; empty if the key is unknown.
    pub(crate) fn held(
        &self,
        request: &IpConfigsRequest,
        deadline: Deadline,
    ) -> Result<Vec<PodIpInfo>, DaemonError> {
        let answer: IpConfigsResponse = self.post(path::CHECK_IP_CONFIGS, request, deadline)?;
        if answer.response.return_code == ReturnCode::NOT_FOUND {
            return Ok(Vec::new());
        }
        accepted(answer.response)?;
        Ok(answer.pod_ip_info)
    }

    pub(crate) fn clean_up(
        &self,
        request: &GcRequest,
        deadline: Deadline,
    ) -> Result<u64, DaemonError> {
        let answer: GcResponse = self.post(path::GC, request, deadline)?;
        accepted(answer.response)?;
        Ok(answer.released)
    }

    pub(crate) fn status(
        &self,
        deadline: Deadline,
        headers: &[(&'static str, String)],
    ) -> Result<StatusResponse, DaemonError> {
        let request = Request {
            method: "GET",
            path: path::STATUS,
            headers,
            body: &[],
        };
        let status: StatusResponse = read(&http::exchange(self.socket, &request, deadline)?)?;
        accepted(status.response.clone())?;
        Ok(status)
    }

    fn post<T: DeserializeOwned>(
        &self,
        path: &'static str,
        body: &impl Serialize,
        deadline: Deadline,
    ) -> Result<T, DaemonError> {
        let left = deadline.remaining().ok_or(HttpError::TimedOut)?;
        let wait = left.checked_sub(MARGIN).unwrap_or(left / 2);
        let request = Request {
            method: "POST",
            path,
            headers: &[(header::WAIT_MILLISECONDS, wait.as_millis().to_string())],
            body: &serde_json::to_vec(body).expect("our own types are always JSON"),
        };
        read(&http::exchange(self.socket, &request, deadline)?)
    }
}

fn read<T: DeserializeOwned>(answer: &Answer) -> Result<T, DaemonError> {
    let status = answer.status;
    // The compatible paths always answer 200; any other status comes from the HTTP server.
    let invalid = |excerpt| DaemonError::InvalidResponse { status, excerpt };
    match status {
        200..300 => serde_json::from_slice(&answer.body)
            .map_err(|error| invalid(format!("{error} in {:?}", excerpt(&answer.body)))),
        429 | 503 => Err(DaemonError::NotReady(excerpt(&answer.body))),
        401 | 403 => Err(DaemonError::Refused(Response::failure(
            ReturnCode::STATUS_UNAUTHORIZED,
            excerpt(&answer.body),
        ))),
        _ => Err(invalid(excerpt(&answer.body))),
    }
}

fn accepted(response: Response) -> Result<(), DaemonError> {
    if response.return_code.is_success() {
        Ok(())
    } else {
        Err(DaemonError::Refused(response))
    }
}

/// The beginning of a body, without control characters.
fn excerpt(body: &[u8]) -> String {
    String::from_utf8_lossy(body)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(200)
        .collect()
}
