//! The CNI commands: ADD, DEL, CHECK, STATUS and GC.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use weft_cns::{GcRequest, IpConfigsRequest, ReturnCode, Serving};
use weft_model::error_text;

use crate::{
    Code, Fault, Invocation, Limits, NetworkConfig, Queue,
    daemon::{Daemon, DaemonError},
    deadline::Deadline,
    http::HttpError,
    outcome::Outcome,
    queue::Replay,
    served::Served,
};

/// Upper bound on the time a call spends replaying queued releases of other calls.
const REPLAY: Duration = Duration::from_secs(3);

/// One call about to be carried out.
pub(crate) struct Verbs<'a> {
    pub(crate) invocation: &'a Invocation,
    pub(crate) config: &'a NetworkConfig,
    pub(crate) limits: &'a Limits,
}

/// Result of a successful call.
#[derive(Default)]
pub(crate) struct Done {
    /// Printed to the runtime.
    pub(crate) result: Option<Outcome>,
    /// Printed to stderr and the log.
    pub(crate) note: Option<String>,
}

impl Verbs<'_> {
    /// Requests the pod's addresses from the daemon.
    pub(crate) fn add(&self) -> Result<Done, Fault> {
        let deadline = Deadline::after(self.limits.add);
        let mut request = self.key();
        request.desired_ip_addresses = self.config.desired_addresses()?;
        let note = self.replay(deadline);
        // A queued release would free the addresses that this call gets.
        let waits = self.queue().holds(&request);
        if waits.map_err(|error| unusable("cannot read the release queue", &error))? {
            return Err(Fault::new(
                Code::TryAgainLater,
                "an earlier release of this interface is still queued",
                note.unwrap_or_default(),
            ));
        }
        let infos = self
            .daemon()
            .request(&request, deadline)
            .map_err(|error| fault("cannot get addresses", &error))?;
        let routes = self.config.ipam.routes.as_deref();
        match Outcome::new(self.config.version, &infos, routes) {
            Ok(outcome) => Ok(Done {
                result: Some(outcome),
                note,
            }),
            Err(error) => {
                // The caller will not release addresses it never saw. If this fails as well, the
                // runtime's DEL or the daemon's sweep releases them.
                let released = self.daemon().release(&request, deadline);
                let details = match released {
                    Ok(()) => error.to_string(),
                    Err(also) => format!(
                        "{error}; cannot release the addresses: {}",
                        error_text(&also)
                    ),
                };
                Err(Fault::new(
                    Code::InvalidResponse,
                    "cannot use the daemon's response",
                    details,
                ))
            }
        }
    }

    /// Releases the pod's addresses, or queues the release if the daemon cannot be reached.
    pub(crate) fn delete(&self) -> Result<Done, Fault> {
        let deadline = Deadline::after(self.limits.delete);
        let request = self.key();
        let lost = match self.daemon().release(&request, deadline) {
            Ok(()) => {
                let note = self.replay(deadline);
                return Ok(Done { result: None, note });
            }
            Err(error @ (DaemonError::Http(_) | DaemonError::NotReady(_))) => error,
            // The daemon refused: the runtime has to retry. Queueing the release would only hide
            // that.
            Err(error) => {
                return Err(Fault::new(
                    Code::TryAgainLater,
                    "cannot release addresses",
                    error_text(&error),
                ));
            }
        };
        let queued = self.queue().push(&request);
        queued.map_err(|error| Fault {
            details: format!("{}; {}", error_text(&lost), error_text(&error)),
            ..unusable("cannot release addresses or queue the release", &error)
        })?;
        Ok(Done {
            result: None,
            note: Some(format!("release queued: {}", error_text(&lost))),
        })
    }

    /// Compares the addresses of `prevResult` with those the daemon holds.
    pub(crate) fn check(&self) -> Result<Done, Fault> {
        let deadline = Deadline::after(self.limits.other);
        let expected: BTreeSet<IpAddr> = self.config.previous_addresses()?.into_iter().collect();
        let held = self
            .daemon()
            .held(&self.key(), deadline)
            .map_err(|error| fault("cannot check addresses", &error))?;
        let held: BTreeSet<IpAddr> = held
            .iter()
            .filter_map(|info| info.pod_ip_config.ip_address)
            .collect();
        if held == expected && !held.is_empty() {
            return Ok(Done::default());
        }
        Err(Fault::new(
            Code::Differs,
            "the pod's addresses differ from those the daemon holds for it",
            format!(
                "the pod has [{}], the daemon holds [{}]",
                list(&expected),
                list(&held)
            ),
        ))
    }

    /// Reports whether an ADD could be served. A daemon that is absent or starting, and could serve
    /// a moment ago, counts as serving: it is being replaced.
    pub(crate) fn status(&self) -> Result<Done, Fault> {
        let deadline = Deadline::after(self.limits.other);
        let served = Served::new(&self.config.ipam.socket);
        let (code, details, absent) = match self.daemon().status(deadline, &[]) {
            Ok(status) => match status.serving {
                Serving::Ready => {
                    // Without a record a later absence is not tolerated.
                    let note = served
                        .record()
                        .err()
                        .map(|error| format!("cannot record that the daemon can serve: {error}"));
                    return Ok(Done { result: None, note });
                }
                Serving::Unavailable => (Code::Unavailable, status.reason, status.starting),
                Serving::Limited => (Code::Limited, status.reason, false),
            },
            Err(error @ (DaemonError::Http(_) | DaemonError::NotReady(_))) => {
                (Code::Unavailable, error_text(&error), true)
            }
            Err(error) => (Code::Unavailable, error_text(&error), false),
        };
        if !absent {
            served.forget();
        } else if let Some(age) = served.recent() {
            let note = format!("the daemon served {age:.1?} ago: {details}");
            return Ok(Done {
                result: None,
                note: Some(note),
            });
        }
        Err(Fault::new(code, "cannot assign addresses", details))
    }

    /// Sends the list of existing attachments to the daemon, which releases all others.
    pub(crate) fn clean_up(&self) -> Result<Done, Fault> {
        let deadline = Deadline::after(self.limits.other);
        let request = GcRequest {
            network_name: self.config.name.clone(),
            valid_attachments: self.config.valid_attachments()?,
        };
        let replayed = self.replay(deadline);
        let released = self.daemon().clean_up(&request, deadline);
        let released =
            released.map_err(|error| fault("cannot release unlisted attachments", &error))?;
        let freed = (released > 0).then(|| format!("released {released} attachments"));
        Ok(Done {
            result: None,
            note: freed.or(replayed),
        })
    }

    /// Replays queued releases; returns a note for the log.
    fn replay(&self, deadline: Deadline) -> Option<String> {
        let queue = self.queue();
        // Without a queue directory this is a single failed system call.
        if queue.is_empty().unwrap_or(false) {
            return None;
        }
        let deadline = deadline.at_most(self.limits.delete.min(REPLAY));
        let daemon = self.daemon();
        let drained = match queue.lock() {
            Ok(Some(guard)) => guard.drain(|request| match daemon.release(request, deadline) {
                Ok(()) => Replay::Done,
                Err(DaemonError::Refused(_) | DaemonError::InvalidResponse { .. }) => Replay::Keep,
                Err(DaemonError::Http(_) | DaemonError::NotReady(_)) => Replay::Stop,
            }),
            Ok(None) => return Some("release queue is locked by another process".to_owned()),
            Err(error) => Err(error),
        };
        Some(match drained {
            Ok(drained) => format!(
                "release queue: {} replayed, {} left, {} unreadable",
                drained.released, drained.left, drained.unreadable
            ),
            Err(error) => format!("release queue: {}", error_text(&error)),
        })
    }

    fn key(&self) -> IpConfigsRequest {
        let invocation = self.invocation;
        IpConfigsRequest {
            pod_interface_id: invocation.container_id.clone(),
            infra_container_id: invocation.container_id.clone(),
            orchestrator_context: invocation.pod.clone(),
            ifname: invocation.ifname.clone(),
            network_name: Some(self.config.name.clone()),
            ..IpConfigsRequest::default()
        }
    }

    fn daemon(&self) -> Daemon<'_> {
        Daemon {
            socket: &self.config.ipam.socket,
        }
    }

    fn queue(&self) -> Queue {
        Queue::new(&self.config.ipam.queue)
    }
}

