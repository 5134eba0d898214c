//! Puts plugin, bridge and configuration in place once the address daemon can serve.

use std::{
    env, fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use weft_cni::{PLUGIN, SpecVersion};
use weft_cns::{IpSubnet, Serving, StatusResponse};
use weft_host::{Errno, NetlinkError};

use super::{
    InstallArguments,
    bridge::Bridge,
    config_file::ConfigFile,
    conflist::{self, Conflist, MainPlugin},
    elf,
    place::{self, Fingerprint, Placed},
    report, version,
};

/// Time for the daemon to answer.
const ANSWER: Duration = Duration::from_secs(2);

/// An installation on one node.
pub(super) struct Installer {
    arguments: InstallArguments,
    binary: PathBuf,
    pub(super) config: ConfigFile,
    /// The bridge, where pods are behind one.
    bridge: Option<Bridge>,
    version: Option<KnownVersion>,
}

/// A version and what it was chosen for.
struct KnownVersion {
    plugins: Vec<Fingerprint>,
    runtime: String,
    version: SpecVersion,
}

impl Installer {
    pub(super) fn new(arguments: &InstallArguments) -> anyhow::Result<Self> {
        let places = &arguments.places;
        let config = if arguments.persistent {
            ConfigFile::plain(places)
        } else {
            ConfigFile::in_memory(places, &arguments.socket)
        };
        let mut this = Self::bare(arguments, config);
        this.binary = find_binary(arguments)?;
        Ok(this)
    }

    fn bare(arguments: &InstallArguments, config: ConfigFile) -> Self {
        let bridge = || Bridge::new(&arguments.bridge, arguments.mtu);
        Self {
            binary: PathBuf::new(),
            config,
            bridge: (arguments.main_plugin == MainPlugin::Bridge).then(bridge),
            version: None,
            arguments: arguments.clone(),
        }
    }

    /// The configuration that would be written now.
    pub(super) fn preview(arguments: &InstallArguments) -> Conflist {
        let mut this = Self::bare(arguments, ConfigFile::plain(&arguments.places));
        let runtime = this.status(0).map(|status| status.container_runtime);
        let version = this.version(&runtime.unwrap_or_default());
        this.conflist(version)
    }

    /// Installs, and returns a line for each file.
    pub(super) fn install(&mut self) -> anyhow::Result<String> {
        let directory = self.plugin_directory();
        for plugin in self.conflist(SpecVersion::V1_0_0).others() {
            if !directory.join(plugin).is_file() {
                bail!(
                    "{plugin} is not in {}: install the CNI project's plugins first",
                    directory.display()
                );
            }
        }
        self.config.check_ours()?;
        let (mut text, mut notes) = (String::new(), Vec::new());
        let removed = self.config.remove_stale()?;
        if removed == Placed::Removed {
            tracing::info!(file = %self.config.path().display(), "CNI configuration from before this boot removed");
        }
        let status = self.wait_until_ready()?;
        let (placed, loader) = self.write_program()?;
        text += &report(&self.program(), placed);
        // Before the configuration: with it, the next ADD may come at any moment.
        match self.ensure_bridge(&status.gateways) {
            // The plugin has the runtime's privileges.
            Err(error) if is_forbidden(&error) => {
                notes.push(format!("{error:#}; the plugin bridge creates it"));
            }
            other => drop(other?),
        }
        let content = self.content(&status)?;
        text += &report(self.config.path(), self.config.write(&content)?);
        if let Some(loader) = loader {
            notes.push(format!(
                "{PLUGIN} is dynamically linked: it runs only on nodes that have {loader} and the \
                 C library it was built with"
            ));
        }
        if let Some(first) = place::sorts_before(self.config.path())? {
            notes.push(format!("runtimes use {} instead", first.display()));
        }
        text.extend(notes.into_iter().map(|note| format!("note: {note}\n")));
        Ok(text)
    }

    pub(super) fn program(&self) -> PathBuf {
        self.arguments.places.program()
    }

    /// Puts the plugin in its place. Also returns the loader that a dynamically linked one needs.
    pub(super) fn write_program(&self) -> anyhow::Result<(Placed, Option<String>)> {
        let from = &self.binary;
        let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        let placed = place::write(&self.program(), &content, 0o755)?;
        Ok((placed, elf::interpreter(&content)))
    }

    /// Creates or corrects the bridge; returns what was changed.
    pub(super) fn ensure_bridge(&mut self, gateways: &[IpSubnet]) -> anyhow::Result<Vec<String>> {
        match &mut self.bridge {
            Some(bridge) => bridge.ensure(gateways),
            None => Ok(Vec::new()),
        }
    }

    /// The configuration for this state of the daemon.
    pub(super) fn content(&mut self, status: &StatusResponse) -> anyhow::Result<Vec<u8>> {
        let version = self.version(&status.container_runtime);
        self.conflist(version).to_text()
    }

    /// The daemon's state; none if it does not answer. Reports the number of repairs to it.
    pub(super) fn status(&self, repairs: u64) -> Option<StatusResponse> {
        weft_cni::status_for_installer(&self.socket(), ANSWER, repairs).ok()
    }

    /// Asks the daemon until it can serve or the time is over.
    fn wait_until_ready(&self) -> anyhow::Result<StatusResponse> {
        const PAUSE: Duration = Duration::from_millis(250);
        let socket = self.socket();
        let patience = Duration::from_secs(self.arguments.wait.into());
        let begun = Instant::now();
        loop {
            let reason = match weft_cni::status(&socket, ANSWER) {
                Ok(status) if status.serving == Serving::Ready => return Ok(status),
                Ok(status) => anyhow::anyhow!("it says: {}", status.reason),
                Err(error) => error.into(),
            };
            if begun.elapsed() >= patience {
                let what = format!("the address daemon at {} is not ready", socket.display());
                return Err(reason.context(what));
            }
            thread::sleep(PAUSE);
        }
    }

    fn socket(&self) -> PathBuf {
        self.arguments.places.on_node(&self.arguments.socket)
    }

    fn plugin_directory(&self) -> PathBuf {
        let places = &self.arguments.places;
        places.on_node(&places.bin_dir)
    }

    /// The version of the configuration. Plugins are asked again when one of them was replaced.
    fn version(&mut self, runtime: &str) -> SpecVersion {
        if let Some(version) = self.arguments.cni_version {
            return version;
        }
        let directory = self.plugin_directory();
        let others: Vec<&str> = self.conflist(SpecVersion::V1_0_0).others().collect();
        let prints = others.iter().map(|plugin| directory.join(plugin));
        let plugins: Vec<Fingerprint> = prints.map(|path| place::fingerprint(&path)).collect();
        if let Some(known) = &self.version
            && known.plugins == plugins
            && known.runtime == runtime
        {
            return known.version;
        }
        let version = version::choose(&directory, others.into_iter(), runtime);
        self.version = Some(KnownVersion {
            plugins,
            runtime: runtime.to_owned(),
            version,
        });
        version
    }

    fn conflist(&self, version: SpecVersion) -> Conflist {
        let arguments = &self.arguments;
        let main = conflist::Main {
            plugin: arguments.main_plugin,
            bridge: &arguments.bridge,
            ip_masq: arguments.ip_masq,
            mtu: arguments.mtu,
        };
        let log = arguments.plugin_log.as_deref();
        let ipam = conflist::Ipam::new(&arguments.socket, &arguments.queue, log);
        Conflist::new(
            version,
            &arguments.network_name,
            &main,
            ipam,
            !arguments.no_portmap,
        )
    }
}

/// True for an error that is due to missing privileges.
pub(super) fn is_forbidden(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<NetlinkError>();
    cause.and_then(NetlinkError::errno) == Some(Errno::PERM)
}

fn find_binary(arguments: &InstallArguments) -> anyhow::Result<PathBuf> {
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => env::current_exe()
            .context("cannot find this program")?
            .with_file_name(PLUGIN),
    };
    if !binary.is_file() {
        bail!(
            "{} is not there; --binary says where it is",
            binary.display()
        );
    }
    Ok(binary)
}
