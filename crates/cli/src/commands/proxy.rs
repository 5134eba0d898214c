//! `weft proxy`: kube-proxy's iptables mode, with its flags and its configuration file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{ArgAction, Args, ValueEnum};
use tracing::{info, warn};
use weft_host::iptables::VariantChoice;
use weft_proxy_agent::{
    config_file::ConfigFile,
    process::{self, ProxyProcess},
};

use super::manager::ControlFlags;
use weft_program::{
    SharedArguments,
    config::{ConfigError, Layer as _, Layers, LogOnly},
    logging::{self, LogFilter},
    output, signals,
};

mod flags;
mod resolve;
mod table;
mod tool;

use flags::GivenFlags;
pub(crate) use resolve::Resolved;
pub(crate) use table::TableFlags;
use tool::Tool;

const AFTER_HELP: &str = "\
Flags and file are those of kube-proxy. With --config, configuration flags are ignored as in
kube-proxy, except --hostname-override and those of logging. When the file changes, the program exits
with code 1, to be restarted with the new file.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ProxyArguments {
    /// Configuration file: a KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1)
    // The same name as the global option, in whose place it stands.
    #[arg(id = "config", long = "config", value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) flags: GivenFlags,
    /// URL of the API server; overrides the kubeconfig
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// Variant of the iptables programs; auto: that of the kubelet's hint chain, else the host's default
    #[arg(long, value_name = "VARIANT", default_value = "auto")]
    iptables_variant: IptablesVariant,
    #[command(flatten)]
    table: TableFlags,
    /// Write the effective configuration to this file and exit
    #[arg(long, value_name = "FILE")]
    write_config_to: Option<PathBuf>,
    /// Remove all rules of a service proxy from the kernel, and exit
    #[arg(
        long,
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true",
        hide_possible_values = true,
        hide_default_value = true,
        value_name = "BOOLEAN"
    )]
    cleanup: bool,
    /// Load modules, set sysctls and exit; afterwards CAP_NET_ADMIN (and CAP_NET_RAW for legacy
    /// iptables) is enough
    #[arg(
        long,
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true",
        hide_possible_values = true,
        hide_default_value = true,
        value_name = "BOOLEAN"
    )]
    init_only: bool,
    /// Print the version and exit
    #[arg(
        long,
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true",
        hide_possible_values = true,
        hide_default_value = true,
        value_name = "BOOLEAN"
    )]
    version: VersionRequest,
    #[command(flatten)]
    control: ControlFlags,
    #[command(subcommand)]
    tool: Option<Tool>,
    #[arg(long, hide = true)]
    pub(crate) healthz_port: Option<u16>,
    #[arg(long, hide = true)]
    pub(crate) metrics_port: Option<u16>,
}

/// The variant of the iptables programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IptablesVariant {
    Auto,
    Legacy,
    Nft,
}

/// As Go's programs have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum VersionRequest {
    False,
    True,
    Raw,
}

/// The action that the flags choose.
#[derive(Debug)]
enum Action {
    WriteConfig(PathBuf),
    Cleanup,
    InitOnly,
    Run,
}

pub(crate) fn run(arguments: &ProxyArguments, shared: SharedArguments) -> anyhow::Result<()> {
    match arguments.version {
        VersionRequest::False => {}
        VersionRequest::True | VersionRequest::Raw => {
            return output::text(&super::build().to_string());
        }
    }
    let file = arguments.file.as_deref().map(read).transpose()?;
    let text = file.as_ref().map(|(_, text)| text.as_str());
    let resolved = Resolved::new(arguments, text)?;
    let own = Layers::load(None, LogOnly::of_log(shared.log))?;
    let log = logging::start(&resolved.logging(own.log()));
    for warning in &resolved.warnings {
        warn!("{warning}");
    }
    if let Some(tool) = &arguments.tool {
        return tool.run(&resolved, arguments);
    }
    match Action::of(arguments) {
        Action::WriteConfig(path) => write_config(&path, &resolved),
        action => program(
            &action,
            arguments,
            resolved,
            file.map(|(file, _)| file),
            log,
        ),
    }
}

pub(crate) fn read(path: &Path) -> Result<(ConfigFile, String), ConfigError> {
    ConfigFile::read(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })
}

impl Action {
    /// The first of several, in kube-proxy's order.
    fn of(arguments: &ProxyArguments) -> Self {
        match arguments {
            ProxyArguments {
                write_config_to: Some(path),
                ..
            } => Self::WriteConfig(path.clone()),
            ProxyArguments { cleanup: true, .. } => Self::Cleanup,
            ProxyArguments {
                init_only: true, ..
            } => Self::InitOnly,
            _ => Self::Run,
        }
    }
}

fn write_config(path: &Path, resolved: &Resolved) -> anyhow::Result<()> {
    fs::write(path, resolved.configuration.to_yaml())
        .with_context(|| format!("cannot write the configuration to {}", path.display()))?;
    info!(file = %path.display(), "wrote the configuration");
    Ok(())
}

/// Everything that takes a kernel.
fn program(
    action: &Action,
    arguments: &ProxyArguments,
    resolved: Resolved,
    file: Option<ConfigFile>,
    log: LogFilter,
) -> anyhow::Result<()> {
    let variant = arguments.iptables_variant.into();
    match action {
        Action::Cleanup => process::cleanup(variant).map_err(anyhow::Error::from_boxed),
        Action::InitOnly => {
            process::initialize(&resolved.config, variant).map_err(anyhow::Error::from_boxed)
        }
        Action::WriteConfig(_) | Action::Run => {
            let process = ProxyProcess {
                setup: resolved.setup(variant, arguments.table.into()),
                master: arguments.master.clone(),
                file,
                control: arguments.control.control_socket.clone(),
                version: super::build().to_string(),
            };
            signals::serve(log, |shutdown| process.run(shutdown))
        }
    }
}

impl From<IptablesVariant> for VariantChoice {
    fn from(variant: IptablesVariant) -> Self {
        match variant {
            IptablesVariant::Auto => Self::Auto,
            IptablesVariant::Legacy => Self::Legacy,
            IptablesVariant::Nft => Self::Nft,
        }
    }
}
