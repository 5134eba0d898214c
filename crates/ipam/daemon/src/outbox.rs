//! What leaves the process, and after which records.

use std::collections::HashSet;

use weft_ipam::{
    SpecWrite,
    pool::{Key, Record, Reply, Step, Ticket},
};

use crate::desk::Send;

/// Something that leaves the process.
pub(crate) enum Out {
    Reply(Ticket, Reply),
    Seen(Send),
    Write(SpecWrite),
}

/// Records, and what may leave once they are durable.
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
            .extend(replies.map(|(ticket, reply)| Out::Reply(ticket, reply)));
    }

    pub(crate) fn append(&mut self, later: Self) {
        self.records.extend(later.records);
        self.out.extend(later.out);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.out.is_empty()
    }

    /// Whether somebody's answer is in it.
    pub(crate) fn answers(&self, wanted: Ticket) -> bool {
        let mut out = self.out.iter();
        out.any(|out| matches!(out, Out::Reply(ticket, _) if *ticket == wanted))
    }

    /// The attachments that were made in it for somebody who asked.
    pub(crate) fn made(&self) -> HashSet<Key> {
        let made = self.records.iter().filter_map(|record| match record {
            Record::Attachment(key, Some(_)) if !key.is_adopted() => Some(key.clone()),
            _ => None,
        });
        made.collect()
    }
}
