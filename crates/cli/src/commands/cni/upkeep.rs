//! Repairs of what was installed, for as long as the installer stays.

use std::{thread, time::Duration};

use weft_cns::{Serving, StatusResponse};

use super::{
    config_file::Found,
    installer::{Installer, is_forbidden},
    place::{self, Fingerprint, Placed},
};

/// Interval between looks. An ADD that fails meanwhile is retried by the kubelet.
const INTERVAL: Duration = Duration::from_secs(2);

/// An installation that is looked at again and again.
pub(super) struct Upkeep {
    installer: Installer,
    /// The plugin as it was when its content was found right.
    program: Fingerprint,
    /// The configuration as it was written last.
    written: Option<Vec<u8>>,
    /// Number of repairs since the start.
    repairs: u64,
    /// The problem that was logged last: each is logged once while it lasts.
    problem: Option<String>,
}

impl Upkeep {
    pub(super) fn new(installer: Installer) -> Self {
        Self {
            installer,
            program: None,
            written: None,
            repairs: 0,
            problem: None,
        }
    }

    /// Runs until the process ends.
    pub(super) fn run(mut self) -> anyhow::Result<()> {
        loop {
            thread::sleep(INTERVAL);
            let problem = self.look().err().map(|error| format!("{error:#}"));
            if let Some(problem) = &problem
                && self.problem.as_ref() != Some(problem)
            {
                tracing::error!(problem, "cannot keep the CNI installation in place");
            }
            self.problem = problem;
        }
    }

    fn look(&mut self) -> anyhow::Result<()> {
        self.look_at_program()?;
        let status = self.installer.status(self.repairs);
        self.look_at_bridge(status.as_ref())?;
        match status {
            // A daemon that restarts leaves the configuration in place, and pods wait.
            Some(status) if status.serving == Serving::Ready => self.look_at_config(&status),
            _ => Ok(()),
        }
    }

    fn look_at_program(&mut self) -> anyhow::Result<()> {
        let path = self.installer.program();
        let seen = place::fingerprint(&path);
        if seen.is_some() && seen == self.program {
            return Ok(());
        }
        let (placed, _) = self.installer.write_program()?;
        // What was written is compared at the next look, in case it was changed at once.
        self.program = seen.filter(|_| placed == Placed::Unchanged);
        if placed == Placed::Written {
            self.repairs += 1;
            let repairs = self.repairs;
            tracing::warn!(file = %path.display(), repairs, "CNI plugin repaired");
        }
        Ok(())
    }

    fn look_at_bridge(&mut self, status: Option<&StatusResponse>) -> anyhow::Result<()> {
        let gateways = status.map_or(&[][..], |status| &status.gateways);
        match self.installer.ensure_bridge(gateways) {
            Ok(changes) => {
                for change in changes {
                    self.repairs += 1;
                    let repairs = self.repairs;
                    tracing::warn!(change, repairs, "bridge corrected");
                }
                Ok(())
            }
            // Said at the installation; the plugin makes the bridge then.
            Err(error) if is_forbidden(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn look_at_config(&mut self, status: &StatusResponse) -> anyhow::Result<()> {
        let content = self.installer.content(status)?;
        let file = &self.installer.config;
        let path = file.path().display().to_string();
        match file.compare(&content)? {
            Found::Same | Found::Extended => {}
            Found::Foreign => {
                anyhow::bail!("{path} belongs to another installation and is left alone")
            }
            Found::Absent | Found::Changed => {
                file.write(&content)?;
                let updated = self.written.as_ref().is_some_and(|old| *old != content);
                if updated {
                    tracing::info!(file = path, "CNI configuration updated");
                } else {
                    self.repairs += 1;
                    let repairs = self.repairs;
                    tracing::warn!(file = path, repairs, "CNI configuration repaired");
                }
            }
        }
        self.written = Some(content);
        Ok(())
    }
}