/// A failure of the daemon, with a code by whether a retry can help.
fn fault(doing: &str, error: &DaemonError) -> Fault {
    let code = match error {
        DaemonError::Http(HttpError::Invalid(_)) | DaemonError::InvalidResponse { .. } => {
            Code::InvalidResponse
        }
        DaemonError::Http(_) | DaemonError::NotReady(_) => Code::TryAgainLater,
        DaemonError::Refused(response) => match response.return_code {
            // The pool may have an address at the next attempt.
            ReturnCode::FAILED_TO_ALLOCATE_IP_CONFIG | ReturnCode::ADDRESS_UNAVAILABLE => {
                Code::TryAgainLater
            }
            _ => Code::Refused,
        },
    };
    let doing = match code {
        Code::TryAgainLater => format!("{doing}: try again later"),
        _ => doing.to_owned(),
    };
    Fault::new(code, doing, error_text(error))
}

fn unusable(doing: &str, error: &crate::QueueError) -> Fault {
    let code = match error {
        crate::QueueError::Full { .. } => Code::TryAgainLater,
        crate::QueueError::Io { .. } => Code::InputOutput,
    };
    Fault::new(code, doing, error_text(error))
}

fn list(addresses: &BTreeSet<IpAddr>) -> String {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    texts.join(", ")
}
