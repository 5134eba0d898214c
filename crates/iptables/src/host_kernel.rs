//! The kernel behind the host's iptables programs.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
pub struct OwnWrites(Arc<Mutex<Count>>);

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    begun: u64,
    ended: u64,
    written: u32,
}

impl OwnWrites {
    /// Does a write, of which `written` says how much it adds to the kernel's number.
    fn during<T, E>(&self, written: u32, write: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.count().begun += 1;
        let result = write();
        let mut count = self.count();
        count.ended += 1;
        // A write that failed may have been done in part. Then there are more writes than we
        // know, which is as if somebody else had done them: a reason to look.
        if result.is_ok() {
            count.written = count.written.wrapping_add(written);
        }
        result
    }

    /// The kernel's number less our writes. `None` while one of ours is under way in another
    /// family: it may be in the kernel's number already, and is not yet in ours.
    fn subtract(&self, number: impl FnOnce() -> Option<u32>) -> Option<u32> {
        let before = *self.count();
        let number = number()?;
        let quiet = before.begun == before.ended && self.count().begun == before.begun;
        quiet.then(|| number.wrapping_sub(before.written))
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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

    fn generation(&mut self) -> Option<u32> {
        if self.netfilter.is_none() {
            self.netfilter = Netfilter::open().ok();
        }
        let generation = self.netfilter.as_mut()?.nftables_generation();
        if generation.is_err() {
            self.netfilter = None;
        }
        generation.ok()
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
        let saved = self.programs.save(None);
        let (text, spent) = saved.map_err(|error| told(&error))?;
        self.spent += spent.cpu;
        text.lines().for_each(line);
        Ok(())
    }

    fn restore(&mut self, input: &str) -> Result<(), KernelError> {
        let write = || self.programs.restore(input.as_bytes());
        let restored = self.own_writes.during(certain_writes(input), write);
        self.spent += restored.map_err(|error| told(&error))?.cpu;
        Ok(())
    }

    fn fingerprint(&mut self) -> Option<Fingerprint> {
        Some(match self.programs.variant() {
            Variant::Nft => {
                let own_writes = self.own_writes.clone();
                let of_others = own_writes.subtract(|| self.generation())?;
                Fingerprint {
                    values: vec![of_others.into()],
                    exact: true,
                }
            }
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

/// How many tables an input is sure to change, each in one write.
///
/// A table of which it only names chains may have had them, empty, already. Then the kernel writes
/// nothing; and to count a write too many could hide one of others.
fn certain_writes(input: &str) -> u32 {
    let tables = input.split("COMMIT\n");
    let changed = tables.filter(|table| table.lines().any(|line| line.starts_with('-')));
    u32::try_from(changed.count()).unwrap_or_default()
}

/// An error with all its causes: what the program said stands in the last of them.
fn told(error: &dyn std::error::Error) -> KernelError {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let words: Vec<String> = causes.map(ToString::to_string).collect();
    KernelError(words.join(": "))
}
