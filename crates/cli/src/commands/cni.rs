//! `weft cni`: installs the CNI plugin and its configuration on a node.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use weft_cni::{DEFAULT_QUEUE, DEFAULT_SOCKET, PLUGIN, SpecVersion};

use weft_program::{SharedArguments, config::LogOnly, output, signals};

mod bridge;
mod config_file;
mod conflist;
mod elf;
mod installer;
mod place;
mod upkeep;
mod version;

use config_file::ConfigFile;
use conflist::MainPlugin;
use installer::Installer;
use place::Placed;
use upkeep::Upkeep;

const AFTER_HELP: &str = "\
The configuration is written only when the address daemon is ready: a node without it is NotReady, so
no pod is scheduled to a node that could not give it an address. It is a link to a file next to the
daemon's socket, in memory, so that it is gone after a reboot. Container runtimes use the first file
of the directory in alphabetical order.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct CniArguments {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Debug, Subcommand)]
enum Tool {
    /// Install the plugin, and its configuration once the address daemon is ready
    Install(Box<InstallArguments>),
    /// Remove the configuration and the plugin
    Uninstall(UninstallArguments),
}

/// Paths on the node.
#[derive(Clone, Debug, Args)]
struct Places {
    /// Directory of CNI plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin", value_parser = absolute)]
    bin_dir: PathBuf,
    /// Directory of CNI configurations
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d", value_parser = absolute)]
    conf_dir: PathBuf,
    /// File name of the configuration
    #[arg(long, value_name = "NAME", default_value = "10-weft.conflist", value_parser = conf_name)]
    conf_name: String,
    /// Directory at which the node's root is mounted in a container; paths in the configuration are
    /// those of the node
    #[arg(long, value_name = "DIR", default_value = "/", value_parser = absolute)]
    root_dir: PathBuf,
}

#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
struct InstallArguments {
    #[command(flatten)]
    places: Places,
    /// Plugin to install [default: weft-cni in the directory of this program]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Name of the network in the configuration
    #[arg(long, value_name = "NAME", default_value = "weft", value_parser = network_name)]
    network_name: String,
    /// CNI plugin that creates the interfaces
    ///
    /// A bridge has one gateway for each family, so it serves one subnet; ptp serves any number.
    #[arg(long, value_name = "PLUGIN", default_value = "ptp")]
    main_plugin: MainPlugin,
    /// Name of the bridge
    #[arg(long, value_name = "INTERFACE", default_value = "weft0", value_parser = interface_name)]
    bridge: String,
    /// Masquerade packets that leave the node (ipMasq)
    #[arg(long)]
    ip_masq: bool,
    /// MTU of pod interfaces [default: the kernel's]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1280..))]
    mtu: Option<u16>,
    /// Leave the plugin portmap out; hostPort does not work without it
    #[arg(long)]
    no_portmap: bool,
    /// CNI version of the configuration [default: 1.1.0 if the plugins and the container runtime
    /// know it, otherwise 1.0.0]
    ///
    /// Plugins older than 1.6, such as Debian's, and containerd before 2.0 do not know 1.1.0.
    #[arg(long, value_name = "VERSION", value_parser = spec_version)]
    cni_version: Option<SpecVersion>,
    /// Unix socket of the address daemon
    #[arg(long, value_name = "FILE", default_value = DEFAULT_SOCKET, value_parser = absolute)]
    socket: PathBuf,
    /// Directory in which the plugin queues releases while the daemon is not running
    #[arg(long, value_name = "DIR", default_value = DEFAULT_QUEUE, value_parser = absolute)]
    queue: PathBuf,
    /// File to which the plugin appends a line for each call
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    plugin_log: Option<PathBuf>,
    /// Seconds to wait for the address daemon to be ready
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    wait: u32,
    /// Write the configuration itself into --conf-dir instead of a link to a file in memory
    ///
    /// For programs that read the directory inside of a container. The file survives a reboot:
    /// with a CNI version before 1.1.0 the node is Ready then before the address daemon can serve.
    #[arg(long)]
    persistent: bool,
    /// Print the configuration and change nothing
    #[arg(long)]
    print: bool,
    /// Keep running until SIGTERM, as a container of a DaemonSet has to, and repair the plugin, the
    /// configuration and the bridge within seconds when they are removed or changed
    #[arg(long, conflicts_with = "print")]
    stay: bool,
}

