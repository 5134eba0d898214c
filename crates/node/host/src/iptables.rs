//! The iptables programs of one address family.
//!
//! Linux has two implementations with the same commands, [`Variant::Legacy`] and [`Variant::Nft`],
//! and a rule set for each. All components on a node must use the same one, so [`Iptables::detect`]
//! looks for the chains of the kubelet before it uses the default.

use std::{ffi::OsString, path::Path, time::Duration};

use weft_model::IpFamily;

use crate::command::{CommandError, Finished, Invocation, Lines, Spent};

mod detection;
mod presence;
mod programs;
mod restore;
mod version;

pub use detection::{DetectError, VariantChoice};
pub use presence::Absence;
pub use programs::{Programs, SearchPath};
pub use restore::RestoreError;
pub use version::{Variant, Version};

/// Time limits of iptables programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Wait for the xtables lock, in whole seconds (`-w`); rounded up.
    pub lock: Duration,
    /// Run time of a program, after which it is killed.
    pub program: Duration,
}

impl Default for Limits {
    /// Five seconds for the lock, as in kube-proxy, and five minutes for a program.
    fn default() -> Self {
        Self {
            lock: Duration::from_secs(5),
            program: Duration::from_mins(5),
        }
    }
}

/// The programs of one family and one variant.
#[derive(Clone, Debug)]
pub struct Iptables {
    family: IpFamily,
    variant: Variant,
    version: Version,
    programs: Programs,
    limits: Limits,
}

impl Iptables {
    /// The family whose rules these programs read and write.
    pub fn family(&self) -> IpFamily {
        self.family
    }

    /// The implementation of the programs.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// The version that the programs report.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Paths of the programs.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The same programs with other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Returns whether `MASQUERADE` supports `--random-fully` (iptables 1.6.2).
    pub fn supports_random_fully(&self) -> bool {
        self.version >= Version::new(1, 6, 2)
    }

    /// Passes on the lines of `iptables-save`, for one table or for all that exist, and returns the
    /// cost. A table that was never used has no lines. Takes no lock.
    ///
    /// Lines are passed on while the program writes, since the whole text can have tens of
    /// megabytes. After an error they must not be used.
    pub fn save_lines(
        &self,
        table: Option<&str>,
        each: &mut dyn FnMut(&str),
    ) -> Result<Spent, CommandError> {
        let arguments: &[&str] = match table {
            Some(table) => &["-t", table],
            None => &[],
        };
        let environment = programs::environment();
        let save = self.invocation(&self.programs.save, arguments, &environment, b"");
        // Only comments can hold bytes that are not UTF-8, and such a rule is not one of ours.
        let mut lines = Lines::default();
        let spent = save.stream(&mut |block| lines.block(block, each))?;
        lines.finish(each);
        Ok(spent)
    }

    /// Runs `iptables-restore --noflush`: chains that the input does not name stay as they are.
    ///
    /// Each table of the input is committed by itself, in order: after an error the tables before
    /// the failing one are already written.
    pub fn restore(&self, input: &[u8]) -> Result<Spent, RestoreError> {
        let wait = self.lock_seconds();
        let mut arguments = vec!["--noflush"];
        // Older versions do not support the flag. They neither wait for a busy lock nor fail.
        if self.version >= Version::new(1, 6, 2) {
            arguments.splice(0..0, ["-w", &wait]);
        }
        let finished = self.run(&self.programs.restore, &arguments, input)?;
        Ok(finished.spent)
    }

    /// Returns whether a chain exists.
    pub fn has_chain(&self, table: &str, chain: &str) -> Result<bool, CommandError> {
        match self.list(table, chain) {
            Ok(_) => Ok(true),
            // Status 1 means "no such chain", with texts that differ between versions; a missing
            // table, privilege or lock has other numbers.
            Err(CommandError::Failed { status, .. }) if status.code() == Some(1) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The rules of one chain, as `iptables-save` prints them after `-A` and the chain's name, and
    /// the cost. A chain that does not exist is an error.
    ///
    /// iptables-nft reads only that chain, however many there are.
    pub fn chain_rules(
        &self,
        table: &str,
        chain: &str,
    ) -> Result<(Vec<String>, Spent), CommandError> {
        let listed = self.list(table, chain)?;
        let text = String::from_utf8_lossy(&listed.output);
        let rules = text.lines().filter_map(|line| {
            let rule = line.strip_prefix("-A ")?.strip_prefix(chain)?;
            // A rule without matches and target is only the chain's name.
            Some(rule.strip_prefix(' ').unwrap_or(rule).to_owned())
        });
        Ok((rules.collect(), listed.spent))
    }

    fn list(&self, table: &str, chain: &str) -> Result<Finished, CommandError> {
        let wait = self.lock_seconds();
        let arguments = ["-w", &wait, "-S", chain, "-t", table];
        self.run(&self.programs.command, &arguments, b"")
    }

    fn lock_seconds(&self) -> String {
        let partial = u64::from(self.limits.lock.subsec_nanos() > 0);
        (self.limits.lock.as_secs() + partial).to_string()
    }

    fn run(
        &self,
        program: &Path,
        arguments: &[&str],
        input: &[u8],
    ) -> Result<Finished, CommandError> {
        self.invocation(program, arguments, &programs::environment(), input)
            .run()
    }

    fn invocation<'a>(
        &self,
        program: &'a Path,
        arguments: &'a [&'a str],
        environment: &'a [(OsString, OsString)],
        input: &'a [u8],
    ) -> Invocation<'a> {
        Invocation {
            program,
            arguments,
            environment,
            input,
            limit: self.limits.program,
        }
    }
}
