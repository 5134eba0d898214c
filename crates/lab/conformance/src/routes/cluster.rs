//! Real API servers on loopback: one for every arm and trace, all on one etcd.
//!
//! All arms write the same condition on nodes of the same names, so on one server they would overwrite
//! each other's. A prefix in etcd separates the servers.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use weft_testkit::free_port;

use super::process::Process;

/// Time limit for a server to become ready. On a busy machine it takes minutes.
const START_LIMIT: Duration = Duration::from_mins(4);
/// Attempts to start a server: on a busy machine it sometimes exits while it waits for etcd.
const STARTS: u32 = 3;

/// The etcd of all servers.
#[derive(Debug)]
pub(super) struct Etcd {
    _process: Process,
    port: u16,
}

impl Etcd {
    pub(super) fn start(peers: &Path, directory: &Path) -> anyhow::Result<Self> {
        let [client_port, peer_port] = [free_port(), free_port()];
        let client = format!("http://127.0.0.1:{client_port}");
        let peer = format!("http://127.0.0.1:{peer_port}");
        let mut command = Command::new(peers.join("etcd"));
        command
            .arg("--name=weft")
            .arg(format!("--data-dir={}", directory.join("etcd").display()))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=weft={peer}"))
            // The data is thrown away with the directory.
            .args(["--unsafe-no-fsync", "--log-level=warn"]);
        Ok(Self {
            _process: Process::start("etcd", directory, &mut command)?,
            port: client_port,
        })
    }
}

/// A kube-apiserver with a directory of its own.
#[derive(Debug)]
pub(super) struct Cluster {
    command: Command,
    home: PathBuf,
    process: Process,
    /// The administrator's kubeconfig.
    pub(super) kubeconfig: PathBuf,
}

impl Cluster {
    /// Starts the process without waiting until it is ready.
    pub(super) fn start(
        name: &str,
        peers: &Path,
        etcd: &Etcd,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let port = free_port();
        let home = directory.join(name);
        fs::create_dir_all(&home).with_context(|| format!("cannot create {}", home.display()))?;
        let token = write_credentials(&home)?;
        let kubeconfig = home.join("kubeconfig");
        fs::write(&kubeconfig, kubeconfig_text(&home, port, &token))?;
        let file = |flag: &str, name: &str| format!("--{flag}={}", home.join(name).display());
        let mut command = Command::new(peers.join("kube-apiserver"));
        command
            .arg(format!("--etcd-servers=http://127.0.0.1:{}", etcd.port))
            .arg(format!("--etcd-prefix=/{name}"))
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--secure-port={port}"))
            // It writes its self-signed certificate there.
            .arg(format!("--cert-dir={}", home.display()))
            .arg(file("token-auth-file", "tokens.csv"))
            .arg(file("service-account-key-file", "service-account.pub"))
            .arg(file(
                "service-account-signing-key-file",
                "service-account.key",
            ))
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg("--authorization-mode=RBAC")
            .arg("--service-cluster-ip-range=10.96.0.0/16")
            .arg("--disable-admission-plugins=ServiceAccount")
            .arg("--endpoint-reconciler-type=none");
        Ok(Self {
            process: Process::start("kube-apiserver", &home, &mut command)?,
            command,
            home,
            kubeconfig,
        })
    }

    /// Waits until the server is ready and returns a client.
    pub(super) async fn client(&mut self) -> anyhow::Result<Client> {
        let begun = Instant::now();
        let mut starts = 1;
        loop {
            match self.process.check() {
                Err(_) if starts < STARTS => {
                    starts += 1;
                    self.process = Process::start("kube-apiserver", &self.home, &mut self.command)?;
                }
                running => running?,
            }
            match connect(&self.kubeconfig).await {
                Ok(client) => return Ok(client),
                Err(error) if begun.elapsed() > START_LIMIT => {
                    return Err(error.context("kube-apiserver did not become ready"));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
    }
}

async fn connect(kubeconfig: &Path) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let request = http::Request::get("/readyz").body(Vec::new())?;
    let answer = client.request_text(request).await?;
    if answer != "ok" {
        bail!("kube-apiserver is not ready: {answer}");
    }
    Ok(client)
}

/// Writes the keys for service accounts, which the server requires, and the administrator's token,
/// which it returns.
fn write_credentials(home: &Path) -> anyhow::Result<String> {
    let key = rcgen::KeyPair::generate()?;
    fs::write(home.join("service-account.key"), key.serialize_pem())?;
    fs::write(home.join("service-account.pub"), key.public_key_pem())?;
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let token = format!("{:032x}", u128::from_be_bytes(bytes));
    let line = format!("{token},admin,admin,\"system:masters\"\n");
    fs::write(home.join("tokens.csv"), line)?;
    Ok(token)
}

fn kubeconfig_text(home: &Path, port: u16, token: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: admin\nclusters:\n- name: weft\n  cluster:\n    \
         server: https://127.0.0.1:{port}\n    certificate-authority: {}\nusers:\n- name: admin\n  \
         user:\n    token: {token}\ncontexts:\n- name: admin\n  context:\n    cluster: weft\n    \
         user: admin\n",
        home.join("apiserver.crt").display()
    )
}
