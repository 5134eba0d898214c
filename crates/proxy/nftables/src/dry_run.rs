//! A sync that writes nothing and prints what it would write.

use weft_host::nftables::{Change, Element, Value};
use weft_proxy::{Backend as _, Desired, Scope, Settings, SyncError};

use crate::{
    backend::Nftables,
    kernel::{Kernel, KernelError, Structure},
    options::TableOptions,
    program::Program,
    text::text,
};

/// Reads from a kernel, or from none, and keeps what it is asked to write.
struct DryRun<'a> {
    kernel: Option<&'a mut dyn Kernel>,
    changes: Vec<Change>,
}

impl Kernel for DryRun<'_> {
    fn commit(&mut self, changes: &[Change]) -> Result<usize, KernelError> {
        self.changes.extend_from_slice(changes);
        Ok(0)
    }

    fn structure(&mut self) -> Result<Option<Structure>, KernelError> {
        match &mut self.kernel {
            Some(kernel) => kernel.structure(),
            None => Ok(None),
        }
    }

    fn elements(&mut self, set: &str) -> Result<Vec<Element>, KernelError> {
        match &mut self.kernel {
            Some(kernel) => kernel.elements(set),
            None => Ok(Vec::new()),
        }
    }

    fn get_elements(&mut self, set: &str, keys: &[Value]) -> Result<Vec<Element>, KernelError> {
        match &mut self.kernel {
            Some(kernel) => kernel.get_elements(set, keys),
            None => Ok(Vec::new()),
        }
    }

    fn byte_limit(&self) -> usize {
        usize::MAX
    }

    fn foreign_changes(&mut self) -> Option<u64> {
        None
    }
}

/// The elements that Services become on an empty host, in the words of `nft -f`.
pub fn render(desired: &Desired, settings: &Settings) -> Result<String, SyncError> {
    written(None, desired, settings)
}

/// The changes that a sync would make, in the words of `nft -f`. Empty if there are none.
pub fn differences(
    kernel: &mut dyn Kernel,
    desired: &Desired,
    settings: &Settings,
) -> Result<String, SyncError> {
    written(Some(kernel), desired, settings)
}

fn written(
    kernel: Option<&mut dyn Kernel>,
    desired: &Desired,
    settings: &Settings,
) -> Result<String, SyncError> {
    let mut dry_run = DryRun {
        kernel,
        changes: Vec::new(),
    };
    // Options are not looked for in what is there: a table keeps its own.
    let structure = dry_run.structure().map_err(SyncError::unreadable)?;
    let options = structure.as_ref().map(TableOptions::of).unwrap_or_default();
    let mut backend = Nftables::with_options(dry_run, options);
    backend.leave_spare_chains();
    backend.sync(desired, settings, Scope::Full)?;
    let changes = std::mem::take(&mut backend.kernel().changes);
    let sets = Program::of(settings, options).sets;
    Ok(text(&changes, settings.family, &sets))
}