#[derive(Debug, Args)]
struct UninstallArguments {
    #[command(flatten)]
    places: Places,
    /// Keep the plugin: runtimes call it to delete pods that still run
    #[arg(long)]
    keep_binary: bool,
}

pub(crate) fn run(arguments: &CniArguments, shared: SharedArguments) -> anyhow::Result<()> {
    match &arguments.tool {
        Tool::Install(arguments) if arguments.stay => stay(arguments, shared),
        Tool::Install(arguments) => install(arguments),
        Tool::Uninstall(arguments) => uninstall(arguments),
    }
}

/// Installs, and then repairs what was installed until the signal that ends a container. What was
/// installed stays: pods need it while this program is being replaced.
fn stay(arguments: &InstallArguments, shared: SharedArguments) -> anyhow::Result<()> {
    let log = shared.start_logging::<LogOnly>()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let stop = {
        let _inside = runtime.enter();
        signals::listen(log)?
    };
    let arguments = arguments.clone();
    let staying = runtime.block_on(async {
        let installing = tokio::task::spawn_blocking(move || {
            let mut installer = Installer::new(&arguments)?;
            output::text(&installer.install()?)?;
            Upkeep::new(installer).run()
        });
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            ended = installing => ended.context("cannot install the plugin")?,
        }
    });
    // It may still be waiting for the daemon, or between two looks; files appear whole.
    runtime.shutdown_background();
    staying
}

fn install(arguments: &InstallArguments) -> anyhow::Result<()> {
    if arguments.print {
        return output::json(&Installer::preview(arguments));
    }
    output::text(&Installer::new(arguments)?.install()?)
}

fn uninstall(arguments: &UninstallArguments) -> anyhow::Result<()> {
    let places = &arguments.places;
    let config = ConfigFile::plain(places);
    config.check_ours()?;
    // In this order: without the configuration no runtime calls the plugin.
    let mut text = report(config.path(), config.remove()?);
    if !arguments.keep_binary {
        let program = places.program();
        text += &report(&program, place::remove(&program)?);
    }
    output::text(&text)
}

fn report(path: &Path, placed: Placed) -> String {
    format!("{}: {placed}\n", path.display())
}

impl Places {
    /// The path at which a path of the node is mounted here.
    fn on_node(&self, path: &Path) -> PathBuf {
        self.root_dir.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn conf_file(&self) -> PathBuf {
        self.on_node(&self.conf_dir).join(&self.conf_name)
    }

    fn program(&self) -> PathBuf {
        self.on_node(&self.bin_dir).join(PLUGIN)
    }
}

fn absolute(text: &str) -> Result<PathBuf, &'static str> {
    let path = PathBuf::from(text);
    let has_detour = path.components().any(|part| part.as_os_str() == "..");
    if path.is_absolute() && !has_detour {
        Ok(path)
    } else {
        Err("it has to be an absolute path without ..")
    }
}

fn network_name(text: &str) -> Result<String, &'static str> {
    let valid = weft_cni::is_identifier(text).then(|| text.to_owned());
    valid.ok_or("letters, digits, and then also . _ -")
}

fn interface_name(text: &str) -> Result<String, &'static str> {
    let valid = weft_cni::is_interface(text).then(|| text.to_owned());
    valid.ok_or("no kernel has an interface of that name")
}

fn conf_name(text: &str) -> Result<String, &'static str> {
    let is_valid = weft_cni::is_identifier(text) && text.ends_with(".conflist");
    is_valid
        .then(|| text.to_owned())
        .ok_or("a file name that ends in .conflist, with letters, digits, . _ -")
}

fn spec_version(text: &str) -> Result<SpecVersion, &'static str> {
    SpecVersion::parse(text).ok_or("0.3.0, 0.3.1, 0.4.0, 1.0.0 or 1.1.0")
}
