//! `weft-lab apiserver`: the embedded API server as a process.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use weft_apiserver::{AuthorizationMode, RunConfig};

use weft_program::{SharedArguments, config::Layers, logging, signals};

use crate::config::{ApiserverConfig, ApiserverLayer, Authorization, LabLayer};

const AFTER_HELP: &str = "\
It answers as kube-apiserver 1.36 does, from memory: for playgrounds, tests and simulation, not for
production. By default it listens on loopback and every client may do everything.";

/// Time for threads that still work on requests after the server has stopped.
const LAST_MOMENT: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ApiserverArguments {
    #[command(flatten)]
    flags: ApiserverLayer,
}

pub(crate) fn run(arguments: ApiserverArguments, shared: SharedArguments) -> anyhow::Result<()> {
    let flags = LabLayer {
        log: shared.log,
        apiserver: arguments.flags,
    };
    let layers = Layers::load(shared.config, flags)?;
    let log = logging::start(&layers.log());
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    let outcome = runtime.block_on(async {
        let shutdown = signals::listen(log)?;
        let server = weft_apiserver::run(ApiserverConfig::resolve(&layers).into(), shutdown);
        server.await.context("cannot run the API server")
    });
    // A request that is still worked on does not keep the process: it had its time while draining.
    runtime.shutdown_timeout(LAST_MOMENT);
    outcome
}

impl From<ApiserverConfig> for RunConfig {
    fn from(config: ApiserverConfig) -> Self {
        Self {
            kubeconfig: config.kubeconfig.value,
            service_ranges: config.service_cluster_ip_range.value.0,
            token_file: config.token_auth_file.value,
            service_account_signing_key_file: config.service_account_signing_key_file.value,
            service_account_issuer: config.service_account_issuer.value,
            allow_unauthenticated_remote: config.allow_unauthenticated_remote.value,
            data_dir: config.data_dir.value,
            salvage_data_dir: config.salvage_data_dir.value,
            unix_socket: config.unix_socket.value,
            authorization_mode: config.authorization_mode.value.into(),
            fault_endpoint: config.fault_endpoint.value,
            seed: config.seed.value,
            ..Self::new(config.bind.value)
        }
    }
}

impl From<Authorization> for AuthorizationMode {
    fn from(mode: Authorization) -> Self {
        match mode {
            Authorization::AlwaysAllow => Self::AlwaysAllow,
            Authorization::Rbac => Self::Rbac,
        }
    }
}
