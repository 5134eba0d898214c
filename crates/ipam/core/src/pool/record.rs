//! Durable records of the pool: the changes that must survive a crash.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde::{Deserialize, Serialize};
use weft_model::{Moment, SharedStr};

use super::{Attachment, Gate, Key, Pool, Settings, Slot, State};
use crate::GrantName;

/// Identity of a machine and its current boot. Moments in records count from the start of that
/// boot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// `machine-id`: a disk image that was moved or copied has no pods on the new machine.
    pub machine: SharedStr,
    /// `boot_id`: no sandbox survives a reboot.
    pub boot: SharedStr,
}

/// A change that must survive a crash: the new value of a row, or its deletion. The last record of
/// a row counts, so records fit a log as well as tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// The machine and boot that wrote the records.
    Identity(Identity),
    /// The addresses of an attachment.
    Attachment(Key, Option<Attachment>),
    /// An address that must not be assigned before this time.
    Cooldown(IpAddr, Option<Moment>),
    /// A deleted attachment whose late ADD is refused until then.
    Tombstone(Key, Option<Moment>),
    /// A grant that is offered for release.
    Releasing(GrantName, bool),
    /// Earlier records were lost, so unrecorded addresses may be in use.
    Lost(bool),
}

/// Contents of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Journal {
    /// All records, in order. Empty for a new store.
    Kept(Vec<Record>),
    /// The store could not be read: the assignments are unknown until the pods were listed.
    Lost,
}

/// A pool rebuilt from the store.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The pool.
    pub pool: Pool,
    /// True if the store must be replaced by [`Pool::snapshot`] before anything is answered.
    pub rewrite: bool,
}

#[derive(Default)]
struct Rows {
    identity: Option<Identity>,
    attachments: BTreeMap<Key, Attachment>,
    cooldowns: BTreeMap<IpAddr, Moment>,
    tombstones: BTreeMap<Key, Moment>,
    releasing: BTreeSet<GrantName>,
    lost: bool,
}

impl Rows {
    fn replay(records: Vec<Record>) -> Self {
        let mut rows = Self::default();
        for record in records {
            match record {
                Record::Identity(identity) => rows.identity = Some(identity),
                Record::Attachment(key, row) => set(&mut rows.attachments, key, row),
                Record::Cooldown(address, row) => set(&mut rows.cooldowns, address, row),
                Record::Tombstone(key, row) => set(&mut rows.tombstones, key, row),
                Record::Releasing(name, true) => {
                    rows.releasing.insert(name);
                }
                Record::Releasing(name, false) => {
                    rows.releasing.remove(&name);
                }
                Record::Lost(lost) => rows.lost = lost,
            }
        }
        rows
    }

    /// Ends the attachments of an earlier boot: its sandboxes ended at the latest when this boot
    /// began, which is also when moments began.
    fn reboot(&mut self, settings: &Settings) {
        let until = Moment::START + settings.cooldown;
        let leases = self.attachments.values().flat_map(|held| &held.leases);
        let assigned: Vec<IpAddr> = leases.map(|lease| lease.address).collect();
        let cooling: Vec<IpAddr> = self.cooldowns.keys().copied().collect();
        self.cooldowns = assigned
            .into_iter()
            .chain(cooling)
            .map(|address| (address, until))
            .collect();
        self.attachments.clear();
        self.tombstones.clear();
        // Unrecorded use of addresses ended, too.
        self.lost = false;
    }
}

fn set<K: Ord, V>(rows: &mut BTreeMap<K, V>, key: K, row: Option<V>) {
    match row {
        Some(row) => rows.insert(key, row),
        None => rows.remove(&key),
    };
}

impl Pool {
    /// Rebuilds the pool from the store. The node's addresses are known only once its
    /// NodeNetworkConfig was observed; until then attachments are answered and deleted, but none is
    /// made.
    pub fn restore(
        settings: Settings,
        identity: Identity,
        journal: Journal,
        now: Moment,
    ) -> Restored {
        let lost = matches!(journal, Journal::Lost);
        let mut rows = match journal {
            Journal::Kept(records) => Rows::replay(records),
            Journal::Lost => Rows {
                lost: true,
                ..Rows::default()
            },
        };
        let known = rows.identity.take();
        match &known {
            Some(known) if known.machine != identity.machine => rows = Rows::default(),
            Some(known) if known.boot != identity.boot => rows.reboot(&settings),
            _ => {}
        }
        let same_machine = known
            .as_ref()
            .is_some_and(|known| known.machine == identity.machine);
        let mut pool = Self::empty(settings, identity);
        pool.gate = Gate {
            config: false,
            pods: same_machine && !lost,
            store: true,
        };
        pool.fill(rows, now);
        let rewrite = known.as_ref() != Some(&pool.identity);
        Restored { pool, rewrite }
    }

    fn fill(&mut self, rows: Rows, now: Moment) {
        // If the clock was set back, as in a restored VM snapshot, an address must not cool down
        // for longer than the cooldown.
        let cooling = self.settings.cooldown.max(self.settings.hold_after_loss);
        let (latest, longest) = (now + cooling, now + self.settings.tombstone);
        for (address, until) in rows.cooldowns {
            let until = until.min(latest);
            self.slots
                .insert(address, Slot::loose(State::Cooldown { until }));
        }
        for (key, attachment) in rows.attachments {
            for lease in &attachment.leases {
                let owner = key.clone();
                let known = self.slots.get(&lease.address);
                if known.is_none_or(|slot| slot.state.owner().is_none()) {
                    let slot = Slot::loose(State::Assigned { owner });
                    self.slots.insert(lease.address, slot);
                }
            }
            self.attachments.insert(key, attachment);
        }
        let tombstones = rows.tombstones.into_iter();
        self.tombstones = tombstones
            .map(|(key, until)| (key, until.min(longest)))
            .collect();
        self.offered = rows.releasing;
        self.lost = rows.lost;
    }

    /// All records that must be kept, in one piece: replaces the contents of the store.
    ///
    /// It contains the identity only once the pods were listed: after a crash before that, the next
    /// process must not assume that no other address is in use.
    pub fn snapshot(&self) -> Vec<Record> {
        let mut records = Vec::new();
        if self.gate.pods {
            records.push(Record::Identity(self.identity.clone()));
        }
        if self.lost {
            records.push(Record::Lost(true));
        }
        let attachments = self.attachments.iter();
        records.extend(
            attachments.map(|(key, held)| Record::Attachment(key.clone(), Some(held.clone()))),
        );
        for (address, slot) in self.slots.iter() {
            let until = match slot.state {
                State::Cooldown { until } => Some(until),
                State::Releasing { until } => until,
                _ => None,
            };
            if until.is_some() {
                records.push(Record::Cooldown(*address, until));
            }
        }
        let tombstones = self.tombstones.iter();
        records.extend(tombstones.map(|(key, until)| Record::Tombstone(key.clone(), Some(*until))));
        let offered = self.offered.iter();
        records.extend(offered.map(|name| Record::Releasing(name.clone(), true)));
        records
    }
}
