//! The kernel behind the host's iptables programs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use weft_host::{
    iptables::{Iptables as Programs, Variant},
    netfilter::{Netfilter, legacy_fingerprint},
};
use weft_ruleset::Table;

use crate::kernel::{Fingerprint, Kernel, KernelError};

/// How often this process wrote, over all families.
///
/// nftables counts the writes of everybody to everything in one number. Less our own, it tells
/// whether somebody else wrote.
#[derive(Clone, Debug, Default)]
pub struct OwnWrites(Arc<AtomicU64>);

/// Reads and writes through the iptables programs of one family and variant.
#[derive(Debug)]
pub struct HostKernel {
    programs: Programs,
    /// Asked for the generation of the rules; opened when first needed.
    netfilter: Option<Netfilter>,
    own_writes: OwnWrites,
    spent: Duration,
}

impl HostKernel {
    /// Through these programs. All families of a process count their writes together.
    pub fn new(programs: Programs, own_writes: OwnWrites) -> Self {
        Self {
            programs,
            own_writes,
            netfilter: None,
            spent: Duration::ZERO,
        }
    }

    fn generation(&mut self) -> Option<u64> {
        if self.netfilter.is_none() {
            self.netfilter = Netfilter::open().ok();
        }
        let generation = self.netfilter.as_mut()?.nftables_generation();
        if generation.is_err() {
            self.netfilter = None;
        }
        let own = self.own_writes.0.load(Ordering::SeqCst);
        generation.ok().map(|all| u64::from(all).wrapping_sub(own))
    }

    /// Sizes of the tables: most changes show in them, but not all.
    fn sizes(&self) -> Option<Vec<u64>> {
        let family = self.programs.family();
        let mut sizes = Vec::new();
        for table in Table::ALL.map(Table::as_str) {
            let size = legacy_fingerprint(family, table).ok()?;
            let (entries, bytes) = size.map_or((0, 0), |size| (size.entries, size.size));
            sizes.extend([u64::from(entries), u64::from(bytes)]);
        }
        Some(sizes)
    }
}

impl Kernel for HostKernel {
    fn save(&mut self, line: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
        let saved = self.programs.save_lines(None, line);
        self.spent += saved.map_err(|error| told(&error))?.cpu;
        Ok(())
    }

    fn restore(&mut self, input: &str) -> Result<(), KernelError> {
        let restored = self.programs.restore(input.as_bytes());
        self.spent += restored.map_err(|error| told(&error))?.cpu;
        // Each table is one write, and every plan of ours changes the tables that it names.
        let tables = input.lines().filter(|line| *line == "COMMIT").count();
        self.own_writes.0.fetch_add(tables as u64, Ordering::SeqCst);
        Ok(())
    }

    fn fingerprint(&mut self) -> Option<Fingerprint> {
        Some(match self.programs.variant() {
            Variant::Nft => Fingerprint {
                values: vec![self.generation()?],
                exact: true,
            },
            Variant::Legacy => Fingerprint {
                values: self.sizes()?,
                exact: false,
            },
        })
    }

    fn take_spent(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
    }
}

/// An error with all its causes: what the program said stands in the last of them.
fn told(error: &dyn std::error::Error) -> KernelError {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let words: Vec<String> = causes.map(ToString::to_string).collect();
    KernelError(words.join(": "))
}
