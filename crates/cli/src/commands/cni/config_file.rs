//! The configuration's place on a node, at which container runtimes look for it.
//!
//! By default the file itself is in memory, next to the daemon's socket, and a link leads to it: after
//! a reboot the link leads nowhere, so the node is not Ready before the daemon can serve.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use serde_json::Value;
use weft_cni::PLUGIN;

use super::{
    Places,
    place::{self, Placed},
};

/// The configuration of a node.
#[derive(Debug)]
pub(super) struct ConfigFile {
    places: Places,
    path: PathBuf,
    /// Path on the node of the file in memory; none for a plain file.
    in_memory: Option<PathBuf>,
}

/// Result of comparing the configuration with the one that should be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Exactly that one.
    Same,
    /// The same plugins, and others that another program has added.
    Extended,
    /// Nothing that a runtime could read.
    Absent,
    /// A configuration that does not name our plugin.
    Foreign,
    /// A configuration of ours that was changed, or damage.
    Changed,
}

impl ConfigFile {
    /// The configuration as a plain file.
    pub(super) fn plain(places: &Places) -> Self {
        Self {
            path: places.conf_file(),
            places: places.clone(),
            in_memory: None,
        }
    }

    /// The configuration as a link to a file in the directory of this socket.
    pub(super) fn in_memory(places: &Places, socket: &Path) -> Self {
        let directory = socket.parent().unwrap_or(Path::new("/"));
        Self {
            in_memory: Some(directory.join(&places.conf_name)),
            ..Self::plain(places)
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file that a runtime reads, as it is mounted here.
    fn target(&self) -> PathBuf {
        match fs::read_link(&self.path) {
            Ok(target) if target.is_absolute() => self.places.on_node(&target),
            Ok(target) => self.path.with_file_name(target),
            Err(_) => self.path.clone(),
        }
    }

    /// None if a runtime would find nothing.
    fn read(&self) -> anyhow::Result<Option<Vec<u8>>> {
        match fs::read(self.target()) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                Err(error).with_context(|| format!("cannot read {}", self.path.display()))
            }
        }
    }

    /// Compares what is there with what should be.
    pub(super) fn compare(&self, content: &[u8]) -> anyhow::Result<Found> {
        let Some(text) = self.read()? else {
            return Ok(Found::Absent);
        };
        if text == content {
            return Ok(Found::Same);
        }
        let Ok(found) = serde_json::from_slice::<Value>(&text) else {
            return Ok(Found::Changed);
        };
        if !names_our_plugin(&found) {
            return Ok(Found::Foreign);
        }
        let wanted: Value = serde_json::from_slice(content).unwrap_or_default();
        Ok(if extends(&found, &wanted) {
            Found::Extended
        } else {
            Found::Changed
        })
    }

    /// Refuses a configuration that names other plugins only: it belongs to another installation.
    pub(super) fn check_ours(&self) -> anyhow::Result<()> {
        let Some(text) = self.read()? else {
            return Ok(());
        };
        let config: Value = serde_json::from_slice(&text).unwrap_or_default();
        if !names_our_plugin(&config) {
            let path = self.path.display();
            bail!("{path} is not ours: it does not name {PLUGIN}");
        }
        Ok(())
    }

    /// Writes the configuration. Runtimes watch its directory, so a link is made again whenever the
    /// file that it leads to has changed.
    pub(super) fn write(&self, content: &[u8]) -> anyhow::Result<Placed> {
        let Some(target) = &self.in_memory else {
            return place::write(&self.path, content, 0o644);
        };
        let placed = place::write(&self.places.on_node(target), content, 0o644)?;
        let leads_there = fs::read_link(&self.path).is_ok_and(|found| found == *target);
        if placed == Placed::Unchanged && leads_there {
            return Ok(Placed::Unchanged);
        }
        place::replace(&self.path, |unfinished| symlink(target, unfinished))?;
        Ok(Placed::Written)
    }

    /// Removes the configuration, and the file that a link leads to.
    pub(super) fn remove(&self) -> anyhow::Result<Placed> {
        let target = self.target();
        let placed = place::remove(&self.path)?;
        if target != self.path {
            place::remove(&target)?;
        }
        Ok(placed)
    }

    /// Removes a configuration that was written before this boot: the daemon may not serve yet, and
    /// with the configuration the node would be Ready.
    pub(super) fn remove_stale(&self) -> anyhow::Result<Placed> {
        let changed = fs::metadata(self.target()).and_then(|data| data.modified());
        match (changed, boot_time()) {
            (Ok(changed), Some(boot)) if changed < boot => self.remove(),
            _ => Ok(Placed::Unchanged),
        }
    }
}

/// The time at which this machine was started; none if the kernel does not say.
fn boot_time() -> Option<SystemTime> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(line.trim().parse().ok()?))
}

fn plugins(config: &Value) -> &[Value] {
    config["plugins"].as_array().map_or(&[], Vec::as_slice)
}

fn names_our_plugin(config: &Value) -> bool {
    let mut plugins = plugins(config).iter();
    plugins.any(|plugin| plugin["ipam"]["type"] == PLUGIN)
}

/// True if a configuration is another one with plugins in addition.
fn extends(found: &Value, wanted: &Value) -> bool {
    let same = |field: &str| found[field] == wanted[field];
    let mut there = plugins(found).iter();
    let mut needed = plugins(wanted).iter();
    same("name") && same("cniVersion") && needed.all(|plugin| there.any(|found| found == plugin))
}
