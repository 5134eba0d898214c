use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::process::CommandExt as _,
    path::Path,
    process::Command,
};

use anyhow::Context as _;

use crate::{
    peers,
    process::{self, cargo},
    workspace,
};

const PROFILE: &str = "playground";

/// Where Kubernetes usually is.
const USUAL_PORT: u16 = 6443;

/// Builds the program and becomes it: so far that is the embedded API server.
pub(crate) fn run() -> anyhow::Result<()> {
    eprintln!("building weft; the first time takes some minutes");
    process::run(cargo().args([
        "build",
        "--profile",
        PROFILE,
        "--locked",
        "--package",
        "weft",
    ]))?;
    let directory = workspace::target().join("up");
    workspace::create_private(&directory)?;
    let kubeconfig = directory.join("kubeconfig");
    let address = free_address().context("find a free port")?;
    eprintln!("{}", hints(&kubeconfig, address));
    let mut weft = Command::new(workspace::target().join(PROFILE).join("weft"));
    weft.args(["apiserver", "--bind", &address.to_string(), "--kubeconfig"])
        .arg(&kubeconfig);
    // In our place, so that Ctrl-C reaches it and its exit code is ours.
    Err(weft.exec()).context("start weft")
}

/// The usual port if it is free, and any other if not.
fn free_address() -> std::io::Result<SocketAddr> {
    let usual = TcpListener::bind((Ipv4Addr::LOCALHOST, USUAL_PORT));
    usual
        .or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?
        .local_addr()
}

fn hints(kubeconfig: &Path, address: SocketAddr) -> String {
    let kubectl = if process::find("kubectl").is_some() {
        "kubectl".to_owned()
    } else if let Ok(built) = peers::program("kubectl") {
        built.display().to_string()
    } else {
        "kubectl (any of 1.34 or newer; `make peers` builds one)".to_owned()
    };
    format!(
        "\n\
         A Kubernetes API for you to try, in memory and gone with Ctrl-C. In another terminal:\n\
         \n    \
         export KUBECONFIG={}\n    \
         {kubectl} create namespace weft\n    \
         {kubectl} -n weft create configmap loom --from-literal=threads=42\n    \
         {kubectl} -n weft get configmaps --watch\n\
         \n\
         or, without kubectl:\n\
         \n    \
         curl --insecure https://{address}/api/v1/namespaces\n",
        kubeconfig.display(),
    )
}
