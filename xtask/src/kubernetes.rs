//! A real kube-apiserver with its etcd on loopback, for tests that compare us with it.
//!
//! Everything it needs lies in one directory below `target/`, so each checkout has its own. The
//! two processes outlive this program; their pid files tell the next call where they are. Tests
//! find etcd's address in a file beside the kubeconfig.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use crate::{peers, process, workspace};

mod credentials;
mod daemon;

use credentials::Credentials;
use daemon::Daemon;

/// Two cores under load take a while; an idle machine answers in about five seconds.
const START_LIMIT: Duration = Duration::from_mins(2);

/// Starts it unless it runs, and prints the line that tells a shell about it.
pub(crate) fn up() -> anyhow::Result<()> {
    let kubeconfig = ensure()?;
    let kubectl = peers::program("kubectl")?;
    eprintln!(
        "try: {} --kubeconfig {} get namespaces",
        kubectl.display(),
        kubeconfig.display()
    );
    println!("export WEFT_TEST_KUBECONFIG={}", kubeconfig.display());
    Ok(())
}

/// Stops it and removes its data.
pub(crate) fn down() -> anyhow::Result<()> {
    let cluster = Cluster::here();
    let stopped = cluster.stop()?;
    if cluster.directory.exists() {
        fs::remove_dir_all(&cluster.directory)
            .with_context(|| format!("remove {}", cluster.directory.display()))?;
    }
    eprintln!(
        "{}",
        if stopped {
            "stopped"
        } else {
            "nothing was running"
        }
    );
    Ok(())
}

/// Says whether it runs, and fails when it does not.
pub(crate) fn status() -> anyhow::Result<()> {
    let cluster = Cluster::here();
    for daemon in cluster.daemons() {
        match daemon.pid() {
            Some(pid) => println!("{:<15} running, pid {pid}", daemon.name()),
            None => println!("{:<15} stopped", daemon.name()),
        }
    }
    if !cluster.is_ready() {
        bail!("it does not answer; `cargo xtask kubernetes up` starts it");
    }
    println!("{:<15} {}", "kubeconfig", cluster.kubeconfig().display());
    Ok(())
}

/// True if it runs and answers.
pub(crate) fn is_running() -> bool {
    Cluster::here().is_ready()
}

/// Starts it unless it runs; returns the path of the administrator's kubeconfig.
pub(crate) fn ensure() -> anyhow::Result<PathBuf> {
    Cluster::here().ensure()
}

/// Does something with a second one that refuses streaming lists, as servers before 1.34 do, and
/// stops it.
pub(crate) fn without_streaming_lists(
    work: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let cluster = Cluster {
        directory: workspace::target().join("kubernetes-without-streaming-lists"),
        more_flags: &["--feature-gates=WatchList=false"],
    };
    let outcome = cluster
        .ensure()
        .and_then(|kubeconfig| work(&kubeconfig))
        .and(Ok(()));
    cluster.stop()?;
    fs::remove_dir_all(&cluster.directory)
        .with_context(|| format!("remove {}", cluster.directory.display()))?;
    outcome
}

struct Cluster {
    directory: PathBuf,
    /// Of kube-apiserver.
    more_flags: &'static [&'static str],
}

impl Cluster {
    fn here() -> Self {
        Self {
            directory: workspace::target().join("kubernetes"),
            more_flags: &[],
        }
    }

    fn ensure(&self) -> anyhow::Result<PathBuf> {
        if !self.is_ready() {
            // Half of an earlier one may be left.
            self.stop()?;
            if self.directory.exists() {
                fs::remove_dir_all(&self.directory).context("remove the data of an earlier run")?;
            }
            if let Err(error) = self.start() {
                self.stop()?;
                return Err(error);
            }
        }
        Ok(self.kubeconfig())
    }

    fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    /// In the order of their start.
    fn daemons(&self) -> [Daemon<'_>; 2] {
        ["etcd", "kube-apiserver"].map(|name| Daemon::new(name, &self.directory))
    }

