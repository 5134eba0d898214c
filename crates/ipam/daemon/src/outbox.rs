//! Replies and API writes held back until their records are durable.

use std::collections::HashSet;

use weft_ipam::{
    SpecWrite,
    pool::{Key, Record, Reply, RequestId, Step},
};

use crate::handle::SendReply;

/// An effect outside the process.
pub(crate) enum Out {
    Reply(RequestId, Reply),
    Seen(SendReply),
    Write(SpecWrite),
}

/// Records, and the effects that follow once they are durable.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) records: Vec<Record>,
    pub(crate) out: Vec<Out>,
}

impl Batch {
    pub(crate) fn take_in(&mut self, step: Step) {
        self.records.extend(step.records);
        let replies = step.replies.into_iter();
        self.out
            .extend(replies.map(|(id, reply)| Out::Reply(id, reply)));
    }

    pub(crate) fn append(&mut self, later: Self) {
        self.records.extend(later.records);
        self.out.extend(later.out);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.out.is_empty()
    }

    /// True if it contains the reply to a request.
    pub(crate) fn answers(&self, wanted: RequestId) -> bool {
        let mut out = self.out.iter();
        out.any(|out| matches!(out, Out::Reply(id, _) if *id == wanted))
    }

    /// Attachments made in it for a client.
    pub(crate) fn made(&self) -> HashSet<Key> {
        let made = self.records.iter().filter_map(|record| match record {
            Record::Attachment(key, Some(_)) if !key.is_adopted() => Some(key.clone()),
            _ => None,
        });
        made.collect()
    }
}
