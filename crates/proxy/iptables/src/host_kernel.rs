//! The kernel interface that runs the host's iptables programs and reads hashes over netlink.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hasher as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use weft_host::{
    NetlinkError,
    iptables::{Iptables as Programs, RestoreError, Variant},
    netfilter::{Netfilter, legacy_fingerprint},
};
use weft_model::IpFamily;
use weft_ruleset::{ChainName, Table};

use crate::kernel::{Fingerprint, Kernel, KernelError, RawHash};

/// The number of writes by this process, over all families.
///
/// nftables counts all writes of all processes in one generation number. The difference between the
/// two shows whether another process wrote.
#[derive(Clone, Debug, Default)]
pub struct OwnWrites(Arc<Writes>);

#[derive(Debug, Default)]
struct Writes {
    count: AtomicU64,
    /// Writers take it shared; comparing the two numbers takes it exclusively: a write that the
    /// kernel has counted and this process has not would look like a foreign one, and hide one
    /// later.
    running: RwLock<()>,
}

/// Reads and writes through the iptables programs of one family and variant.
#[derive(Debug)]
pub struct HostKernel {
    programs: Programs,
    /// For the generation of the rules and for hashes; opened on first use.
    netfilter: Option<Netfilter>,
    own_writes: OwnWrites,
    cpu_time: Duration,
}

impl HostKernel {
    /// Uses these programs. All families of a process must share `own_writes`.
    pub fn new(programs: Programs, own_writes: OwnWrites) -> Self {
        Self {
            programs,
            own_writes,
            netfilter: None,
            cpu_time: Duration::ZERO,
        }
    }

    /// Runs a netlink request. After an error the next request opens a new socket.
    fn query<T>(
        &mut self,
        question: impl FnOnce(&mut Netfilter) -> Result<T, NetlinkError>,
    ) -> Result<T, NetlinkError> {
        let mut netfilter = match self.netfilter.take() {
            Some(netfilter) => netfilter,
            None => Netfilter::open()?,
        };
        let answer = question(&mut netfilter)?;
        self.netfilter = Some(netfilter);
        Ok(answer)
    }

    /// The kernel's generation number.
    fn generation(&mut self) -> Option<u32> {
        self.query(Netfilter::nftables_generation).ok()
    }

    fn foreign_writes(&mut self) -> Option<u64> {
        let own = self.own_writes.clone();
        let running = &own.0.running;
        // While the other family writes, the number is unknown, and waiting could take long.
        let _no_writer = running.try_write()?;
        let all = u64::from(self.generation()?);
        Some(all.wrapping_sub(own.0.count.load(Ordering::SeqCst)))
    }

    fn write_nft(&mut self, input: &str) -> Result<(), KernelError> {
        let own = self.own_writes.clone();
        let running = &own.0.running;
        let _running = running.read();
        let before = self.generation();
        let written = self.write(input);
        // Each table is one write, or none if there was nothing to do. Counting too few costs a
        // reading, counting too many would hide a foreign write.
        let lines = match &written {
            Ok(()) => usize::MAX,
            // Tables before the one at fault are written.
            Err(KernelError::Refused { lines, .. }) => {
                lines.first().map_or(0, |line| line.saturating_sub(1))
            }
            Err(KernelError::Failed(_)) => 0,
        };
        let tables = input.lines().take(lines).filter(|line| *line == "COMMIT");
        let tables = tables.count() as u64;
        if let (Some(before), Some(after)) = (before, self.generation()) {
            let counted = u64::from(after.wrapping_sub(before));
            own.0.count.fetch_add(tables.min(counted), Ordering::SeqCst);
        }
        written
    }

    fn write(&mut self, input: &str) -> Result<(), KernelError> {
        let restored = self.programs.restore(input.as_bytes());
        let refused = |error: RestoreError| {
            if error.is_refusal() {
                let lines = error.lines();
                let cause = error.into();
                KernelError::Refused { lines, cause }
            } else {
                failed(error)
            }
        };
        self.cpu_time += restored.map_err(refused)?.cpu;
        Ok(())
    }

    /// Sizes of the tables: most changes alter them, but not all.
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
        self.cpu_time += saved.map_err(failed)?.cpu;
        Ok(())
    }

    fn restore(&mut self, input: &str) -> Result<(), KernelError> {
        match self.programs.variant() {
            Variant::Nft => self.write_nft(input),
            Variant::Legacy => self.write(input),
        }
    }

    fn fingerprint(&mut self) -> Option<Fingerprint> {
        Some(match self.programs.variant() {
            Variant::Nft => Fingerprint {
                values: vec![self.foreign_writes()?],
                exact: true,
            },
            Variant::Legacy => Fingerprint {
                values: self.sizes()?,
                exact: false,
            },
        })
    }

    fn chain_rules(&mut self, table: Table, chain: ChainName) -> Result<Vec<String>, KernelError> {
        let listed = self.programs.chain_rules(table.as_str(), chain.as_str());
        let (rules, cpu_time) = listed.map_err(failed)?;
        self.cpu_time += cpu_time.cpu;
        Ok(rules)
    }

    fn raw_chains(
        &mut self,
        which: Option<&[(Table, ChainName)]>,
        each: &mut dyn FnMut(Table, ChainName, RawHash),
    ) -> Result<bool, KernelError> {
        if self.programs.variant() != Variant::Nft {
            return Ok(false);
        }
        let family = self.programs.family();
        let read = |netfilter: &mut Netfilter| {
            for table in Table::ALL {
                for chain in chains(netfilter, family, table, which)? {
                    each(table, chain, raw_hash(netfilter, family, table, chain)?);
                }
            }
            Ok(())
        };
        self.query(read).map_err(failed)?;
        Ok(true)
    }

    fn take_cpu_time(&mut self) -> Duration {
        std::mem::take(&mut self.cpu_time)
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> KernelError {
    KernelError::Failed(error.into())
}

/// The requested chains that exist.
fn chains(
    netfilter: &mut Netfilter,
    family: IpFamily,
    table: Table,
    which: Option<&[(Table, ChainName)]>,
) -> Result<Vec<ChainName>, NetlinkError> {
    let wanted: Option<HashSet<ChainName>> = which.map(|which| {
        let of_table = which.iter().filter(|(t, _)| *t == table);
        of_table.map(|(_, chain)| *chain).collect()
    });
    if wanted.as_ref().is_some_and(HashSet::is_empty) {
        return Ok(Vec::new());
    }
    let is_wanted = |chain: &ChainName| match &wanted {
        Some(wanted) => wanted.contains(chain),
        None => chain.as_str().starts_with("KUBE-") || table.has_built_in(*chain),
    };
    let names = netfilter.nftables_chains(family, table.as_str())?;
    // A name that cannot be parsed is not one of our chains.
    let names = names.iter().filter_map(|name| ChainName::parse(name).ok());
    Ok(names.filter(is_wanted).collect())
}

fn raw_hash(
    netfilter: &mut Netfilter,
    family: IpFamily,
    table: Table,
    chain: ChainName,
) -> Result<RawHash, NetlinkError> {
    let mut hasher = DefaultHasher::new();
    let mut is_empty = true;
    let (table, chain) = (table.as_str(), Some(chain.as_str()));
    netfilter.nftables_rules(family, table, chain, &mut |_, rule| {
        let bytes = rule.as_bytes();
        hasher.write_usize(bytes.len());
        hasher.write(bytes);
        is_empty = false;
    })?;
    Ok(if is_empty {
        RawHash::EMPTY
    } else {
        RawHash(hasher.finish().max(1))
    })
}