    fn start(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        let [etcd, apiserver] = self.daemons();
        let (etcd_program, apiserver_program) =
            (peers::program("etcd")?, peers::program("kube-apiserver")?);
        let [client_port, peer_port, secure_port] = free_ports()?;
        workspace::create_private(&self.directory)?;
        Credentials::generate()?.write(&self.directory, secure_port)?;
        let etcd_address = format!("http://127.0.0.1:{client_port}\n");
        fs::write(self.directory.join("etcd-address"), etcd_address)
            .context("write etcd's address")?;
        let etcd_flags = etcd_flags(&self.directory, client_port, peer_port);
        etcd.start(Command::new(etcd_program).args(etcd_flags))?;
        let apiserver_flags = apiserver_flags(&self.directory, client_port, secure_port);
        apiserver.start(
            Command::new(apiserver_program)
                .args(apiserver_flags)
                .args(self.more_flags),
        )?;
        self.wait_until_ready()?;
        eprintln!(
            "kube-apiserver answers after {:.1} s",
            began.elapsed().as_secs_f64()
        );
        Ok(())
    }

    /// Stops in reverse order; whether anything ran.
    fn stop(&self) -> anyhow::Result<bool> {
        let [etcd, apiserver] = self.daemons();
        let stopped = apiserver.stop()?;
        Ok(etcd.stop()? || stopped)
    }

    fn wait_until_ready(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while !self.is_ready() {
            for daemon in self.daemons() {
                if daemon.pid().is_none() {
                    bail!(
                        "{} ended by itself:\n{}",
                        daemon.name(),
                        daemon.end_of_log()
                    );
                }
            }
            if Instant::now() > deadline {
                let [_, apiserver] = self.daemons();
                bail!(
                    "not ready after {START_LIMIT:?}:\n{}",
                    apiserver.end_of_log()
                );
            }
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        let Ok(kubectl) = peers::program("kubectl") else {
            return false;
        };
        if !self.kubeconfig().exists() || self.daemons().iter().any(|daemon| daemon.pid().is_none())
        {
            return false;
        }
        let mut question = Command::new(kubectl);
        question.arg("--kubeconfig").arg(self.kubeconfig());
        process::succeeds(question.args(["get", "--raw", "/readyz", "--request-timeout=2s"]))
    }
}

/// Ports that were free a moment ago: neither program can be asked to choose its own.
fn free_ports() -> anyhow::Result<[u16; 3]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let listeners = [bind()?, bind()?, bind()?];
    let [a, b, c] = listeners.each_ref().map(TcpListener::local_addr);
    Ok([a?.port(), b?.port(), c?.port()])
}

fn etcd_flags(directory: &Path, client_port: u16, peer_port: u16) -> Vec<String> {
    let client = format!("http://127.0.0.1:{client_port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    vec![
        "--name=weft".to_owned(),
        format!("--data-dir={}", directory.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=weft={peer}"),
        // The data is thrown away with the directory.
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ]
}

fn apiserver_flags(directory: &Path, etcd_port: u16, secure_port: u16) -> Vec<String> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", directory.join(name).display());
    vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={secure_port}"),
        file("tls-cert-file", "serving.crt"),
        file("tls-private-key-file", "serving.key"),
        file("client-ca-file", "ca.crt"),
        file("token-auth-file", "tokens.csv"),
        file("service-account-key-file", "service-account.pub"),
        file("service-account-signing-key-file", "service-account.key"),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        // Without a controller manager no namespace ever gets its default service account, and
        // the plugin would refuse every Pod.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        // It would publish a loopback address as the endpoint of `kubernetes`, which is invalid.
        "--endpoint-reconciler-type=none".to_owned(),
        "--allow-privileged=true".to_owned(),
        // One kind is read from etcd itself, so that a test can see a version compacted there; of
        // all others the server remembers more than etcd does.
        "--watch-cache-sizes=ingresses.networking.k8s.io#0".to_owned(),
    ]
}
