//! The kernel behind the host's iptables programs.

use std::time::Duration;

use weft_host::iptables::Iptables as Programs;

use crate::kernel::{Fingerprint, Kernel, KernelError};

/// Reads and writes through the iptables programs of one family and variant.
#[derive(Debug)]
pub struct HostKernel {
    programs: Programs,
    spent: Duration,
}

impl HostKernel {
    /// Through these programs.
    pub fn new(programs: Programs) -> Self {
        Self {
            programs,
            spent: Duration::ZERO,
        }
    }
}

impl Kernel for HostKernel {
    fn save(&mut self, line: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
        let saved = self.programs.save_lines(None, line);
        self.spent += saved.map_err(|error| KernelError(error.to_string()))?.cpu;
        Ok(())
    }

    fn restore(&mut self, input: &str) -> Result<(), KernelError> {
        let restored = self.programs.restore(input.as_bytes());
        self.spent += restored
            .map_err(|error| KernelError(error.to_string()))?
            .cpu;
        Ok(())
    }

    fn fingerprint(&mut self) -> Option<Fingerprint> {
        None
    }

    fn take_spent(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
    }
}
